"""The metrics of a node for Prometheus (the extra `metrics`): the one list, and its HTTP server.

Names and labels are as Prometheus has them; docs/watch.md has a table.
"""

from __future__ import annotations

import errno
import io
import itertools
import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from dpwa.config import Config
from dpwa.config.endpoints import MAX_PORT, split_tcp
from dpwa.errors import AddressError, from_extra
from dpwa.lifecycle import Closeable, finalize
from dpwa.node.report import HistogramReport, NodeReport, PeerReport
from dpwa.observe.figures import FIGURES, INDEX, MEMORY_PARTS, figures_of
from dpwa.policy.health import Health
from dpwa.policy.members.states import MemberStatus
from dpwa.transport.addresses import is_name
from dpwa.types import JsonObject

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from dpwa.node.node import Node

log = logging.getLogger("dpwa.metrics")

REQUEST_TIMEOUT_S = 2.0  # of silence before a request has come, and to take its answer
MAX_REQUEST_BYTES = 16_384
MAX_CONNECTIONS = 64  # each of which has a thread
PLACE_TIMEOUT_S = 1.0  # for a connection to end that a new one has taken the place of
WAITING_REQUESTS = 16
PAUSE_S = 0.1
MAX_PORTS_TRIED = 1024


MAX_PEERS = 64  # with a name of their own
OTHER = "other"  # all others, added up

_ACTIVITIES = ("train", "publish", "wait", "merge")
_PEER_COUNTERS = ("bytes_received", "bytes_sent", "merges")

Labels = tuple[str, ...]  # values of labels
Page = Callable[[str], tuple[str, bytes]]  # of an `Accept`: the kind and the body of the answer


@dataclass(frozen=True)
class Reading:
    """What a node said of itself at one moment.

    Attributes:
        report: of the node.
        figures: of the report.
        peers: what was counted of each peer, in the order of `_PEER_COUNTERS`.
    """

    report: NodeReport
    figures: tuple[float, ...]
    peers: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: without prefix, unit and suffix.
        kind: as Prometheus has it.
        unit: base unit, in words; empty for what has none.
        text: what it is.
        read: finds its values, and those of their labels.
        labels: names of the labels.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str
    read: Callable[[Reading], Iterable[tuple[Labels, float | None]]]
    labels: Labels = ()

    @property
    def family(self) -> str:
        """Its name in Prometheus, to which a counter adds `_total`."""
        return _family(self.name, self.unit)

    def points(self, reading: Reading) -> list[tuple[Labels, float]]:
        """Return the values that are known, each with the values of its labels."""
        return [
            (labels, value)
            for labels, value in self.read(reading)
            if value is not None and not math.isnan(value)
        ]


@dataclass(frozen=True)
class HistogramMetric:
    """A metric that counts values by upper bounds.

    Attributes:
        name, unit, text: as of a `Metric`.
        key: of the histogram, among what the report tells of the gossip.
    """

    name: str
    unit: str
    text: str
    key: str

    @property
    def family(self) -> str:
        """Its name in Prometheus."""
        return _family(self.name, self.unit)


def _family(name: str, unit: str) -> str:
    return f"dpwa_{name}_{unit}" if unit else f"dpwa_{name}"


def _figure(figure: str, unit: str = "", name: str = "") -> Metric:
    """Return the metric that is one of the figures of a node."""
    index = INDEX[figure]
    found = FIGURES[index]
    return Metric(
        name or figure, found.kind, unit, found.text, lambda reading: [((), reading.figures[index])]
    )


def _activity_seconds(reading: Reading) -> Iterator[tuple[Labels, float]]:
    for activity in _ACTIVITIES:
        yield (activity,), reading.figures[INDEX[f"{activity}_s"]]


def _of_peers(counter: str) -> Callable[[Reading], Iterator[tuple[Labels, float]]]:
    index = _PEER_COUNTERS.index(counter)

    def read(reading: Reading) -> Iterator[tuple[Labels, float]]:
        for name, counts in reading.peers.items():
            yield (name,), counts[index]

    return read


def _peers_by_state(reading: Reading) -> Iterator[tuple[Labels, float]]:
    counts = Counter(peer.health for peer in reading.report.peers)
    for health in Health:
        yield (health.value,), counts[health.value]


def _members_by_status(reading: Reading) -> Iterator[tuple[Labels, float]]:
    if reading.report.membership is not None:
        counts = Counter(member.status for member in reading.report.members)
        for status in MemberStatus:
            yield (status.name.lower(),), counts[status.name.lower()]


def _quarantined(reading: Reading) -> Iterator[tuple[Labels, float]]:
    yield (), sum(peer.quarantined for peer in reading.report.peers)


def _refused(reading: Reading) -> Iterator[tuple[Labels, float]]:
    for reason, count in reading.report.refusals.items():
        yield (reason,), count


def _checkpoints(reading: Reading) -> Iterator[tuple[Labels, float]]:
    yield (), reading.report.checkpoints.get("written", 0)


def _memory(reading: Reading) -> Iterator[tuple[Labels, float]]:
    for part in MEMORY_PARTS:
        yield (part.removesuffix("_bytes"),), reading.report.memory[part]


def _node_info(reading: Reading) -> Iterator[tuple[Labels, float]]:
    report = reading.report
    yield (report.name, str(report.algorithm), str(report.topology), report.group), 1


def _build_info(reading: Reading) -> Iterator[tuple[Labels, float]]:
    report = reading.report
    yield (report.dpwa, str(report.protocol), report.versions.get("torch", "")), 1


METRICS = (
    _figure("steps"),
    _figure("merges"),
    _figure("rounds"),
    _figure("in_sync"),
    Metric(
        "activity",
        "counter",
        "seconds",
        "seconds of the training thread, by activity",
        _activity_seconds,
        ("activity",),
    ),
    _figure("loss"),
    _figure("clock", "updates"),
    _figure("version", name="snapshot_version"),
    _figure("consensus_distance"),
    Metric(
        "received",
        "counter",
        "bytes",
        "bytes of snapshots, of values in collectives and of other payload received from each "
        "peer, without mapped bytes",
        _of_peers("bytes_received"),
        ("peer",),
    ),
    Metric(
        "sent",
        "counter",
        "bytes",
        "bytes of snapshots and of values in collectives sent to each peer, without mapped bytes",
        _of_peers("bytes_sent"),
        ("peer",),
    ),
    _figure("merged_bytes", "bytes", "merged"),
    _figure("mapped_bytes", "bytes", "mapped"),
    Metric(
        "peer_merges",
        "counter",
        "",
        "merged snapshots of each peer",
        _of_peers("merges"),
        ("peer",),
    ),
    Metric("peers", "gauge", "", "known peers, by state", _peers_by_state, ("state",)),
    Metric(
        "quarantined_peers",
        "gauge",
        "",
        "peers in quarantine, which are not merged for now",
        _quarantined,
    ),
    Metric(
        "members",
        "gauge",
        "",
        "members of the cluster, with this node (`join`)",
        _members_by_status,
        ("status",),
    ),
    Metric(
        "refused",
        "counter",
        "",
        "refused messages and connections, by reason",
        _refused,
        ("reason",),
    ),
    _figure("skipped", name="skipped_snapshots"),
    Metric("checkpoints", "counter", "", "written checkpoints", _checkpoints),
    Metric(
        "memory",
        "gauge",
        "bytes",
        "memory of snapshots and codecs, by use",
        _memory,
        ("use",),
    ),
    Metric(
        "node_info",
        "gauge",
        "",
        "always 1; the labels describe the node",
        _node_info,
        ("node", "algorithm", "topology", "group"),
    ),
    Metric(
        "build_info",
        "gauge",
        "",
        "always 1; the labels give the versions",
        _build_info,
        ("version", "protocol", "torch"),
    ),
)
HISTOGRAMS = (
    HistogramMetric("wait", "seconds", "seconds that updates waited for a snapshot", "waits"),
    HistogramMetric(
        "staleness",
        "updates",
        "updates by which merged snapshots were behind; a snapshot that is ahead counts as 0",
        "staleness",
    ),
)


class PeerCounters:
    """What was counted of each peer, of which only so many have a name; for any thread.

    A peer has a name of its own if there was room for one when it came into view, and keeps it as
    long as it is there. What all others are counted for is added up, and never falls.

    Args:
        most: names at once.
    """

    def __init__(self, most: int = MAX_PEERS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._named: set[str] = set()
        self._unnamed: dict[str, tuple[int, ...]] = {}  # what was counted of them before
        self._others: tuple[int, ...] = ()

    def take(self, peers: Iterable[PeerReport]) -> dict[str, tuple[int, ...]]:
        """Return the counters of each peer in view, and of all without a name under `OTHER`."""
        found = {peer.name: tuple(getattr(peer, key) for key in _PEER_COUNTERS) for peer in peers}
        with self._lock:
            before, self._unnamed = self._unnamed, {}
            self._named &= found.keys()
            for name in found:
                if name not in before and name != OTHER and len(self._named) < self._most:
                    self._named.add(name)
            for name in found.keys() - self._named:
                self._unnamed[name] = found[name]
                self._add(found[name], before.get(name))
            rows = {name: found[name] for name in found if name in self._named}
            return {**rows, OTHER: self._others} if self._others else rows

    def _add(self, now: tuple[int, ...], before: tuple[int, ...] | None) -> None:
        was = before or (0,) * len(now)
        # Who was out of view for a moment has begun again at 0.
        grown = [new - old if new >= old else new for new, old in zip(now, was, strict=True)]
        others = self._others or (0,) * len(now)
        self._others = tuple(map(sum, zip(others, grown, strict=True)))


def collector_of(condition: Callable[[], NodeReport | None]) -> Collector:
    """Return what reads the metrics of a node whenever Prometheus asks.

    Args:
        condition: describes the node; `None` once it is gone.

    Raises:
        UserError: prometheus_client is not installed.
    """
    with from_extra("metrics", "metrics: needs prometheus_client [DPWA-E252]"):
        from prometheus_client import core
        from prometheus_client.registry import Collector

    peers = PeerCounters()
    families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}

    class NodeCollector(Collector):  # type: ignore[misc]
        """Reads nothing but what the node has counted."""

        def collect(self) -> Iterator[core.Metric]:
            """Yield all metrics that are known now."""
            report = condition()
            if report is None:
                return
            reading = Reading(report, figures_of(report), peers.take(report.peers))
            for metric in METRICS:
                family = families[metric.kind](
                    metric.family, metric.text, labels=metric.labels, unit=metric.unit
                )
                for labels, value in metric.points(reading):
                    family.add_metric(labels, value)
                if family.samples:
                    yield family
            for counted in HISTOGRAMS:
                found: HistogramReport = getattr(report.gossip, counted.key)
                yield core.HistogramMetricFamily(
                    counted.family, counted.text, _buckets(found), found.sum, unit=counted.unit
                )

    return NodeCollector()


def _buckets(histogram: HistogramReport) -> list[tuple[str, float]]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, itertools.accumulate(histogram.counts), strict=True))


def ports_of(config: Config, name: str) -> Sequence[int]:
    """Return the ports on which a node may serve its metrics; it takes the first that is free.

    One that is listed has one port; others have those after the listed ones.
    """
    first = config.metrics.port
    names = [node.name for node in config.nodes]
    if not first:
        return (0,)
    if name in names:
        return (first + names.index(name),)
    next_one = min(first + len(names), MAX_PORT)
    return range(next_one, min(next_one + MAX_PORTS_TRIED, MAX_PORT + 1))


class MetricsServer(Closeable):
    """Answers `GET /metrics` in threads of its own, one for each connection.

    Who asks by a name that is not of this machine is refused: a web page of elsewhere could read
    it through a name of its own. It ends with the node, whether that is closed or forgotten. The
    page is prometheus_client's; its server takes any `Host`, and bounds neither time nor threads.

    Args:
        node: whose metrics.

    Raises:
        UserError: prometheus_client is not installed.
        AddressError: there is no port to listen on.

    Attributes:
        url: where the metrics are.
    """

    def __init__(self, node: Node) -> None:
        page = _page_of(collector_of(node.weak_condition))
        host, ports = node.config.metrics.host, ports_of(node.config, node.name)
        address = split_tcp(node.endpoint) or ("localhost", 0)
        names = {host, address[0], socket.gethostname(), "localhost"}
        server = _listening(host, ports, page, {each.lower() for each in names})
        self.url = f"http://{_authority(*server.socket.getsockname()[:2])}/metrics"
        name = f"dpwa-metrics-{node.name}"
        threading.Thread(target=server.serve_forever, name=name, daemon=True).start()
        self._end = finalize(node, server.stop)
        node.describe("metrics", self.report)
        log.info("%s: metrics at %s", node.name, self.url)

    def report(self) -> JsonObject:
        """Say where they are, for `dpwa status --json`."""
        return {"url": self.url}

    def close(self) -> None:
        """Stop answering; idempotent, takes seconds at the very most."""
        self._end()


class _Server(ThreadingTCPServer):
    """Has a thread for each connection, and at most so many of them; it knows of no node.

    The server of http.server would ask for the full name of the host, which may take long.
    """

    allow_reuse_address = daemon_threads = True
    request_queue_size = WAITING_REQUESTS

    def __init__(
        self, address: tuple[str, int], family: socket.AddressFamily, page: Page, names: set[str]
    ) -> None:
        self.address_family = family
        self.page = page
        self.names = names
        self._open: dict[Any, None] = {}  # the oldest first
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        super().__init__(address, _Request)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:  # there are too many open files: not again at once
            time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; of too many connections the oldest is broken off for a new one."""
        if len(self._open) >= MAX_CONNECTIONS:
            _break_off(*list(self._open)[:1])
        if self._free.acquire(timeout=PLACE_TIMEOUT_S):
            self._open[request] = None
            super().process_request(request, client_address)
        else:
            request.close()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        if request in self._open:
            del self._open[request]
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a request for metrics came to nothing", exc_info=True)

    def stop(self) -> None:
        """Have all threads end now."""
        _break_off(self.socket)  # wakes `serve_forever`
        self.shutdown()
        self.server_close()
        _break_off(*list(self._open))


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT_S
    server_version, sys_version = "dpwa", ""
    default_request_version = "HTTP/1.0"  # even an answer to nonsense says what it is

    def setup(self) -> None:
        """Take the head of the request; one that is too long is as good as none."""
        super().setup()
        head = b""
        with self.rfile as coming:
            while b"\r\n\r\n" not in head and (part := coming.read1(4096)):
                head = head + part if len(head) <= MAX_REQUEST_BYTES else b"\r\n\r\n"
        self.rfile = io.BytesIO(head)

    def do_GET(self) -> None:
        if not _is_of_this_machine(self.headers.get("Host"), self.server.names):
            explain = "Ask by an address, or by the name of this machine."
            self.send_error(HTTPStatus.FORBIDDEN, explain=explain)
        elif self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, explain="The metrics are at /metrics.")
        else:
            self._answer()

    def do_POST(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug(format, *args)

    def _answer(self) -> None:
        try:
            kind, body = self.server.page(self.headers.get("Accept") or "")
        except Exception:
            log.exception("the metrics could not be told; the node goes on [DPWA-W067]")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain="See the log.")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _is_of_this_machine(host: str | None, names: Collection[str]) -> bool:
    """Tell whether a `Host` is an address or one of the names; browsers always send one."""
    if host is None:
        return True
    with suppress(ValueError):
        asked = urlsplit(f"//{host}").hostname or ""
        return asked.rstrip(".") in names or not is_name(asked)
    return False


def _page_of(collector: Collector) -> Page:
    """Return what makes the kind and the body of an answer of an `Accept`, one at a time.

    However many ask, only one thread competes with the training for Python's lock.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(collector)
    one_at_a_time = threading.Lock()

    def page(accept: str) -> tuple[str, bytes]:
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # it asks for a version that is none
            encode, kind = choose_encoder("")
        with one_at_a_time:
            return kind, encode(registry)

    return page


def _listening(host: str, ports: Sequence[int], page: Page, names: set[str]) -> _Server:
    """Listen on the first port that is free.

    Raises:
        AddressError: none is, or the host is not of this machine.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise AddressError(f"metrics: cannot listen on {host}: {reason} [DPWA-E254]") from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    for port in ports:
        try:
            return _Server((str(address[0]), port), family, page, names)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise AddressError(
                    f"metrics: cannot listen on {_authority(host, port)}: {error.strerror}"
                    " [DPWA-E254]"
                ) from None
    which = f"port {ports[0]}" if len(ports) == 1 else f"every port from {ports[0]} on"
    raise AddressError(
        f"metrics: {which} of {host} is taken: set `metrics: {{port: ...}}` to another one, or to "
        "0 for any [DPWA-E253]"
    )


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _break_off(*connections: socket.socket) -> None:
    """Wake the threads that wait for these sockets."""
    for connection in connections:
        with suppress(OSError):  # it is closed
            connection.shutdown(socket.SHUT_RDWR)
