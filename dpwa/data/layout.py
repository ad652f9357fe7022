"""Layout: where each tensor stands in the flat bytes of a snapshot.

Two nodes can only merge when their layouts are equal; a fingerprint makes that a comparison of 16
bytes, and `Layout.difference` says in words where two layouts part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgpack

ALIGNMENT_BYTES = 64  # a cache line: every tensor can be viewed in place by vector instructions
FINGERPRINT_BYTES = 16
DESCRIPTION_CHARACTERS = 300
BYTES = "bytes"  # the dtype of a payload without structure, whose length may differ by peer


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype (as numpy or torch call it, without a module prefix) and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    item_bytes: int

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * self.item_bytes

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Layout:
    """An ordered list of tensors, each aligned to `ALIGNMENT_BYTES`."""

    tensors: tuple[TensorSpec, ...]

    @classmethod
    def of_bytes(cls) -> Layout:
        """Layout of an unstructured payload: any length fits."""
        return cls((TensorSpec("parameters", BYTES, (), 0),))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First byte of each tensor."""
        offsets, end = [], 0
        for tensor in self.tensors:
            offsets.append(end)
            end += -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return tuple(offsets)

    @cached_property
    def nbytes(self) -> int | None:
        """Size of a snapshot in bytes, or `None` when any length fits."""
        if self.is_bytes:
            return None
        return self.offsets[-1] + self.tensors[-1].nbytes if self.tensors else 0

    @property
    def is_bytes(self) -> bool:
        """Tell whether this is the layout of an unstructured payload."""
        return len(self.tensors) == 1 and self.tensors[0].dtype == BYTES

    @cached_property
    def fingerprint(self) -> bytes:
        """Digest of names, dtypes and shapes, `FINGERPRINT_BYTES` long."""
        rows = [[t.name, t.dtype, t.shape, t.item_bytes] for t in self.tensors]
        return hashlib.blake2b(msgpack.packb(rows), digest_size=FINGERPRINT_BYTES).digest()

    @cached_property
    def descriptions(self) -> tuple[str, ...]:
        """Each tensor in words, to be compared with those of another node."""
        return tuple(str(tensor)[:DESCRIPTION_CHARACTERS] for tensor in self.tensors)

    def difference(self, descriptions: Sequence[str], count: int) -> str | None:
        """Describe the first tensor in which another layout differs, or return `None`.

        Args:
            descriptions: those of the other layout, or the first of them.
            count: how many tensors the other layout has.
        """
        for mine, theirs in zip(self.descriptions, descriptions, strict=False):
            if mine != theirs:
                return f"here {mine}, there {theirs}"
        known = len(descriptions)
        if known < count and known < len(self.tensors):
            return f"they differ after the first {known} tensors"
        if len(self.tensors) > count:
            return f"here {self.descriptions[count]}, there no such tensor"
        if count > len(self.tensors):
            there = descriptions[len(self.tensors)] if known > len(self.tensors) else "another one"
            return f"here no such tensor, there {there}"
        return None
