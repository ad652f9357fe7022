"""The metrics of a node for Prometheus (`pip install dpwa[metrics]`), served over HTTP."""

from __future__ import annotations

import errno
import io
import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException, parse_headers
from typing import TYPE_CHECKING

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.config import Config
from dpwa.config.endpoints import MAX_PORT
from dpwa.errors import AddressError, UserError
from dpwa.lifecycle import Closeable, finalize
from dpwa.message_codes import get_log
from dpwa.observe.metrics import HISTOGRAMS, METRICS, NodeMetrics
from dpwa.types import JsonObject

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from dpwa.node.node import Node

log = get_log("dpwa.metrics")

REQUEST_TIMEOUT_S = 2.0  # to send a request, and again to take the answer
MOST_REQUEST_BYTES = 16_384
WAITING_REQUESTS = 16
CLOSE_TIMEOUT_S = 3.0
PAUSE_S = 0.1
MOST_PORTS_TRIED = 1024


def collector_of(metrics: NodeMetrics) -> Collector:
    """Return what reads the metrics of a node whenever Prometheus asks.

    Raises:
        UserError: prometheus_client is not installed.
    """
    try:
        from prometheus_client import core
        from prometheus_client.registry import Collector
    except ImportError:
        raise UserError("metrics: needs prometheus_client: pip install dpwa[metrics]") from None

    families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}

    class NodeCollector(Collector):  # type: ignore[misc]
        """Reads nothing but what the node has counted."""

        def collect(self) -> Iterator[core.Metric]:
            """Yield all metrics that are known now."""
            reading = metrics.read()
            if reading is None:
                return
            for metric in METRICS:
                family = families[metric.kind](
                    metric.family, metric.text, labels=metric.labels, unit=metric.unit
                )
                for labels, value in metric.points(reading):
                    family.add_metric(labels, value)
                if family.samples:
                    yield family
            for counted in HISTOGRAMS:
                found = counted.histogram(reading)
                yield core.HistogramMetricFamily(
                    counted.family, counted.text, _buckets(found), found["sum"], unit=counted.unit
                )

    return NodeCollector()


def _buckets(histogram: JsonObject) -> list[tuple[str, float]]:
    bounds = [*map(str, histogram["bounds"]), "+Inf"]
    return list(zip(bounds, itertools.accumulate(histogram["counts"]), strict=True))


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
    return range(next_one, min(next_one + MOST_PORTS_TRIED, MAX_PORT + 1))


class MetricsServer(Closeable):
    """Answers `GET /metrics` in a thread of its own, one request after the other.

    A request that does not come, or an answer that is not taken, holds it up for seconds at most.
    It ends with the node, whether that is closed or forgotten.

    Args:
        node: whose metrics.
        metrics: likewise.
        clock: time source.

    Raises:
        UserError: prometheus_client is not installed.
        AddressError: there is no port to listen on.

    Attributes:
        url: where the metrics are.
    """

    def __init__(self, node: Node, metrics: NodeMetrics, clock: Clock | None = None) -> None:
        collector = collector_of(metrics)
        host = node.config.metrics.host
        self._listener = _listener(host, ports_of(node.config, node.name))
        self.url = f"http://{_authority(*self._listener.getsockname()[:2])}/metrics"
        answering = _Answering(self._listener, _page_of(collector), clock or SystemClock())
        name = f"dpwa-metrics-{node.name}"
        self._thread = threading.Thread(target=answering.run, name=name, daemon=True)
        self._end = finalize(node, _stop, answering, self._thread)
        self._thread.start()
        log.info("%s: metrics at %s", node.name, self.url)

    def report(self) -> JsonObject:
        """Say where they are, for `dpwa status --json`."""
        return {"url": self.url}

    def close(self) -> None:
        """Stop answering; idempotent, takes seconds at the very most."""
        self._end()


class _Answering:
    """What the thread does; it knows of no node."""

    def __init__(
        self, listener: socket.socket, page: Callable[[str, str, str], bytes], clock: Clock
    ) -> None:
        self._listener = listener
        self._page = page
        self._clock = clock
        self._connection: socket.socket | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Answer until the listener is shut down."""
        with self._listener:
            while not self._stopped.is_set():
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # shut down, or there are too many open files
                    self._stopped.wait(PAUSE_S)
                    continue
                self._connection = connection
                with connection:
                    self._answer(connection)
                self._connection = None

    def stop(self) -> None:
        """Have it end now, from any thread."""
        self._stopped.set()
        for open_socket in (self._listener, self._connection):
            if open_socket is not None:
                with suppress(OSError):  # it is closed, or has no other end any more
                    open_socket.shutdown(socket.SHUT_RDWR)

    def _answer(self, connection: socket.socket) -> None:
        try:
            lines = io.BytesIO(_head(connection, Deadline(self._clock, REQUEST_TIMEOUT_S)))
            method, target, _ = lines.readline().decode("latin-1").split()
            headers = parse_headers(lines)
        except (OSError, HTTPException, ValueError) as error:
            log.debug("a request for metrics came to nothing: %s", error)
            return
        try:
            answer = self._page(method, target, headers.get("Accept") or "")
        except Exception:
            log.exception("the metrics could not be told; the node goes on")
            answer = _answer("500 Internal Server Error", "text/plain", b"See the log.\n")
        with suppress(OSError):  # whoever asked does not wait for it
            connection.settimeout(REQUEST_TIMEOUT_S)
            connection.sendall(answer)


def _head(connection: socket.socket, deadline: Deadline) -> bytes:
    """Read a request up to the empty line that ends its headers.

    Raises:
        OSError: it does not come in time.
        ValueError: it does not end, or is too long.
    """
    head = b""
    while b"\r\n\r\n" not in head:
        connection.settimeout(max(deadline.remaining_s(), 0.001))
        part = connection.recv(4096)
        head += part
        if not part or deadline.expired() or len(head) > MOST_REQUEST_BYTES:
            raise ValueError("no whole request came")
    return head


def _page_of(collector: Collector) -> Callable[[str, str, str], bytes]:
    """Return what answers a request: its method, target and `Accept`, to the whole answer."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(collector)

    def page(method: str, target: str, accept: str) -> bytes:
        if target.partition("?")[0] != "/metrics":
            return _answer("404 Not Found", "text/plain", b"The metrics are at /metrics.\n")
        if method != "GET":
            return _answer("405 Method Not Allowed", "text/plain", b"", "Allow: GET\r\n")
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # it asks for a version that is none
            encode, kind = choose_encoder("")
        return _answer("200 OK", kind, encode(registry))

    return page


def _answer(status: str, kind: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


def _listener(host: str, ports: Sequence[int]) -> socket.socket:
    """Listen on the first port that is free.

    Raises:
        AddressError: none is, or the host is not of this machine.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise AddressError(f"metrics: cannot listen on {host}: {reason}") from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address[0], port))
            listener.listen(WAITING_REQUESTS)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise AddressError(
                    f"metrics: cannot listen on {_authority(host, port)}: {error.strerror}"
                ) from None
        else:
            return listener
    which = f"port {ports[0]}" if len(ports) == 1 else f"every port from {ports[0]} on"
    raise AddressError(
        f"metrics: {which} of {host} is taken: set `metrics: {{port: ...}}` to another one, or to "
        "0 for any"
    )


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _stop(answering: _Answering, thread: threading.Thread) -> None:
    answering.stop()
    if thread is not threading.current_thread():  # it has dropped the last reference to the node
        thread.join(CLOSE_TIMEOUT_S)
