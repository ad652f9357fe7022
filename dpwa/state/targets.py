"""What a joiner asks for, how long it waits, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.state.candidates import SILENT_S
from dpwa.state.image import ImageLayout
from dpwa.wire.state import PartName

GRACE_S = 0.3  # for peers that refuse connections: nodes of a run never start at the same moment
CONNECT_S = 3.0  # for peers that neither refuse nor accept them


@dataclass(frozen=True)
class Patience:
    """How long a joiner waits for peers that may have something for it, in seconds.

    Attributes:
        refused_s: for those that refuse connections, as nobody listens there yet.
        connecting_s: for those that neither refuse nor accept them.
        silent_s: for those that are connected, and do not say how far they are.
        offered_s: for the first copy of a state, as a peer's trainer makes it at its next update.
    """

    refused_s: float = GRACE_S
    connecting_s: float = CONNECT_S
    silent_s: float = SILENT_S
    offered_s: float = math.inf


# Whoever is well ahead has listened for long, and whoever finds out later takes over then.
BRIEF = Patience(refused_s=0.0, connecting_s=0.3, silent_s=1.0, offered_s=5.0)


@dataclass(frozen=True)
class StateTarget:
    """What a joiner asks for.

    Attributes:
        part: which part of the state.
        kind: what kind it must be of; `None`: of any.
        layout: of the image, if that is known beforehand.
        most_bytes: the largest image that is taken.
        newer_than: only donors with a clock above this are of use.
        tokens: of the copies of which other parts have come, by donor: these are asked first.
        without: names of peers that are not asked.
        is_alone: whether it shall come from one donor.
        patience: how long to wait for peers.
    """

    part: PartName
    kind: Layout | None
    most_bytes: int
    layout: ImageLayout | None = None
    newer_than: float = 0.0
    tokens: Mapping[str, bytes] = field(default_factory=dict)
    without: Collection[str] = ()
    is_alone: bool = False
    patience: Patience = Patience()


@dataclass(frozen=True)
class Fetched:
    """A part of the state, put together of pieces of its donors.

    Attributes:
        image: its bytes.
        numbers: what is no tensor, of the donor that brought most.
        clock: the mean of the donors' clocks, weighted by what they brought.
        updates: of the donor that brought most.
        pieces: how many each donor brought.
        tokens: of the copies that they are of.
    """

    image: ByteArray
    numbers: bytes
    clock: float
    updates: int
    pieces: Mapping[str, int]
    tokens: Mapping[str, bytes]


@dataclass(frozen=True)
class JoinResult:
    """How an attempt to fetch has ended.

    Attributes:
        fetched: the part, if it has come.
        differences: why the states of peers are of no use, in words, by name.
        is_late: whether there are donors, and the time was up.
        came, nbytes: how much of how many bytes had come, if it has not.
    """

    fetched: Fetched | None
    differences: Mapping[str, str] = field(default_factory=dict)
    is_late: bool = False
    came: int = 0
    nbytes: int = 0
