"""Layout: the places of tensors in the flat bytes of a snapshot.

Two nodes can merge only if their layouts are equal. To compare layouts, nodes compare fingerprints
of 16 bytes. `Layout.difference` describes the first difference between two layouts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest

import msgpack

FINGERPRINT_BYTES = 16
DESCRIPTION_CHARACTERS = 300
_FROZEN = "frozen parameters: "
_NONE = "no such tensor"
CUTS = 4  # maximum number of divisions into pieces that a layout remembers
BYTES = "bytes"  # the dtype of an unstructured payload, whose length may differ between peers


@dataclass(frozen=True)
class TensorSpec:
    """The name, dtype and shape of a tensor. The dtype is a name in numpy or torch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    item_bytes: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Piece:
    """A range of snapshot bytes, from `start` to `stop`, whose values all have one dtype."""

    start: int
    stop: int
    dtype: str

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """An ordered list of densely packed tensors, each aligned to the size of its elements.

    So neighbouring tensors of one dtype form one contiguous array. If tensors are ordered by
    falling element size, there are no gaps.
    """

    tensors: tuple[TensorSpec, ...]
    # number, size and digest of the frozen parameters that all nodes must share, or ""
    frozen: str = ""
    # The names of tensors in the module's order, for `difference`. Equal layouts may differ in it.
    order: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of_bytes(cls) -> Layout:
        """Return the layout of an unstructured payload of any length."""
        return cls((TensorSpec("parameters", BYTES, (), 0),))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The byte offset of each tensor in a snapshot."""
        offsets, end = [], 0
        for tensor in self.tensors:
            item_bytes = max(1, tensor.item_bytes)
            start = -(-end // item_bytes) * item_bytes
            offsets.append(start)
            end = start + tensor.nbytes
        return tuple(offsets)

    @cached_property
    def nbytes(self) -> int | None:
        """The size of a snapshot in bytes, or `None` if the layout has no fixed size."""
        if self.is_bytes:
            return None
        return self.offsets[-1] + self.tensors[-1].nbytes if self.tensors else 0

    def pieces(self, nbytes: int, piece_bytes: int) -> tuple[Piece, ...]:
        """Divide a snapshot of `nbytes` bytes into pieces of at most `piece_bytes`, in order.

        Each piece has one dtype. Each has `piece_bytes` bytes (a multiple of every element size),
        apart from the last piece of a dtype. Both nodes of a fetch compute the same pieces, because
        their layouts are equal.
        """
        known = self._pieces.get((nbytes, piece_bytes))
        if known is None:
            if len(self._pieces) >= CUTS:
                self._pieces.clear()
            known = self._pieces[nbytes, piece_bytes] = self._cut(nbytes, piece_bytes)
        return known

    @cached_property
    def _pieces(self) -> dict[tuple[int, int], tuple[Piece, ...]]:
        return {}

    def _cut(self, nbytes: int, piece_bytes: int) -> tuple[Piece, ...]:
        runs = [Piece(0, nbytes, BYTES)] if self.is_bytes else self._runs
        return tuple(
            Piece(start, min(start + piece_bytes, run.stop), run.dtype)
            for run in runs
            for start in range(run.start, run.stop, piece_bytes)
        )

    @cached_property
    def _runs(self) -> list[Piece]:
        runs: list[Piece] = []
        for tensor, offset in zip(self.tensors, self.offsets, strict=True):
            stop = offset + tensor.nbytes
            if runs and runs[-1].dtype == tensor.dtype:
                runs[-1] = Piece(runs[-1].start, stop, tensor.dtype)
            else:
                runs.append(Piece(offset, stop, tensor.dtype))
        return [run for run in runs if run.nbytes]

    @property
    def is_bytes(self) -> bool:
        return len(self.tensors) == 1 and self.tensors[0].dtype == BYTES

    @cached_property
    def fingerprint(self) -> bytes:
        """A digest of names, dtypes, shapes and frozen parameters, of `FINGERPRINT_BYTES` bytes."""
        rows: list[object] = [[t.name, t.dtype, t.shape, t.item_bytes] for t in self.tensors]
        if self.frozen:
            rows.append(self.frozen)
        return hashlib.blake2b(msgpack.packb(rows), digest_size=FINGERPRINT_BYTES).digest()

    @cached_property
    def descriptions(self) -> tuple[str, ...]:
        """A text for any frozen parameters, and for each tensor. Nodes compare these texts."""
        frozen = [_FROZEN + self.frozen] if self.frozen else []
        return (*frozen, *map(_described, self.tensors))

    def difference(self, descriptions: Sequence[str], count: int) -> str | None:
        """Describe the first difference between this layout and a peer's, or return `None`.

        `descriptions` are the other layout's descriptions, or the first few of its `count`.
        """
        pairs = list(zip_longest(self.descriptions, descriptions, fillvalue=_NONE))
        parted = next(((mine, theirs) for mine, theirs in pairs if mine != theirs), None)
        known = len(descriptions)
        if parted is None:
            return None if known == count else f"they differ after the first {known} tensors"
        if any(text.startswith(_FROZEN) for text in parted):
            return _parted(*parted)
        # Compare by name, because a tensor that one layout lacks would shift all later tensors.
        is_whole, places = known == count, {name: at for at, name in enumerate(self.order)}
        tensors = sorted(self.tensors, key=lambda tensor: places.get(tensor.name, 0))
        own = {_name(text): text for tensor in tensors if (text := _described(tensor))}
        other = {_name(text): text for text in descriptions}
        unknown = next((text for name, text in other.items() if name not in own), _NONE)
        for name, text in own.items():
            there = other.get(name, unknown if is_whole else text)
            if there != text:
                return f"here {text}, there {there}"
        if unknown != _NONE and is_whole:
            return f"here {_NONE}, there {unknown}"
        if parted[1] == _NONE and not is_whole:
            return f"they differ after the first {known} tensors"
        return f"here {parted[0]}, there {parted[1]}"


def _described(tensor: TensorSpec) -> str:
    return str(tensor)[:DESCRIPTION_CHARACTERS]


def _name(description: str) -> str:
    return description.rpartition("[")[0].rpartition(" ")[0]


def _parted(mine: str, theirs: str) -> str:
    """Return a text about the difference between the frozen parameters of two layouts."""
    is_frozen = [text.startswith(_FROZEN) for text in (mine, theirs)]
    if all(is_frozen):
        here, there = mine.removeprefix(_FROZEN), theirs.removeprefix(_FROZEN)
        return (
            f"the frozen parameters: here {here}, there {there}. Load the same frozen parameters, "
            "in the same dtype, on all nodes"
        )
    where = "here" if is_frozen[0] else "there"
    return f"`state: trainable` is set only {where}. Set it in the same way on all nodes"
