"""Targets: the parts of a node's state that are replaced by what comes from peers or from disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.errors import PeerError
from dpwa.state.image import ImageLayout
from dpwa.wire.state import PartName


class UnfitStateError(PeerError):
    """A state that came, from peers or from disk, is none that can be loaded."""


@dataclass(frozen=True)
class Target:
    """A part of this node's state that is to be replaced by one that comes.

    Attributes:
        part: which.
        kind: what comes must be of this kind; `None`: any kind will do.
        layout: of the image, if that is known beforehand.
        most_bytes: the largest image that is taken.
        load: takes over an image and its numbers.  Raises `UnfitStateError`, and changes nothing.
        check: raises it alike, and changes nothing in any case; `None`: there is no such check.
    """

    part: PartName
    kind: Layout | None
    layout: ImageLayout | None
    most_bytes: int
    load: Callable[[ByteArray, bytes], None]
    check: Callable[[ByteArray, bytes], None] | None = None


@dataclass(frozen=True)
class Origin:
    """Where the state came from: peers, or a checkpoint of this node.

    Attributes:
        clock: the training clock that came with it.
        updates: how many updates there were.
        donors: names of the peers, and which copy of each it was.
        checkpoint: name of the checkpoint.
        nbytes: of the part that was replaced.
    """

    clock: float
    updates: int
    donors: Mapping[str, bytes] = field(default_factory=dict)
    checkpoint: str = ""
    nbytes: int = 0
