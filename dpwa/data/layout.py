"""Layout: where each tensor stands in the flat bytes of a snapshot.

Two nodes can only merge when their layouts are equal; a fingerprint makes that a comparison of 16
bytes, and `Layout.difference` says in words where two layouts part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgpack

ALIGNMENT_BYTES = 64  # a cache line: every tensor can be viewed in place by vector instructions
FINGERPRINT_BYTES = 16
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

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]]) -> Layout:
        """Rebuild a layout from `rows`.

        Raises:
            ValueError: a row is not `[name, dtype, shape, item_bytes]`.
        """
        try:
            return cls(tuple(_spec(*row) for row in rows))
        except TypeError as error:
            raise ValueError(f"not a layout: {error}") from None

    def rows(self) -> list[list[Any]]:
        """The layout as plain lists, to be sent."""
        return [[t.name, t.dtype, list(t.shape), t.item_bytes] for t in self.tensors]

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
        return hashlib.blake2b(msgpack.packb(self.rows()), digest_size=FINGERPRINT_BYTES).digest()

    def difference(self, other: Layout) -> str | None:
        """Describe the first tensor in which `other` differs from this layout, or return `None`."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=False):
            if mine != theirs:
                return f"here {mine}, there {theirs}"
        if len(self.tensors) > len(other.tensors):
            return f"here {self.tensors[len(other.tensors)]}, there no such tensor"
        if len(other.tensors) > len(self.tensors):
            return f"here no such tensor, there {other.tensors[len(self.tensors)]}"
        return None


def _spec(name: str, dtype: str, shape: Sequence[int], item_bytes: int) -> TensorSpec:
    sizes = (*shape, item_bytes)
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ValueError(f"not a shape: {shape!r}")
    return TensorSpec(str(name), str(dtype), tuple(shape), item_bytes)
