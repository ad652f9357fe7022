"""NodeReport: the status of a node, which is made once, then sent, logged and shown."""

from __future__ import annotations

import copy
import math
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from dpwa.features import FEATURES
from dpwa.types import JsonObject

Text = Annotated[str, Field(max_length=1000)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Counts = Mapping[str, int]
Details = Mapping[str, Any]  # which nobody reads but people

_OF_MERGES = ("merged_s", "staleness", "clock", "loss", "version")
_NONE: Counts = {}
SECTIONS = tuple(each.section for each in FEATURES if each.section)
_DRIVER = Path("/sys/module/nvidia/version")


@cache
def installed() -> Mapping[str, str]:
    """Return the versions of Python, of torch, and of NVIDIA's driver where there is one."""
    found = {"python": platform.python_version()}
    with suppress(metadata.PackageNotFoundError):
        found["torch"] = metadata.version("torch")  # it is not imported, which takes seconds
    with suppress(OSError):
        found["driver"] = _DRIVER.read_text().strip()
    return found


class PeerReport(NamedTuple):  # many are made: a frozen dataclass takes four times as long
    """The status of a peer, as far as a node knows.

    Attributes:
        health: see `policy.health`.
        problem: why it is not connected, or refused. Empty if it is neither.
        heard_s: seconds since its last sign of life. `None`: never. NaN: not reported.
        fetch_s: seconds that a fetch from it takes.
        latency_ms: until it answers.
        bandwidth_mbps: of its stream, in megabits per second.
        bytes_received: payload and values of collectives from it, without mapped bytes.
        bytes_sent: snapshots and values of collectives to it.
        bytes_mapped: snapshots and values of collectives that were read from its memory.
        rounds: of gradients that this node has averaged with it.
        outcomes: number of fetches by their outcome.
        score: the score of flow control, up to 1000.
        quarantined: whether it is in quarantine.
        rests: whether it is not asked for a while, because fetches have failed.
        merges: number of merges of its snapshots. Before the first, the next fields are `None`.
        merged_s: seconds since the last one.
        staleness: updates that the peer was behind then (negative: ahead).
        clock, loss, version: of the peer then.
    """

    name: Text = "?"
    endpoint: Text = "?"
    health: Text = "?"
    problem: Text = ""
    heard_s: Finite | None = math.nan
    fetch_s: Finite | None = None
    latency_ms: Finite | None = None
    bandwidth_mbps: Finite | None = None
    bytes_received: Count = 0
    bytes_sent: Count = 0
    bytes_mapped: Count = 0
    rounds: Count = 0
    outcomes: Counts = _NONE
    score: Count = 0
    quarantined: bool = False
    rests: bool = False
    merges: Count = 0
    merged_bytes: Count = 0
    merged_s: Finite | None = None
    staleness: Finite | None = None
    clock: Finite | None = None
    loss: Finite | None = None
    version: Count | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it is there, as far as is known."""
        return self.health in ("alive", "behind")

    @property
    def is_gone(self) -> bool:
        """Whether it is not there, as far as is known."""
        return self.health in ("finished", "left", "unreachable", "silent")


@dataclass(frozen=True)
class HistogramReport:
    """Values counted by upper bounds. There is one more count than bounds, none is cumulative."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum: float = 0.0


@dataclass(frozen=True)
class GossipReport:
    """The counts of the training thread and its fetches since the process began.

    Attributes:
        steps: updates.
        train_s, publish_s, wait_s, merge_s: seconds, by what the training thread did.
        step_changes_s2: squares of the seconds by which steps differ from those before.
        merged_bytes: of snapshots, mapped or received.
        taken_bytes: of peers' values in collectives, such as gradients, mapped or received.
        mapped_bytes: of both, read from the memory of peers.
        consensus_distance: to the peer that was merged last. `None`: not measured.
        waits: seconds that updates waited for a snapshot.
        staleness: updates that merged snapshots were behind.
        fetches, answer_s: requests whose answers were timed, and the seconds until them.
        streams, stream_s: snapshots that were streamed, and the seconds that took.
    """

    steps: int = 0
    train_s: float = 0.0
    publish_s: float = 0.0
    wait_s: float = 0.0
    merge_s: float = 0.0
    step_changes_s2: float = 0.0
    merged_bytes: int = 0
    taken_bytes: int = 0
    mapped_bytes: int = 0
    consensus_distance: float | None = None
    waits: HistogramReport = HistogramReport()
    staleness: HistogramReport = HistogramReport()
    fetches: int = 0
    answer_s: float = 0.0
    streams: int = 0
    stream_s: float = 0.0


@dataclass(frozen=True)
class MemberReport:
    """A member of a run that nodes can join, with a status of `policy.members.states`."""

    name: Text = "?"
    endpoint: Text = "?"
    status: Text = "unknown"
    incarnation: int = 0
    version: int = 0


@dataclass(frozen=True)
class MembershipReport:
    """The members, which include this node.

    Attributes:
        components: number of parts into which the run seems to have split.
        waits: whether it waits for others.
        changes: number of changes of the members so far.
        view: digest of the members, in hexadecimal.
    """

    members: tuple[MemberReport, ...] = ()
    components: int = 1
    waits: bool = False
    changes: int = 0
    view: Text = ""


@dataclass(frozen=True)
class EndingReport:
    """The ending of a node that takes no more steps.

    Attributes:
        is_over: whether it has finished.
        problem: its problem, or "".
        waits_for: names of the nodes for which it waits.
        rest: digests of its model apart from the parameters.
    """

    is_over: bool = False
    problem: str = ""
    waits_for: tuple[str, ...] = ()
    rest: Details = field(default_factory=dict)


@dataclass(frozen=True)
class PaceReport:
    """The rounds in which a node averages gradients with others.

    Attributes:
        in_pace: names of the members that are in sync, its own among them. Empty if it is out of
            sync.
        rounds: number of rounds that it has averaged with others so far.
        seconds: seconds in rounds so far.
        patience_s: maximum time to wait for each other member.
        out_of_sync_s: seconds since it is out of sync. `None`: it is in sync, or has no part in
            rounds (not yet, or no more).
        rounds_with: rounds so far with each of the others.
    """

    in_pace: tuple[str, ...] = ()
    rounds: int = 0
    seconds: float = 0.0
    patience_s: Mapping[str, float] = field(default_factory=dict)
    out_of_sync_s: Finite | None = None
    rounds_with: Counts = field(default_factory=dict)

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The members that average together, this node among them. Empty before the first round."""
        return self.in_pace if self.rounds else ()

    def of_peer(self, peer: PeerReport) -> PeerReport:
        """Return a peer with its rounds, which show that it lives even if nothing is fetched from
        it.
        """
        rounds = self.rounds_with.get(peer.name, 0)
        health = "alive" if rounds and peer.health == "unknown" else peer.health
        heard_s = 0.0 if peer.name in self.in_sync else peer.heard_s
        return peer._replace(rounds=rounds, health=health, heard_s=heard_s)

    @property
    def size(self) -> int | None:
        """The number of members in sync. 0: the node is out of sync. `None`: it has no part in
        rounds.
        """
        return len(self.in_sync) or (None if self.out_of_sync_s is None else 0)


@dataclass(frozen=True)
class NodeReport:
    """The status of a node.

    Attributes:
        time: of its wall clock, in seconds since the epoch.
        dpwa: version of the package.
        protocol: version of the wire.
        versions: of other packages that may differ between nodes, see `installed`.
        clock: updates, interpolated at each merge.
        loss: `None` if it is not known, or has diverged.
        version: of the newest published snapshot.
        rounds_skipped: snapshots that were not published, because readers held every slot.
        memory: bytes, and counts of slots.
        refused, handshakes_refused: number of refusals, by reason.
        clashes: problems with names of nodes, as sentences.
        settings: those that must be equal on all nodes, as texts.
        model: description of the gossiped tensors. `None`: nothing was published yet.
        ending: `None` while it trains.
        membership: `None` without `join`.
        pace: `None` if it averages no gradients.
        state: of state transfer and checkpoints, or `None`.
        sections: of other features, such as the adapter and the run log, by the names in
            `dpwa.features`. In plain data they are next to these attributes.
    """

    name: Text = "?"
    endpoint: Text = "?"
    time: float | None = None
    host: Text = "?"
    pid: int = 0
    dpwa: Text = "?"
    protocol: int | None = None
    versions: Mapping[str, Text] = field(default_factory=dict)
    seed: int = 0
    uptime_s: float = 0.0
    clock: Finite | None = None
    loss: Finite | None = None
    diverged: bool = False
    version: int = 0
    merges: int = 0
    rounds_skipped: int = 0
    memory: Counts = field(default_factory=dict)
    snapshots_served: int = 0
    bytes_sent: Count = 0
    bytes_received: Count = 0
    bad_messages: int = 0
    refused: Counts = field(default_factory=dict)
    late_answers: int = 0
    handshakes_refused: Counts = field(default_factory=dict)
    clashes: tuple[Text, ...] = ()
    connections: Counts = field(default_factory=dict)
    algorithm: Text | None = None
    settings: Mapping[str, Text] = field(default_factory=dict)
    topology: Text | None = None
    group: Text = ""
    model: Details | None = None
    ending: Annotated[EndingReport | None, BeforeValidator(lambda told: told or None)] = None
    news: Details = field(default_factory=dict)
    transactions: Details = field(default_factory=dict)
    gossip: GossipReport = GossipReport()
    pace: PaceReport | None = None
    peers: tuple[PeerReport, ...] = ()
    membership: MembershipReport | None = None
    state: Details | None = None
    sections: Mapping[str, Details] = field(default_factory=dict)

    @property
    def refusals(self) -> dict[str, int]:
        """The number of its refusals, by reason."""
        return {**self.refused, **self.handshakes_refused}

    @property
    def members(self) -> tuple[MemberReport, ...]:
        """The members that it knows, itself among them."""
        return () if self.membership is None else self.membership.members

    @property
    def consensus_distance(self) -> float | None:
        """The distance of its parameters from those of others, which is 0 while it is in sync."""
        if self.pace is not None and len(self.pace.in_sync) > 1:
            return 0.0
        return self.gossip.consensus_distance

    @property
    def checkpoints(self) -> Details:
        """The report of checkpoints. Empty if it writes none."""
        return (self.state or {}).get("checkpoints") or {}

    def plain(self) -> JsonObject:
        """Return plain data, which is sent and which `dpwa status --json` prints."""
        told = {key: _plain(value) for key, value in vars(self).items() if value is not None}
        sections, ending = told.pop("sections"), {} if self.ending is None else told["ending"]
        return {**told, **sections, "loss": self.loss, "model": self.model, "ending": ending}


def _plain(value: Any) -> Any:
    if isinstance(value, PeerReport):
        before_merges = () if value.merges else _OF_MERGES
        return {k: v for k, v in value._asdict().items() if k not in before_merges}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return {key: _plain(item) for key, item in vars(value).items()}
    return value


@cache
def _adapter() -> TypeAdapter[NodeReport]:
    return TypeAdapter(NodeReport)  # on first use: it takes milliseconds, and few nodes need it


def read_report(told: JsonObject) -> NodeReport:
    """Parse a report from a node. It is untrusted, so invalid fields are dropped."""
    told, attempt = copy.deepcopy(told), 0
    told["sections"] = {name: told.get(name) for name in SECTIONS if told.get(name) is not None}
    while True:
        try:
            return _adapter().validate_python(told)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_input=False):
                _leave_out(told, problem["loc"] if attempt == 0 else problem["loc"][:1])
            attempt += 1


def _leave_out(told: Any, place: tuple[int | str, ...]) -> None:
    """Remove the value at a place. An entry of a list becomes empty."""
    *way, last = place
    try:
        for step in way:
            told = told[step]
        told[last] = {}
    except (KeyError, IndexError, TypeError):
        return  # something around it was left out before
    if isinstance(told, dict):
        del told[last]
