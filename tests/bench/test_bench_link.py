"""The way between two machines, measured; and one clear line for whatever is there instead."""

import json
import signal
import socket
import threading
from contextlib import suppress

import pytest
from support.commands import run_dpwa
from support.nodes import config_of
from support.ports import free_ports, needs_ipv6
from support.processes import ended, start

from dpwa import DpwaConnection
from dpwa.cli.plan import read_link
from dpwa.discovery import interfaces
from dpwa.plan.link import LATENCIES, SNAPSHOT_BYTES, serving
from dpwa.testing import TcpProxy


@pytest.fixture
def port():
    return free_ports(1)[0]


def run_link(*arguments):
    result = run_dpwa("bench", "link", *arguments)
    assert "Traceback" not in result.stderr
    return result


def test_a_link_is_measured_for_a_plan(port, tmp_path):
    with serving(port):
        result = run_link(f"127.0.0.1:{port}", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["latency_ms"] > 0
    assert len(found["latencies_ms"]) == LATENCIES
    assert min(found["bandwidths_mbps"]) <= found["bandwidth_mbps"]
    assert 0 < found["stream_bytes"] <= SNAPSHOT_BYTES
    file = tmp_path / "link.json"
    file.write_text(result.stdout)
    assert read_link(str(file)).bandwidth_mbps == found["bandwidth_mbps"]


def test_the_medians_are_shown_to_people(port):
    with serving(port):
        result = run_link(f"localhost:{port}")
    assert result.exit_code == 0
    assert "bandwidth" in result.stdout
    assert "dpwa plan --latency-ms" in result.stdout


@needs_ipv6
def test_an_address_of_ipv6_is_served(port):
    with serving(port, "::1"):
        result = run_link(f"[::1]:{port}", "--json")
    assert json.loads(result.stdout)["address"] == f"[::1]:{port}"


def test_an_address_that_is_none_is_told(port):
    result = run_link("--serve", "--port", port, "--bind", "no address")
    assert result.exit_code == 2
    assert "bind: expected a host name or IP address" in result.stderr


def test_nobody_listens(port):
    result = run_link(f"127.0.0.1:{port}")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "nothing answers" in result.stderr
    assert "dpwa bench link --serve" in result.stderr


def test_a_node_that_trains_is_not_measured():
    config = config_of(2)
    with DpwaConnection("w1", config) as connection:
        connection.update_send(b"parameters")
        result = run_link(f"127.0.0.1:{config['nodes'][0]['port']}")
    assert result.exit_code == 2
    assert "the node 'w1' of a training uses this port" in result.stderr


@pytest.mark.slow
def test_something_else_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            for _ in range(2):
                connection, _ = listener.accept()
                with connection, suppress(ConnectionResetError):  # as the other end may leave
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    while connection.recv(1024):
                        pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        result = run_link(f"127.0.0.1:{listener.getsockname()[1]}")
        assert result.exit_code == 3
        assert len(result.stderr.splitlines()) == 1
        assert "dpwa bench link --serve" in result.stderr
        with socket.create_connection(listener.getsockname()):  # it waits for the second one
            pass
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "expected either a HOST that runs `dpwa bench link --serve`, or --serve"),
        (("w1", "--serve"), 2, "expected either a HOST that runs"),
        (("two words",), 2, "expected a HOST, or HOST:PORT"),
        (("localhost:99999",), 2, "expected a HOST, or HOST:PORT"),
        (("nobody.invalid",), 2, "nobody.invalid has no address"),
        (("localhost", "--seconds", "0"), 2, "'--seconds': Input should be greater than"),
    ],
)
def test_what_cannot_be_measured_is_told_in_one_line(arguments, code, text):
    result = run_link(*arguments)
    assert result.exit_code == code
    assert text in result.stderr


def test_a_port_in_use_is_told(port):
    with socket.create_server(("0.0.0.0", port)):
        result = run_link("--serve", "--port", port)
    assert result.exit_code == 2
    assert "the port is already in use" in result.stderr


@pytest.mark.parametrize(
    ("route", "bind", "target"),
    [
        ("127.0.0.1", "*", "10.1.2.3"),  # there is no way out: that of a card
        ("10.9.9.9", "*", "10.9.9.9"),
        ("10.9.9.9", "::1", "[::1]"),
    ],
)
def test_the_address_that_is_named_is_one_that_others_can_use(
    monkeypatch, port, route, bind, target
):
    cards = {"lo": "127.0.0.1", "eth7": "10.1.2.3"}
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(interfaces, "local_address", lambda _: route)
    monkeypatch.setattr(interfaces, "_address_of", cards.get)
    monkeypatch.setattr(interfaces.socket, "if_nameindex", lambda: list(enumerate(cards, 1)))
    result = run_link("--serve", "--port", port, "--bind", bind, "--seconds", "1")
    assert result.stdout.splitlines()[1] == f"dpwa bench link {target}:{port}"


def test_ctrl_c_ends_serving(port):
    here = ("--port", port, "--bind", "127.0.0.1")  # a machine without a network is told more
    server = start("dpwa_command.py", "bench", "link", "--serve", *here)
    with ended(server):
        assert server.stdout.readline().startswith(f"serving on port {port} for 600 s")
        assert server.stdout.readline().startswith("dpwa bench link ")
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 130
    assert errors.strip() in ("", "Aborted!", "Aborted.")


@pytest.mark.slow
def test_a_far_and_thin_link_is_measured_as_what_it_is(port):
    far = {"delay_s": 0.05, "bandwidth_bytes_per_s": 5e6}
    with serving(port), TcpProxy("127.0.0.1", port, **far) as proxy:
        result = run_link(f"127.0.0.1:{proxy.port}", "--json")
    found = json.loads(result.stdout)
    assert 100 <= found["latency_ms"] < 200
    assert 25 < found["bandwidth_mbps"] < 50


@pytest.mark.slow
def test_a_link_that_is_too_slow_for_the_time_is_told(port):
    with serving(port), TcpProxy("127.0.0.1", port, bandwidth_bytes_per_s=2e4) as proxy:
        result = run_link(f"127.0.0.1:{proxy.port}", "--seconds", 2)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "the link is too slow to measure. Increase --seconds" in result.stderr


@pytest.mark.slow
def test_a_connection_that_is_lost_is_told(port):
    with serving(port), TcpProxy("127.0.0.1", port, bandwidth_bytes_per_s=2e5) as proxy:
        timer = threading.Timer(2.0, proxy.close)
        timer.start()
        result = run_link(f"127.0.0.1:{proxy.port}", "--seconds", 60)
        timer.join()
    assert (result.exit_code, result.stdout) == (3, "")
    assert len(result.stderr.splitlines()) == 1
    assert "dpwa bench link --serve" in result.stderr
