"""RunView holds the data about a run at one moment, for display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dpwa.config.endpoints import is_label
from dpwa.errors import ProtocolError
from dpwa.node.report import Count, EndingReport, MemberReport, PeerReport, Text
from dpwa.observe.events import RunEvent
from dpwa.observe.history import Floats, SampleHistory
from dpwa.types import Frame, JsonObject
from dpwa.wire.messages import printable, unpack
from dpwa.wire.watching import MEMBER_ENTRY, PEER_ENTRY

MAX_FIGURES = 256
END_OF_TIME = 1e12  # seconds since the epoch. Answers with later times are refused


def _check_label(value: object) -> object:
    if not isinstance(value, str) or not is_label(value):
        raise ValueError("expected the name of a node")
    return value


_Label = Annotated[Text, AfterValidator(_check_label)]
_Shown = Annotated[Text, AfterValidator(printable)]
_Time = Annotated[float, Field(ge=0, lt=END_OF_TIME, allow_inf_nan=False)]


def _entry_of(keys: Sequence[str]) -> Callable[[object], JsonObject]:
    def check(entry: object) -> JsonObject:
        if not isinstance(entry, (list, tuple)) or len(entry) != len(keys):
            raise ValueError(f"expected a list of {len(keys)} values")
        _check_label(entry[0])
        return dict(zip(keys, entry, strict=True))

    return check


def _read_ending(entry: object) -> JsonObject | None:
    match entry:
        case None:
            return None
        case [bool(is_over), [*names]]:
            return {"is_over": is_over, "waits_for": [_check_label(name) for name in names]}
    raise ValueError("expected a report on the end of the run")


class SyncEntry(NamedTuple):
    """The nodes that average gradients with this node. See `PaceReport`."""

    in_sync: tuple[_Label, ...]
    out_of_sync_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


_Ending = Annotated[EndingReport | None, BeforeValidator(_read_ending)]
_Peer = Annotated[PeerReport, BeforeValidator(_entry_of(PEER_ENTRY))]
_Member = Annotated[MemberReport, BeforeValidator(_entry_of(MEMBER_ENTRY))]


class _EventEntry(NamedTuple):
    number: Count
    time: _Time
    node: _Shown
    kind: _Shown
    about: _Shown
    text: _Shown


class HistoryAnswer(BaseModel):
    """The answer of a node to a request for its record. See `NodeRecord.handle`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Count = Field(alias="schema")
    name: _Label
    endpoint: Text
    host: Text
    pid: Count
    algorithm: Text
    topology: Text
    group: Text
    started: _Time
    now: _Time
    last: float
    figures: Annotated[tuple[Text, ...], Field(max_length=MAX_FIGURES)]
    samples: bytes
    events: tuple[_EventEntry, ...]
    peers: tuple[_Peer, ...]
    members: tuple[_Member, ...]
    ending: _Ending = None
    sync: SyncEntry | None = None  # `None`: the node averages no gradients
    ended: Text | None = None  # the problem of its end, or empty. `None`: it has not ended

    @property
    def end(self) -> str:
        """`finished`, `left` (the node ended without `finish`), or empty while it trains."""
        if self.ended == "" or (self.ending is not None and self.ending.is_over):
            return "finished"
        return "left" if self.ended else ""

    def rows(self, names: tuple[str, ...]) -> Floats:
        """Return the samples, shape `(samples, 1 + len(names))`. Columns: the time, then `names`.

        A figure is NaN if the node's version of dpwa does not report it.

        Raises:
            ProtocolError: the answer has no valid samples, or they are not in order of time.
        """
        width = 1 + len(self.figures)
        if len(self.samples) % (width * np.dtype("<f8").itemsize):
            raise ProtocolError("the history of this node has an incomplete sample")
        told = np.frombuffer(self.samples, "<f8").reshape(-1, width)
        times = told[:, 0]
        if not (np.all(times >= 0) and np.all(times < END_OF_TIME) and np.all(np.diff(times) > 0)):
            raise ProtocolError("the samples of this node are not in order of time")
        rows = np.full((len(told), 1 + len(names)), np.nan)
        rows[:, 0] = told[:, 0]
        for index, name in enumerate(names, 1):
            if name in self.figures:
                rows[:, index] = told[:, 1 + self.figures.index(name)]
        return rows

    def happened(self) -> list[RunEvent]:
        """Return the events of the answer."""
        return [RunEvent(**event._asdict()) for event in self.events]


def read_answer(payload: Frame) -> HistoryAnswer:
    """Parse and validate the answer of a node.

    Raises:
        ProtocolError: the payload is not a valid answer.
    """
    try:
        return HistoryAnswer.model_validate(unpack(payload))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(
            f"the history of this node has an invalid {place}: {first['msg']}"
        ) from None


@dataclass(frozen=True)
class Followed:
    """One node of a run at one moment.

    Attributes:
        name: name of the node, or its address until the node has sent its name.
        endpoint: the address at which the node is asked.
        answer: the newest answer, or `None` if the node has never answered.
        silent_s: seconds since the last answer. 0 while the node answers.
        problem: why the node cannot be reached, in words. Empty if the reason is unknown.
        history: the node's figures. The watch owns this history, and adds samples on its thread.
        told: reports of another node about this node (`OTHER_NAMES`). The watch owns it, too.
    """

    name: str
    endpoint: str
    answer: HistoryAnswer | None
    silent_s: float
    problem: str
    history: SampleHistory
    told: SampleHistory

    @property
    def peers(self) -> tuple[PeerReport, ...]:
        """The node's last reports about its peers."""
        return () if self.answer is None else self.answer.peers

    @property
    def sync(self) -> SyncEntry | None:
        """The nodes in sync with this node. `None` if it averages no gradients, or is silent."""
        return None if self.answer is None or self.silent_s else self.answer.sync

    @property
    def averages_alone(self) -> bool:
        """Whether the node averages gradients, but with no other node."""
        return self.sync is not None and self.sync.in_sync == (self.name,)

    @property
    def ending(self) -> EndingReport | None:
        """The state of the node's call of `finish`. `None` if the node trains, or is silent."""
        return None if self.answer is None or self.silent_s else self.answer.ending


@dataclass(frozen=True)
class RunView:
    """The data about a run at one moment.

    Attributes:
        time: the moment, in seconds since the epoch.
        through: the node that reports the members and the silent nodes. Empty if no node does.
        nodes: in the order in which the nodes were found.
        events: oldest first, the newest of all nodes. Events of the watch have an empty `node`.
        has_ended: whether no node answers any more, and the last one to answer reported its end.
    """

    time: float
    through: str
    nodes: tuple[Followed, ...]
    events: tuple[RunEvent, ...]
    has_ended: bool = False
