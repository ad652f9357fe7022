"""A node sends its metrics by OTLP, to a receiver that decodes them."""

import http.server
import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from support.nodes import config_of, eventually
from support.times import at_most

from dpwa import DpwaConnection

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def receiver(monkeypatch):
    """An OTLP/HTTP receiver, and the environment that names it; what it got is in `requests`."""
    service = pytest.importorskip(
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
        reason="needs the extra: pip install dpwa[otel]",
    )
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/x-protobuf"
            server.requests.append(
                (self.path, service.ExportMetricsServiceRequest.FromString(body))
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.requests = []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


def told(request):
    """The resource of a request, and its metrics by name."""
    (of_node,) = request.resource_metrics
    (of_scope,) = of_node.scope_metrics
    resource = {a.key: a.value.string_value for a in of_node.resource.attributes}
    assert of_scope.scope.name == "dpwa"
    return resource, {metric.name: metric for metric in of_scope.metrics}


def test_the_same_figures_go_to_a_receiver(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "30")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mnist")
    config = config_of(2, transport="tcp")
    with DpwaConnection("w1", config) as one:
        monkeypatch.delenv(ENDPOINT)
        with DpwaConnection("w2", config) as two:
            while one.metrics()["dpwa/merges"] < 3:
                two.update_send(np.zeros(1000), 0.25)
                one.update_send(np.ones(1000), 0.5)
                two.update_wait()
                one.update_wait()
            count = len(receiver.requests)
            eventually(lambda: len(receiver.requests) > count + 1)
            last, endpoint = one.metrics(), one.node.endpoint
    path, request = receiver.requests[-1]
    resource, metrics = told(request)
    assert path == "/v1/metrics"
    assert resource["service.name"] == "mnist"
    assert resource["service.instance.id"] == f"w1@{endpoint}"
    assert resource["dpwa.node"] == "w1"
    steps = metrics["dpwa.steps"].sum
    assert steps.is_monotonic
    assert steps.data_points[0].as_int == last["dpwa/steps"] >= 3
    assert steps.data_points[0].start_time_unix_nano < time.time_ns()
    assert metrics["dpwa.loss"].gauge.data_points[0].as_double == 0.5
    assert metrics["dpwa.received"].unit == "By"
    (of_peer,) = metrics["dpwa.received"].sum.data_points
    assert (of_peer.attributes[0].key, of_peer.attributes[0].value.string_value) == ("peer", "w2")
    assert of_peer.as_int >= 16_000
    (waits,) = metrics["dpwa.wait"].histogram.data_points
    assert waits.count == sum(waits.bucket_counts) == steps.data_points[0].as_int
    assert len(waits.bucket_counts) == len(waits.explicit_bounds) + 1
    assert not waits.HasField("min")


def test_what_came_last_is_sent_when_the_node_is_closed(receiver):
    with DpwaConnection("w1", config_of(1)) as one:
        one.update_send(np.zeros(10), 0.5)
        one.update_wait()
        assert not receiver.requests
    ((_, request),) = receiver.requests
    resource, metrics = told(request)
    assert resource["service.name"] == "dpwa"
    assert metrics["dpwa.steps"].sum.data_points[0].as_int == 1


def test_a_receiver_that_is_not_there_keeps_nobody_waiting(receiver, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")  # it would try again and again
    monkeypatch.setattr("dpwa.observe.otlp.LAST_EXPORT_S", 0.2)
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    with DpwaConnection("w1", config_of(1)) as one:
        one.update_send(np.zeros(10), 0.5)
        eventually(lambda: any("retrying" in r.getMessage() for r in caplog.records))
        before = time.monotonic()
    assert time.monotonic() - before < at_most(2.0)
    assert "dpwa-otlp-w1" not in [thread.name for thread in threading.enumerate()]
    assert not any("already shutdown" in record.getMessage() for record in caplog.records)


def test_without_the_variable_nothing_of_it_is_imported():
    program = (
        "import sys\n"
        "from dpwa import DpwaConnection\n"
        f"DpwaConnection('w1', {config_of(1)!r}).close()\n"
        "print([n for n in sys.modules if n.startswith(('opentelemetry', 'prometheus'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"


def warnings_of(caplog, monkeypatch, **environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, "dpwa"):
        DpwaConnection("w1", config_of(1, log_level="warning")).close()
    return [record.getMessage() for record in caplog.records]


def test_a_missing_library_is_one_warning(caplog, monkeypatch):
    exporter = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
    monkeypatch.setitem(sys.modules, exporter, None)
    (warning,) = warnings_of(caplog, monkeypatch, **{ENDPOINT: "http://127.0.0.1:4318"})
    assert warning.startswith(
        f"w1: {ENDPOINT} is set, and metrics are not sent there without the SDK of OpenTelemetry: "
        "pip install -c constraints.txt '.[otel]'"
    )


def test_what_is_meant_for_other_programs_is_left_to_them(caplog, monkeypatch):
    variables = {ENDPOINT: "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    (warning,) = warnings_of(caplog, monkeypatch, **variables)
    assert "expected http/protobuf as its protocol (got grpc)" in warning
    caplog.clear()
    assert not warnings_of(caplog, monkeypatch, OTEL_METRICS_EXPORTER="none")
    monkeypatch.delenv("OTEL_METRICS_EXPORTER")
    assert not warnings_of(caplog, monkeypatch, OTEL_SDK_DISABLED="true")


@pytest.mark.parametrize("interval", ["soon", "0", "-1", "nan"])
def test_an_interval_that_is_none_is_told(receiver, caplog, monkeypatch, interval):
    (warning,) = warnings_of(caplog, monkeypatch, OTEL_METRIC_EXPORT_INTERVAL=interval)
    assert f"OTEL_METRIC_EXPORT_INTERVAL: expected a number of milliseconds (got {interval})" in (
        warning
    )
