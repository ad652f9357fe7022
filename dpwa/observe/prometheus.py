"""The metrics of a node for Prometheus, and their HTTP server. They need the extra `metrics`.

Names and labels follow the conventions of Prometheus. docs/watch.md has a table of all metrics.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dpwa.config import Config
from dpwa.config.endpoints import MAX_PORT, split_tcp, tcp_endpoint
from dpwa.errors import AddressError, from_extra
from dpwa.lifecycle import Closeable, finalize
from dpwa.node.report import HistogramReport, NodeReport, PeerReport
from dpwa.observe.figures import FIGURES, INDEX, MEMORY_PARTS, figures_of
from dpwa.observe.rates import ACTIVITIES
from dpwa.policy.health import Health
from dpwa.policy.members.states import MemberStatus
from dpwa.transport.addresses import is_name, listening
from dpwa.types import JsonObject

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from dpwa.node.node import Node

log = logging.getLogger("dpwa.metrics")

REQUEST_TIMEOUT_S = 2.0  # maximum wait for the next bytes of a request, and to send its answer
WAITING_REQUESTS = 16
MAX_CONNECTIONS = 64  # each connection has a thread
MAX_PORTS_TRIED = 1024
MAX_PEERS = 64  # peers with their own series
OTHER = "other"  # label of the sum of all other peers

_PEER_COUNTERS = ("bytes_received", "bytes_sent", "merges")

PeerCounts = Mapping[str, tuple[int, ...]]  # by peer, values in the order of `_PEER_COUNTERS`


def metrics_of(report: NodeReport, peers: PeerCounts) -> Iterator[Metric]:
    """Yield all metrics of a node. An unknown metric has no samples."""
    from prometheus_client import core

    families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
    figures = figures_of(report)

    def figure(name: str, unit: str = "", shown: str = "") -> Metric:
        spec, value = FIGURES[INDEX[name]], figures[INDEX[name]]
        family = families[spec.kind](f"dpwa_{shown or name}", spec.text, unit=unit)
        if not math.isnan(value):
            family.add_metric((), value)
        return family

    def labelled(
        kind: str, name: str, text: str, label: str, values: Mapping[str, float], unit: str = ""
    ) -> Metric:
        family = families[kind](f"dpwa_{name}", text, labels=(label,), unit=unit)
        for of, value in values.items():
            family.add_metric((of,), value)
        return family

    def of_peers(counter: str, name: str, text: str, unit: str = "") -> Metric:
        index = _PEER_COUNTERS.index(counter)
        values = {peer: counts[index] for peer, counts in peers.items()}
        return labelled("counter", name, text, "peer", values, unit)

    yield figure("steps")
    yield figure("merges")
    yield figure("rounds")
    yield figure("in_sync")
    spent = {activity: figures[INDEX[f"{activity}_s"]] for activity in ACTIVITIES}
    text = "seconds that the training thread spent on each activity"
    yield labelled("counter", "activity", text, "activity", spent, "seconds")
    yield figure("loss")
    yield figure("clock", "updates")
    yield figure("version", shown="snapshot_version")
    yield figure("consensus_distance")
    text = (
        "bytes of snapshots, of values in collectives and of other payload received from each "
        "peer, without mapped bytes"
    )
    yield of_peers("bytes_received", "received", text, "bytes")
    text = "bytes of snapshots and of values in collectives sent to each peer, without mapped bytes"
    yield of_peers("bytes_sent", "sent", text, "bytes")
    yield figure("merged_bytes", "bytes")
    yield figure("mapped_bytes", "bytes")
    yield of_peers("merges", "peer_merges", "merged snapshots of each peer")
    healths = Counter(peer.health for peer in report.peers)
    states = {health.value: healths[health.value] for health in Health}
    yield labelled("gauge", "peers", "known peers, by state", "state", states)
    yield core.GaugeMetricFamily(
        "dpwa_quarantined_peers",
        "peers in quarantine, which are not merged for now",
        sum(peer.quarantined for peer in report.peers),
    )
    found = Counter(member.status for member in report.members)
    known = [] if report.membership is None else [status.name.lower() for status in MemberStatus]
    text = "members of the cluster, including this node (`join`)"
    yield labelled("gauge", "members", text, "status", {s: found[s] for s in known})
    text = "refused messages and connections, by reason"
    yield labelled("counter", "refused", text, "reason", report.refusals)
    yield figure("skipped", shown="skipped_snapshots")
    written = report.checkpoints.get("written", 0)
    yield core.CounterMetricFamily("dpwa_checkpoints", "written checkpoints", written)
    memory = {part.removesuffix("_bytes"): report.memory[part] for part in MEMORY_PARTS}
    text = "memory of snapshots and codecs, by use"
    yield labelled("gauge", "memory", text, "use", memory, "bytes")
    yield core.InfoMetricFamily(
        "dpwa_node",
        "always 1. The labels describe the node",
        {
            "node": report.name,
            "algorithm": str(report.algorithm),
            "topology": str(report.topology),
            "group": report.group,
        },
    )
    yield core.InfoMetricFamily(
        "dpwa_build",
        "always 1. The labels give the versions",
        {
            "version": report.dpwa,
            "protocol": str(report.protocol),
            "torch": report.versions.get("torch", ""),
        },
    )
    text = "seconds that updates waited for a snapshot"
    waits, staleness = _counted(report.gossip.waits), _counted(report.gossip.staleness)
    yield core.HistogramMetricFamily("dpwa_wait", text, *waits, unit="seconds")
    text = "updates by which merged snapshots were behind. A snapshot that is ahead counts as 0"
    yield core.HistogramMetricFamily("dpwa_staleness", text, *staleness, unit="updates")


def _counted(histogram: HistogramReport) -> tuple[list[tuple[str, float]], float]:
    """Return a histogram's buckets (upper bound, cumulative count), and the sum of its values."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    counts = itertools.accumulate(histogram.counts)
    return list(zip(bounds, counts, strict=True)), histogram.sum


class PeerCounters:
    """The counters of each peer, for a limited number of peers. The others are summed up.

    A new peer gets its own series if there are fewer than `most`, and keeps the series until the
    peer is gone. The sum over all other peers never falls.

    Args:
        most: maximum number of peers with their own series.
    """

    def __init__(self, most: int = MAX_PEERS) -> None:
        self._most = most
        self._named: set[str] = set()
        self._unnamed: dict[str, tuple[int, ...]] = {}  # their counters at the last call
        self._others: tuple[int, ...] = ()

    def take(self, peers: Iterable[PeerReport]) -> dict[str, tuple[int, ...]]:
        """Return the counters by peer. The entry `OTHER` is the sum over peers without an entry."""
        found = {peer.name: tuple(getattr(peer, key) for key in _PEER_COUNTERS) for peer in peers}
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
        # The counters of a peer start again at 0 if the peer was gone for a moment.
        grown = [new - old if new >= old else new for new, old in zip(now, was, strict=True)]
        others = self._others or (0,) * len(now)
        self._others = tuple(map(sum, zip(others, grown, strict=True)))


class NodeCollector:
    """Computes the metrics of a node from its newest report, for each request of Prometheus.

    Args:
        condition: returns the report of the node, or `None` once the node is gone.
    """

    def __init__(self, condition: Callable[[], NodeReport | None]) -> None:
        self._condition = condition
        self._peers = PeerCounters()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with known values."""
        report = self._condition()
        if report is not None:
            metrics = metrics_of(report, self._peers.take(report.peers))
            yield from (metric for metric in metrics if metric.samples)


def ports_of(config: Config, name: str) -> Sequence[int]:
    """Return the ports on which a node may serve its metrics. The node uses the first free port.

    A node in `nodes` has one port. A node that is not listed has all ports after these.
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
    """Answers `GET /metrics` on separate threads.

    The server refuses requests with a `Host` that is no name of this machine. Otherwise a web page
    could read the metrics through its own host name (DNS rebinding). The server stops when the node
    is closed or garbage-collected.

    Args:
        node: the node of the metrics.

    Raises:
        UserError: prometheus_client is not installed.
        AddressError: there is no port to listen on.

    Attributes:
        url: address of the metrics.
    """

    def __init__(self, node: Node) -> None:
        with from_extra("metrics", "metrics: needs prometheus_client [DPWA-E252]"):
            import prometheus_client  # noqa: F401
        host, ports = node.config.metrics.host, ports_of(node.config, node.name)
        address = split_tcp(node.endpoint) or ("localhost", 0)
        names = (host, address[0], socket.gethostname(), "localhost")
        collector = NodeCollector(node.weak_condition)
        server = _Server(_listening(host, ports), collector, {name.lower() for name in names})
        self.url = f"http://{_authority(*server.socket.getsockname()[:2])}/metrics"
        name = f"dpwa-metrics-{node.name}"
        threading.Thread(target=server.serve_forever, name=name, daemon=True).start()
        self._end = finalize(node, server.stop)
        node.describe("metrics", self.report)
        log.info("%s: metrics at %s", node.name, self.url)

    def report(self) -> JsonObject:
        """Return the address of the metrics, for `dpwa status --json`."""
        return {"url": self.url}

    def close(self) -> None:
        """Stop the server. This is idempotent, and takes at most some seconds."""
        self._end()


class _Server(ThreadingTCPServer):
    """Has a thread for each connection, so that a slow client does not delay other scrapes.

    It holds no reference to the node. The server of http.server would look up the host's full name.
    """

    daemon_threads = True

    def __init__(
        self, listener: socket.socket, collector: NodeCollector, names: Collection[str]
    ) -> None:
        super().__init__(listener.getsockname(), _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.collector = collector
        self.names = names
        self.encoding = threading.Lock()  # so that only one thread competes with the training
        self._open: dict[Any, None] = {}  # open connections, oldest first

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a new thread. If there are too many connections, close the oldest."""
        if len(self._open) >= MAX_CONNECTIONS:
            _break_off(*list(self._open)[:1])
        self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a request for metrics failed", exc_info=True)

    def stop(self) -> None:
        """Stop at once, regardless of open connections."""
        _break_off(self.socket)  # wakes `serve_forever`
        self.shutdown()
        self.server_close()
        _break_off(*list(self._open))


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT_S
    default_request_version = "HTTP/1.0"  # for a status line in each answer
    server_version, sys_version = "dpwa", ""

    def do_GET(self) -> None:
        if not _is_of_this_machine(self.headers.get("Host"), self.server.names):
            explain = "Use an IP address or a name of this machine in the URL."
            self.send_error(HTTPStatus.FORBIDDEN, explain=explain)
        elif self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, explain="The metrics are at /metrics.")
        else:
            self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug(format, *args)

    def _answer(self) -> None:
        from prometheus_client.exposition import choose_encoder

        try:
            encode, kind = choose_encoder(self.headers.get("Accept") or "")
        except (TypeError, ValueError):  # the request names an invalid version
            encode, kind = choose_encoder("")
        try:
            with self.server.encoding:
                body = encode(self.server.collector)
        except Exception:
            log.exception("the metrics could not be collected. The node continues [DPWA-W067]")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain="See the log.")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _is_of_this_machine(host: str | None, names: Collection[str]) -> bool:
    """Return whether an HTTP `Host` is absent (no browser), an IP address, or a name in `names`."""
    if host is None:
        return True
    with suppress(ValueError):
        asked = urlsplit(f"//{host}").hostname or ""
        return asked.rstrip(".") in names or not is_name(asked)
    return False


def _listening(host: str, ports: Sequence[int]) -> socket.socket:
    """Return a socket that listens on the first free port.

    Raises:
        AddressError: no port is free, or this machine does not have the host.
    """
    for port in ports:
        try:
            return listening(host, port, WAITING_REQUESTS)
        except UnicodeError:
            reason = f"{host}, because this is not a valid host name"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            reason = f"{_authority(host, port)} ({error.strerror})"
        raise AddressError(f"metrics: cannot listen on {reason} [DPWA-E254]")
    which = f"port {ports[0]}" if len(ports) == 1 else f"every port from {ports[0]} to {ports[-1]}"
    raise AddressError(
        f"metrics: {which} of {host} is in use. Set `metrics: {{port: ...}}` to a free port, or to "
        "0 for any free port [DPWA-E253]"
    )


def _break_off(*connections: socket.socket) -> None:
    """Shut down sockets, so that the threads that wait for these sockets wake up."""
    for connection in connections:
        with suppress(OSError):  # it is closed
            connection.shutdown(socket.SHUT_RDWR)


def _authority(host: str, port: int) -> str:
    return tcp_endpoint(host, port).removeprefix("tcp://")
