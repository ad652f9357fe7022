"""The metrics of a node for OpenTelemetry (the extra `otel`), sent by OTLP over HTTP.

The settings are the variables of OpenTelemetry, docs/metrics.md names them. There is no instrument
for counts that exist already, in histograms above all: so the same list that Prometheus gets is
put into the data model of the SDK, and handed to its exporter.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import dpwa
from dpwa.lifecycle import Closeable, finalize
from dpwa.observe.metrics import HISTOGRAMS, METRICS, NodeMetrics, Reading

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

    from dpwa.node.node import Node

log = logging.getLogger("dpwa.metrics")

INTERVAL_MS = 60_000.0
LAST_EXPORT_S = 2.0  # for what is sent when the node is closed
CLOSE_TIMEOUT_S = 3.0
UNITS = {"": "1", "bytes": "By", "seconds": "s", "updates": "{update}"}

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def sender_of(
    node: Node, metrics: NodeMetrics, environ: Mapping[str, str] = os.environ
) -> OtlpSender | None:
    """Return what sends the metrics, if the environment names somebody to send them to.

    These variables are often set for other programs: where dpwa cannot do what they say, it says so
    and does nothing.
    """
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = environ.get("OTEL_METRICS_EXPORTER", "").strip() or "otlp"
    if is_off or "otlp" not in exporters.split(",") or not _first(environ, _ENDPOINTS):
        return None
    protocol = _first(environ, _PROTOCOLS) or "http/protobuf"
    if protocol != "http/protobuf":
        log.warning(
            "%s: metrics are not sent by OTLP: expected http/protobuf as its protocol (got %s)"
            " [DPWA-W064]",
            node.name,
            protocol,
        )
        return None
    try:
        return OtlpSender(node, metrics, _interval_s(node.name, environ))
    except ImportError:
        log.warning(
            "%s: %s is set, and metrics are not sent there without the SDK of OpenTelemetry: "
            "pip install -c constraints.txt '.[otel]' [DPWA-W065]",
            node.name,
            next(name for name in _ENDPOINTS if environ.get(name)),
        )
        return None


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environ.get(name, "").strip())), "")


def _interval_s(node: str, environ: Mapping[str, str]) -> float:
    text = environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    try:
        interval_ms = float(text or INTERVAL_MS)
        if 0 < interval_ms < threading.TIMEOUT_MAX:
            return interval_ms / 1e3
    except ValueError:
        pass
    log.warning(
        "%s: OTEL_METRIC_EXPORT_INTERVAL: expected a number of milliseconds (got %s) [DPWA-W066]",
        node,
        text,
    )
    return INTERVAL_MS / 1e3


def _identity_of(node: Node) -> dict[str, str]:
    """Return what its resource says of a node; ranks of one member have one name."""
    told = {"service.instance.id": f"{node.name}@{node.endpoint}", "dpwa.node": node.name}
    if "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        told["service.name"] = os.environ.get("OTEL_SERVICE_NAME") or "dpwa"
    return told


class OtlpSender(Closeable):
    """Sends the metrics of a node now and then, in a thread of its own, and when it is closed.

    Nobody waits for a receiver that does not answer; the SDK logs what it cannot send.

    Args:
        node: whose metrics.
        metrics: likewise.
        interval_s: from one time to the next.

    Raises:
        ImportError: the SDK of OpenTelemetry is not installed.
    """

    def __init__(self, node: Node, metrics: NodeMetrics, interval_s: float) -> None:
        sending = _Sending(_identity_of(node), metrics, interval_s)
        name = f"dpwa-otlp-{node.name}"
        thread = threading.Thread(target=sending.run, name=name, daemon=True)
        self._end = finalize(node, _stop, sending, thread)
        thread.start()
        log.info("%s: metrics go to OTLP every %g s", node.name, interval_s)

    def close(self) -> None:
        """Send what is known now, and end; idempotent, takes seconds at the very most."""
        self._end()


class _Sending:
    """What the thread does; it does not keep the node alive."""

    def __init__(
        self, identity: Mapping[str, str], metrics: NodeMetrics, interval_s: float
    ) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource

        self._resource = Resource.create(identity)
        self._metrics = metrics
        self._interval_s = interval_s
        self._began_ns = time.time_ns()
        self._is_over = threading.Event()
        self._has_given_up = False
        self._exporter = OTLPMetricExporter()

    def run(self) -> None:
        """Send the metrics until it is over, and once more."""
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(self._interval_s)
            reading = self._metrics.read()
            if reading is not None and not self._has_given_up:
                self._exporter.export(self._data(reading))

    def end(self) -> None:
        """Have it send what is known now, and end."""
        self._is_over.set()

    def give_up(self) -> None:
        """Have it wait for the receiver no more."""
        self._has_given_up = True
        self._exporter.shutdown()

    def _data(self, reading: Reading) -> MetricsData:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        scope = InstrumentationScope("dpwa", dpwa.__version__)
        found = _numbers(reading, self._began_ns) + _histograms(reading, self._began_ns)
        return MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(scope, found, "")], "")])


def _numbers(reading: Reading, began_ns: int) -> list[Metric]:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Metric,
        NumberDataPoint,
        Sum,
    )

    found, now = [], time.time_ns()
    for metric in METRICS:
        points = [
            NumberDataPoint(dict(zip(metric.labels, labels, strict=True)), began_ns, now, value)
            for labels, value in metric.points(reading)
        ]
        is_counter = metric.kind == "counter"
        data = Sum(points, AggregationTemporality.CUMULATIVE, True) if is_counter else Gauge(points)
        if points:
            found.append(Metric(f"dpwa.{metric.name}", metric.text, UNITS[metric.unit], data))
    return found


def _histograms(reading: Reading, began_ns: int) -> list[Metric]:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Histogram,
        HistogramDataPoint,
        Metric,
    )

    found, now = [], time.time_ns()
    for metric in HISTOGRAMS:
        counted = metric.histogram(reading)
        point = HistogramDataPoint(
            attributes={},
            start_time_unix_nano=began_ns,
            time_unix_nano=now,
            count=sum(counted["counts"]),
            sum=counted["sum"],
            bucket_counts=counted["counts"],
            explicit_bounds=counted["bounds"],
            min=None,  # not known, and both may be left out
            max=None,
        )
        data = Histogram([point], AggregationTemporality.CUMULATIVE)
        found.append(Metric(f"dpwa.{metric.name}", metric.text, UNITS[metric.unit], data))
    return found


def _stop(sending: _Sending, thread: threading.Thread) -> None:
    sending.end()
    is_own = thread is threading.current_thread()  # it has dropped the last reference to the node
    if not is_own:
        thread.join(LAST_EXPORT_S)
    sending.give_up()
    if not is_own:
        thread.join(CLOSE_TIMEOUT_S)
