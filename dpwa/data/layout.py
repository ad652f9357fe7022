"""Layout: the places of tensors in the flat bytes of a snapshot.

Two nodes can only merge if their layouts are equal. A fingerprint makes that a comparison of 16
bytes, and `Layout.difference` describes how two layouts differ.
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
CUTS = 4  # that are kept: of the settings, and of buffers alone
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
        return math.prod(self.shape) * self.item_bytes

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Piece:
    """The bytes from `start` to `stop` of a snapshot, all of one dtype."""

    start: int
    stop: int
    dtype: str

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """An ordered list of densely packed tensors, each aligned to the size of its elements.

    Neighbours of one dtype thus form one contiguous array, and tensors in the order of falling
    element size leave no gap at all.
    """

    tensors: tuple[TensorSpec, ...]
    # number, size and digest of the frozen parameters that nodes must have in common, if any
    frozen: str = ""
    # names as the module has them, for `difference`; they need not be the same
    order: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of_bytes(cls) -> Layout:
        """Layout of an unstructured payload of any length."""
        return cls((TensorSpec("parameters", BYTES, (), 0),))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First byte of each tensor."""
        offsets, end = [], 0
        for tensor in self.tensors:
            item_bytes = max(1, tensor.item_bytes)
            start = -(-end // item_bytes) * item_bytes
            offsets.append(start)
            end = start + tensor.nbytes
        return tuple(offsets)

    @cached_property
    def nbytes(self) -> int | None:
        """Size of a snapshot in bytes, or `None` when any length fits."""
        if self.is_bytes:
            return None
        return self.offsets[-1] + self.tensors[-1].nbytes if self.tensors else 0

    def pieces(self, nbytes: int, piece_bytes: int) -> tuple[Piece, ...]:
        """Cut a snapshot of `nbytes` bytes into pieces of at most `piece_bytes`, in order.

        Each is of one dtype, and all but the last of a dtype are `piece_bytes` long (a multiple of
        every element size). Both ends of a fetch cut alike, because their layouts are equal.
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
        """Digest of names, dtypes, shapes and `frozen`, `FINGERPRINT_BYTES` long."""
        rows: list[object] = [[t.name, t.dtype, t.shape, t.item_bytes] for t in self.tensors]
        if self.frozen:
            rows.append(self.frozen)
        return hashlib.blake2b(msgpack.packb(rows), digest_size=FINGERPRINT_BYTES).digest()

    @cached_property
    def descriptions(self) -> tuple[str, ...]:
        """`frozen`, if there is any, and each tensor in words, to compare with those of other
        nodes.
        """
        frozen = [_FROZEN + self.frozen] if self.frozen else []
        return (*frozen, *map(_described, self.tensors))

    def difference(self, descriptions: Sequence[str], count: int) -> str | None:
        """Describe the first difference to a different layout, or return `None`.

        `descriptions` are those of the other layout, or the first of its `count`.
        """
        pairs = list(zip_longest(self.descriptions, descriptions, fillvalue=_NONE))
        parted = next(((mine, theirs) for mine, theirs in pairs if mine != theirs), None)
        known = len(descriptions)
        if parted is None:
            return None if known == count else f"they differ after the first {known} tensors"
        if any(text.startswith(_FROZEN) for text in parted):
            return _parted(*parted)
        # By name: what one side has more would shift all that follows.
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
    """Describe how the frozen parameters of two layouts differ."""
    is_frozen = [text.startswith(_FROZEN) for text in (mine, theirs)]
    if all(is_frozen):
        here, there = mine.removeprefix(_FROZEN), theirs.removeprefix(_FROZEN)
        return (
            f"the frozen parameters: here {here}, there {there}; load the same ones, in the same "
            "dtype, on all nodes"
        )
    where = "here" if is_frozen[0] else "there"
    return f"`state: trainable` is set {where} only; set it on all nodes alike"
