"""A node serves its metrics over HTTP."""

import gc
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from support.nodes import config_of, eventually
from support.open_cluster import cluster
from support.ports import ports_in_a_row

from dpwa import DpwaConnection
from dpwa.errors import AddressError, UserError

pytest.importorskip("prometheus_client", reason="needs the extra: pip install dpwa[metrics]")
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from support.metrics import all_metrics, name_of
from support.times import at_most

from dpwa.observe.prometheus import MAX_PEERS, OTHER, _is_of_this_machine


def url_of(connection):
    return connection.node.report()["metrics"]["url"]


def scrape(connection, **headers):
    with urllib.request.urlopen(urllib.request.Request(url_of(connection), headers=headers)) as got:
        return got.headers["Content-Type"], got.read().decode()


def samples(connection):
    """The values of all samples, by name and labels."""
    families = text_string_to_metric_families(scrape(connection)[1])
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_each_node_of_a_list_serves_its_own_metrics_at_the_next_port():
    port = ports_in_a_row(2)
    config = config_of(2, transport="tcp", metrics={"port": port})
    with DpwaConnection("w2", config) as two, DpwaConnection("w1", config) as one:
        assert url_of(one) == f"http://127.0.0.1:{port}/metrics"
        assert url_of(two) == f"http://127.0.0.1:{port + 1}/metrics"
        while samples(one)["dpwa_received_bytes_total", "w2"] < 16_000:
            two.update_send(np.zeros(1000), 0.25)
            one.update_send(np.ones(1000), 0.5)
            two.update_wait()
            one.update_wait()
        found = samples(one)
        steps = found["dpwa_steps_total",]
        assert steps >= 2
        assert found["dpwa_loss",] == 0.5
        assert samples(two)["dpwa_loss",] == 0.25
        assert found["dpwa_peers", "alive"] == 1
        assert found["dpwa_peers", "unreachable"] == 0
        assert found["dpwa_peer_merges_total", "w2"] >= 2
        assert found["dpwa_wait_seconds_count",] == found["dpwa_wait_seconds_bucket", "+Inf"]
        assert found["dpwa_wait_seconds_count",] == steps
        assert found["dpwa_activity_seconds_total", "wait"] > 0
        assert found["dpwa_refused_total", "forged"] == 0
        assert found["dpwa_node_info", "gossip", "", "w1", "random"] == 1
        assert samples(two)["dpwa_node_info", "gossip", "", "w2", "random"] == 1
        assert not [f for f in REGISTRY.collect() if f.name.startswith("dpwa")]


def test_the_number_of_series_is_bounded():
    many = [{"name": f"w{n}", "host": "127.0.0.1", "port": n} for n in range(2, 80)]
    config = config_of(1, metrics={"port": 0}, log_level="error")
    with DpwaConnection("w1", {**config, "nodes": [*config["nodes"], *many]}) as one:
        found = samples(one)
    peers = [labels for name, *labels in found if name == "dpwa_received_bytes_total"]
    assert len(peers) == MAX_PEERS + 1
    assert [OTHER] in peers
    assert len(found) < 300


def test_only_known_figures_are_told():
    with DpwaConnection("w1", config_of(1, metrics={"port": 0})) as one:
        told = {family.name for family in text_string_to_metric_families(scrape(one)[1])}
    assert {name_of(metric).removesuffix("_total") for metric in all_metrics()} - told == {
        "dpwa_loss",
        "dpwa_consensus_distance",
        "dpwa_members",
        "dpwa_rounds",  # it does not average gradients
        "dpwa_in_sync",
        "dpwa_received_bytes",  # there is no peer
        "dpwa_sent_bytes",
        "dpwa_peer_merges",
    }


def test_it_speaks_open_metrics_too():
    with DpwaConnection("w1", config_of(1, metrics={"port": 0})) as one:
        kind, text = scrape(one, Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")
        assert "# UNIT dpwa_wait_seconds seconds" in text
        assert scrape(one)[0].startswith("text/plain; version=0.0.4")


def test_a_version_that_is_none_ends_nothing():
    with DpwaConnection("w1", config_of(1, metrics={"port": 0})) as connection:
        for accept in ("text/plain;version=x", "application/openmetrics-text;version=x"):
            assert "dpwa_steps_total" in scrape(connection, Accept=accept)[1]
        assert "dpwa_steps_total" in scrape(connection)[1]


def test_nothing_else_is_there_to_be_had():
    with DpwaConnection("w1", config_of(1, metrics={"port": 0})) as one:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url_of(one).removesuffix("metrics"))
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(url_of(one), data=b"x")


def test_a_port_that_is_taken_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        expected = f"metrics: port {port} of 127.0.0.1 is in use. Set"
        with pytest.raises(AddressError, match=expected):
            DpwaConnection("w1", config_of(1, metrics={"port": port}))
        with pytest.raises(AddressError, match=expected):  # before it waits to be let in
            DpwaConnection("w1", config_of(1, join=["tcp://127.0.0.1:9"], metrics={"port": port}))


def test_an_address_of_another_machine_is_one_clear_error():
    with pytest.raises(AddressError, match=r"metrics: cannot listen on 192\.0\.2\.1:0 \("):
        DpwaConnection("w1", config_of(1, metrics={"port": 0, "host": "192.0.2.1"}))
    with pytest.raises(
        AddressError, match=r"metrics: cannot listen on a\.\.b, because this is not"
    ):
        DpwaConnection("w1", config_of(1, metrics={"port": 0, "host": "a..b"}))


def test_nodes_that_join_take_the_first_port_that_is_free():
    port = ports_in_a_row(3)
    with cluster(metrics={"port": port}) as nodes:
        first = nodes.add("w1")
        second = nodes.add("w2", "w1")
        assert url_of(first) == f"http://127.0.0.1:{port}/metrics"
        assert url_of(second) == f"http://127.0.0.1:{port + 1}/metrics"
        assert eventually(lambda: samples(first)["dpwa_members", "alive"] == 2)
        nodes.close("w1")
        assert url_of(nodes.add("w3", "w2")) == f"http://127.0.0.1:{port}/metrics"


def test_its_library_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UserError, match=r"metrics: .*: pip install .* '\.\[metrics\]'"):
        DpwaConnection("w1", config_of(1, metrics={"port": 0}))
    DpwaConnection("w1", config_of(1)).close()


def port_of(connection):
    return int(url_of(connection).removesuffix("/metrics").rpartition(":")[2])


def test_a_client_that_says_nothing_keeps_neither_others_nor_the_end_waiting_for_long(monkeypatch):
    monkeypatch.setattr("dpwa.observe.prometheus._Request.timeout", 600.0)
    monkeypatch.setattr("dpwa.observe.prometheus.MAX_CONNECTIONS", 3)
    with DpwaConnection("w1", config_of(1, metrics={"port": 0})) as one:
        with ExitStack() as stack:
            for _ in range(5):
                address = "127.0.0.1", port_of(one)
                silent = stack.enter_context(socket.create_connection(address))
                silent.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
                assert "dpwa_steps_total" in scrape(one)[1]
        with socket.create_connection(("127.0.0.1", port_of(one))) as silent:
            began = time.monotonic()
            one.close()
            assert time.monotonic() - began < at_most(3.0)
    assert "dpwa-metrics-w1" not in [thread.name for thread in threading.enumerate()]


def test_a_request_that_does_not_come_or_is_none_is_given_up(monkeypatch):
    monkeypatch.setattr("dpwa.observe.prometheus._Request.timeout", 0.1)
    with DpwaConnection("w1", config_of(1, metrics={"port": 0})) as one:
        for nonsense in (b"", b"\r\n\r\n", b"GET\r\n\r\n", b"\xff" * 20_000, b"GET / x\r\n:\r\n"):
            with socket.create_connection(("127.0.0.1", port_of(one)), timeout=60) as stranger:
                stranger.sendall(nonsense)
                with suppress(ConnectionError):
                    while stranger.recv(4096):
                        pass
        assert "dpwa_steps_total" in scrape(one)[1]


@pytest.mark.parametrize(
    ("host", "is_of_it"),
    [
        ("127.0.0.1:9100", True),
        ("192.0.2.7", True),
        ("[::1]:9100", True),
        ("LocalHost.", True),
        (socket.gethostname(), True),
        ("trainer.example", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:9100", False),
        ("127.0.0.1@evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_who_asks_by_a_name_that_is_not_of_this_machine_is_refused(host, is_of_it):
    names = {"localhost", socket.gethostname().lower(), "trainer.example"}
    assert _is_of_this_machine(host, names) == is_of_it


def test_a_web_page_of_elsewhere_cannot_read_the_metrics():
    with DpwaConnection("w1", config_of(1, metrics={"port": 0})) as one:
        with pytest.raises(urllib.error.HTTPError, match="403"):
            scrape(one, Host="evil.example")
        assert "dpwa_steps_total" in scrape(one, Host=socket.gethostname())[1]


def test_a_node_that_is_forgotten_takes_its_metrics_along():
    forgotten = DpwaConnection("w1", config_of(1, metrics={"port": 0}))
    url = url_of(forgotten)
    del forgotten
    gc.collect()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(url)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # beside threads
def test_a_forked_child_leaves_them_alone():
    with DpwaConnection("w1", config_of(1, metrics={"port": 0})) as one:
        child = os.fork()
        if child == 0:
            one.close()
            del one
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert "dpwa_steps_total" in scrape(one)[1]


def test_a_program_that_forgets_to_close_ends_all_the_same():
    program = (
        "from dpwa import DpwaConnection\n"
        f"c = DpwaConnection('w1', {config_of(1, metrics={'port': 0})!r})\n"
        "print(c.node.report()['metrics']['url'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert done.stdout.startswith("http://127.0.0.1:")
    assert not done.stderr
