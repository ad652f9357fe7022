"""RunView: what is known of a run at one moment, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dpwa.config.endpoints import is_label
from dpwa.errors import ProtocolError
from dpwa.observe.events import RunEvent
from dpwa.observe.history import Floats, SampleHistory
from dpwa.types import Frame
from dpwa.wire.messages import printable, unpack

MOST_FIGURES = 256
END_OF_TIME = 1e12  # seconds since the epoch that no clock shows


def _check_label(value: str) -> str:
    if not is_label(value):
        raise ValueError("no name of a node")
    return value


_Text = Annotated[str, Field(max_length=1000)]
_Number = Annotated[int, Field(ge=0, lt=2**63)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Label = Annotated[_Text, AfterValidator(_check_label)]
_Time = Annotated[float, Field(ge=0, lt=END_OF_TIME, allow_inf_nan=False)]


class PeerEntry(NamedTuple):
    """What a node tells of one of its peers.

    Attributes:
        name: of the peer.
        endpoint: of the peer.
        health: as far as this node knows, see `policy.health`.
        quarantined: whether it is left alone for now.
        score: of flow control, up to 1000.
        merges: of its snapshots.
        merged_s: seconds since the last one.
        staleness: updates that the peer was behind then.
        bytes_received: payload from it.
        bytes_sent: snapshots to it.
        latency_ms: until it answers.
        bandwidth_mbps: of its stream, in megabits per second.
        heard_s: seconds since anything was heard of it.
    """

    name: _Label
    endpoint: _Text
    health: _Text
    quarantined: bool
    score: _Number
    merges: _Number
    merged_s: _Finite | None
    staleness: _Finite | None
    bytes_received: _Number
    bytes_sent: _Number
    latency_ms: _Finite | None
    bandwidth_mbps: _Finite | None
    heard_s: _Finite | None


class _MemberEntry(NamedTuple):
    name: _Label
    endpoint: _Text
    status: _Text


class _EventEntry(NamedTuple):
    number: _Number
    time: _Time
    node: _Text
    kind: _Text
    about: _Text
    text: _Text


class HistoryAnswer(BaseModel):
    """One answer; see `NodeRecord.handle`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: _Number = Field(alias="schema")
    name: _Label
    endpoint: _Text
    host: _Text
    pid: _Number
    algorithm: _Text
    topology: _Text
    group: _Text
    started: _Time
    now: _Time
    last: float
    figures: Annotated[tuple[_Text, ...], Field(max_length=MOST_FIGURES)]
    samples: bytes
    events: tuple[_EventEntry, ...]
    peers: tuple[PeerEntry, ...]
    members: tuple[_MemberEntry, ...]
    # Whether it has finished, and whom it waits for.
    ending: tuple[bool, tuple[_Label, ...]] | None = None

    def rows(self, names: tuple[str, ...]) -> Floats:
        """Return the samples, shape `(samples, 1 + len(names))`: the time, then these figures.

        A figure that the node does not tell, as it is of another version, is NaN.

        Raises:
            ProtocolError: these are no samples, or not in order of time.
        """
        width = 1 + len(self.figures)
        if len(self.samples) % (width * np.dtype("<f8").itemsize):
            raise ProtocolError("a history with half a sample")
        told = np.frombuffer(self.samples, "<f8").reshape(-1, width)
        times = told[:, 0]
        if not (np.all(times >= 0) and np.all(times < END_OF_TIME) and np.all(np.diff(times) > 0)):
            raise ProtocolError("a history whose samples are not in order of time")
        rows = np.full((len(told), 1 + len(names)), np.nan)
        rows[:, 0] = told[:, 0]
        for index, name in enumerate(names, 1):
            if name in self.figures:
                rows[:, index] = told[:, 1 + self.figures.index(name)]
        return rows

    def happened(self) -> list[RunEvent]:
        """Return the events, fit to be shown."""
        return [
            RunEvent(
                time=e.time,
                node=printable(e.node),
                kind=printable(e.kind),
                about=printable(e.about),
                text=printable(e.text),
                number=e.number,
            )
            for e in self.events
        ]


def read_answer(payload: Frame) -> HistoryAnswer:
    """Check an answer.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return HistoryAnswer.model_validate(unpack(payload))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(f"a history whose {place}: {first['msg']}") from None


@dataclass(frozen=True)
class Followed:
    """One node of a run at one moment.

    Attributes:
        name: of the node; its address as long as it has not told its name.
        endpoint: where it is asked.
        answer: the newest; `None`: it has never answered.
        silent_s: for how long it has not answered; 0 while it answers.
        problem: why it cannot be reached, in words, if that is known.
        history: of its figures; belongs to the watch, which adds to it on its own thread.
        told: what another node has told of it, by `OTHER_NAMES`; likewise.
    """

    name: str
    endpoint: str
    answer: HistoryAnswer | None
    silent_s: float
    problem: str
    history: SampleHistory
    told: SampleHistory

    @property
    def peers(self) -> tuple[PeerEntry, ...]:
        """What it has told last of its peers."""
        return () if self.answer is None else self.answer.peers

    @property
    def ending(self) -> tuple[bool, tuple[str, ...]] | None:
        """Whether it has finished, and whom it waits for; `None`: it trains, or is silent."""
        return None if self.answer is None or self.silent_s else self.answer.ending


@dataclass(frozen=True)
class RunView:
    """All that is known of a run at one moment.

    Attributes:
        time: in seconds since the epoch.
        through: the node that tells who is there, and of those that do not answer; empty: none.
        nodes: in the order in which they were found.
        events: oldest first; the newest of all nodes, and of this watch (whose `node` is empty).
    """

    time: float
    through: str
    nodes: tuple[Followed, ...]
    events: tuple[RunEvent, ...]
