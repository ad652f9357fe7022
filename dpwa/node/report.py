"""NodeReport: the status of a node. It is created once, and then sent, logged and shown."""

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
Details = Mapping[str, Any]  # data for people; no code reads them

_OF_MERGES = ("merged_s", "staleness", "clock", "loss", "version")
_NONE: Counts = {}
SECTIONS = tuple(each.section for each in FEATURES if each.section)
_DRIVER = Path("/sys/module/nvidia/version")


@cache
def installed() -> Mapping[str, str]:
    """Return the versions of Python and, if installed, of torch and of the NVIDIA driver."""
    found = {"python": platform.python_version()}
    with suppress(metadata.PackageNotFoundError):
        found["torch"] = metadata.version("torch")  # without the import, which takes seconds
    with suppress(OSError):
        found["driver"] = _DRIVER.read_text().strip()
    return found


class PeerReport(NamedTuple):  # many are created, and a frozen dataclass takes four times as long
    """The status of a peer, as far as a node knows it.

    Attributes:
        health: see `policy.health`.
        problem: why the peer is not connected, or refused. Empty if it is neither.
        heard_s: seconds since the peer's last sign of life. `None`: never. NaN: not reported.
        fetch_s: seconds that a fetch from the peer takes.
        latency_ms: milliseconds until the peer answers.
        bandwidth_mbps: rate of the peer's stream, in megabits per second.
        bytes_received: payloads and values of collectives from the peer, without mapped bytes.
        bytes_sent: snapshots and values of collectives to the peer.
        bytes_mapped: snapshots and values of collectives that were read from the peer's memory.
        rounds: number of rounds in which this node averaged gradients with the peer.
        outcomes: number of fetches by their outcome.
        score: the score of flow control, up to 1000.
        quarantined: whether the peer is in quarantine.
        rests: whether this node does not ask the peer for a while, because fetches have failed.
        merges: number of merges of the peer's snapshots. While 0, the fields below are `None`.
        merged_s: seconds since the last merge.
        staleness: updates by which the peer was behind at that merge. Negative if it was ahead.
        clock, loss, version: clock, loss and version of the peer at that merge.
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
        """Whether the peer is alive, as far as the reporting node knows."""
        return self.health in ("alive", "behind")

    @property
    def is_gone(self) -> bool:
        """Whether the peer is gone, as far as the reporting node knows."""
        return self.health in ("finished", "left", "unreachable", "silent")


@dataclass(frozen=True)
class HistogramReport:
    """A histogram: a count for each upper bound, and one for larger values. None is cumulative."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum: float = 0.0


@dataclass(frozen=True)
class GossipReport:
    """The counts of the training thread and its fetches since the process started.

    Attributes:
        steps: number of updates.
        train_s, publish_s, wait_s, merge_s: seconds in each activity of the training thread.
        step_changes_s2: sum of squared differences between the seconds of successive steps.
        merged_bytes: bytes of merged snapshots, mapped or received.
        taken_bytes: bytes of peers' values in collectives, such as gradients, mapped or received.
        mapped_bytes: bytes of both kinds that were read from the memory of peers.
        consensus_distance: distance to the last merged peer. `None`: not measured.
        waits: seconds that updates waited for a snapshot.
        staleness: number of updates by which merged snapshots were behind.
        fetches, answer_s: number of requests whose answers were timed, and seconds until them.
        streams, stream_s: number of streamed snapshots, and the seconds of their streams.
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
    """One entry of a node's list of members, with a status from `policy.members.states`."""

    name: Text = "?"
    endpoint: Text = "?"
    status: Text = "unknown"
    incarnation: int = 0
    version: int = 0


@dataclass(frozen=True)
class MembershipReport:
    """The members of a run, including this node.

    Attributes:
        components: number of parts into which the run seems to have split.
        waits: whether this node waits for others.
        changes: number of times that the members have changed so far.
        view: digest of the members, in hexadecimal.
    """

    members: tuple[MemberReport, ...] = ()
    components: int = 1
    waits: bool = False
    changes: int = 0
    view: Text = ""


@dataclass(frozen=True)
class EndingReport:
    """The state of a node after the last training step.

    Attributes:
        is_over: whether the node has finished.
        problem: the problem of the node, or "".
        waits_for: names of the nodes for which this node waits.
        rest: digests of the node's training state apart from the parameters.
    """

    is_over: bool = False
    problem: str = ""
    waits_for: tuple[str, ...] = ()
    rest: Details = field(default_factory=dict)


@dataclass(frozen=True)
class PaceReport:
    """Statistics of the rounds in which a node averages gradients with other nodes.

    Attributes:
        in_pace: names of the members that are in sync, including this node. Empty if this node is
            out of sync.
        rounds: number of rounds in which this node averaged with others so far.
        seconds: seconds in rounds so far.
        patience_s: maximum seconds to wait for each other member.
        out_of_sync_s: seconds since this node dropped out of sync. `None`: it is in sync, or takes
            no part in rounds (not yet, or no more).
        rounds_with: number of rounds with each of the others so far.
    """

    in_pace: tuple[str, ...] = ()
    rounds: int = 0
    seconds: float = 0.0
    patience_s: Mapping[str, float] = field(default_factory=dict)
    out_of_sync_s: Finite | None = None
    rounds_with: Counts = field(default_factory=dict)

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The members in sync now, including this node. Empty before the first round."""
        return self.in_pace if self.rounds else ()

    def of_peer(self, peer: PeerReport) -> PeerReport:
        """Return a peer's report, with the number of gradient rounds of the peer and this node. A
        peer with such rounds is alive, even without a fetch.
        """
        rounds = self.rounds_with.get(peer.name, 0)
        health = "alive" if rounds and peer.health == "unknown" else peer.health
        heard_s = 0.0 if peer.name in self.in_sync else peer.heard_s
        return peer._replace(rounds=rounds, health=health, heard_s=heard_s)

    @property
    def size(self) -> int | None:
        """The number of members in sync. 0: this node is out of sync. `None`: not in rounds."""
        return len(self.in_sync) or (None if self.out_of_sync_s is None else 0)


@dataclass(frozen=True)
class NodeReport:
    """The status of a node.

    Attributes:
        time: wall clock of the node, in seconds since the epoch.
        dpwa: version of the package.
        protocol: version of the wire protocol.
        versions: versions of other packages that may differ between nodes, see `installed`.
        clock: number of updates, interpolated at each merge.
        loss: loss of the node. `None` if it is unknown, or has diverged.
        version: version of the newest published snapshot.
        rounds_skipped: snapshots that were not published, because readers held every slot.
        memory: bytes, and counts of slots.
        refused, handshakes_refused: number of refusals, by reason.
        clashes: problems with names of nodes, as sentences.
        settings: settings that must be equal on all nodes, as texts.
        model: description of the gossiped tensors. `None`: nothing was published yet.
        ending: how the node ends. `None` while it trains.
        membership: the members. `None` without `join`.
        pace: rounds of averaged gradients. `None` if the node averages no gradients.
        state: report of state transfer and checkpoints, or `None`.
        sections: reports of other features, such as the adapter and the run log, by the names in
            `dpwa.features`. In plain data, they are next to these attributes.
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
        """The number of messages and handshakes that the node has refused, by reason."""
        return {**self.refused, **self.handshakes_refused}

    @property
    def members(self) -> tuple[MemberReport, ...]:
        """The members that the node knows, including itself."""
        return () if self.membership is None else self.membership.members

    @property
    def consensus_distance(self) -> float | None:
        """The distance between the parameters of the node and a peer. In sync, it is 0."""
        if self.pace is not None and len(self.pace.in_sync) > 1:
            return 0.0
        return self.gossip.consensus_distance

    @property
    def checkpoints(self) -> Details:
        """The report of checkpoints. Empty if the node writes none."""
        return (self.state or {}).get("checkpoints") or {}

    def plain(self) -> JsonObject:
        """Return plain data, to be sent to others and printed by `dpwa status --json`."""
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
    """Parse a report of a node. The report is untrusted, so invalid fields are dropped."""
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
    """Remove the value at a place in a report. An entry of a list becomes an empty mapping."""
    *way, last = place
    try:
        for step in way:
            told = told[step]
        told[last] = {}
    except (KeyError, IndexError, TypeError):
        return  # a value around it was already removed
    if isinstance(told, dict):
        del told[last]
