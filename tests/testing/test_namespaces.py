"""Hosts of their own: links that are thin and lose packets, partitions, and nothing left behind."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.times import at_most

from dpwa.errors import UserError
from dpwa.testing import Namespaces, namespaces_missing

needs_namespaces = pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing())
needs_loss = pytest.mark.skipif(
    bool(namespaces_missing(loss=True)), reason=namespaces_missing(loss=True)
)

RECEIVE = """
import socket, sys
kind = getattr(socket, sys.argv[2])
listener = socket.socket(type=kind)
listener.bind((sys.argv[1], 5000))
if kind == socket.SOCK_STREAM:
    listener.listen()
    print('ready', flush=True)
    connection, _ = listener.accept()
    count = 0
    while data := connection.recv(1 << 20):
        count += len(data)
else:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    print('ready', flush=True)
    count = 0
    while listener.recv(2000) != b'end':
        count += 1
print(count)
"""
SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 5000))
connection.sendall(bytes(int(sys.argv[2])))
connection.close()
"""
SEND_PACKETS = """
import socket, sys, time
sender = socket.socket(type=socket.SOCK_DGRAM)
for number in range(int(sys.argv[2])):
    sender.sendto(b'x', (sys.argv[1], 5000))
    if number % 50 == 0:
        time.sleep(0.001)
for _ in range(20):
    sender.sendto(b'end', (sys.argv[1], 5000))
    time.sleep(0.01)
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 5000), 1.5).close()
except ConnectionRefusedError:
    print('reached')
except OSError as error:
    print('not reached')
"""


def python(host, code, *arguments):
    return host.command([sys.executable, "-c", code, *map(str, arguments)])


def names():
    return {path.name for path in Path("/run/netns").iterdir() if path.name.startswith("dpwa-")}


@contextmanager
def receiving(host, kind):
    command = python(host, RECEIVE, host.address, kind)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        try:
            yield receiver
        finally:
            receiver.kill()


def reach(hosts):
    """Which hosts reach which."""
    probes = {
        (one, other): subprocess.Popen(
            python(hosts[one], CONNECT, hosts[other].address), stdout=subprocess.PIPE, text=True
        )
        for one in range(len(hosts))
        for other in range(len(hosts))
        if one < other
    }
    told = {pair: probe.communicate(timeout=60)[0] for pair, probe in probes.items()}
    return {pair for pair, answer in told.items() if answer == "reached\n"}


@needs_namespaces
def test_a_partition_parts_hosts_until_it_is_healed():
    with Namespaces(4) as hosts:
        everybody = {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
        assert reach(hosts) == everybody
        hosts.partition([[0, 1], [2, 3]])
        assert reach(hosts) == {(0, 1), (2, 3)}
        hosts.partition([[0, 2, 3]])
        assert reach(hosts) == {(0, 2), (0, 3), (2, 3)}
        hosts.heal()
        assert reach(hosts) == everybody
        with pytest.raises(UserError, match="groups of hosts from 0 to 3"):
            hosts.partition([[0, 1], [1]])
        with pytest.raises(UserError, match="groups of hosts from 0 to 3"):
            hosts.partition([[4]])


@needs_namespaces
def test_a_link_is_as_thin_as_asked_for():
    count = 2_500_000
    with Namespaces(2, rate_mbit=20) as hosts, receiving(hosts[1], "SOCK_STREAM") as receiver:
        began = time.monotonic()
        subprocess.run(python(hosts[0], SEND, hosts[1].address, count), check=True)
        assert receiver.stdout.readline() == f"{count}\n"
        took_s = time.monotonic() - began
    alone_s = 8 * count / 20e6
    assert (
        0.85 * alone_s < took_s < at_most(2 * alone_s)
    )  # less what may burst; more for starting Python


@needs_loss
def test_packets_are_lost_one_by_one_as_often_as_asked_for():
    count, loss = 5000, 0.2
    with Namespaces(2, loss=loss) as hosts, receiving(hosts[1], "SOCK_DGRAM") as receiver:
        subprocess.run(python(hosts[0], SEND_PACKETS, hosts[1].address, count), check=True)
        received = int(receiver.stdout.readline())
    standard_error = (loss * (1 - loss) / count) ** 0.5
    assert 1 - received / count == pytest.approx(loss, abs=5 * standard_error)


@needs_namespaces
def test_nothing_is_left_even_by_a_process_that_was_killed():
    code = (
        "import os, signal; from dpwa.testing import Namespaces; Namespaces(2); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.Popen([sys.executable, "-c", code])
    killed.wait()
    assert len([name for name in names() if name.startswith(f"dpwa-{killed.pid}-")]) == 3
    with Namespaces(1) as one, Namespaces(2) as other:
        assert not [name for name in names() if name.startswith(f"dpwa-{killed.pid}-")]
        assert len({host.name for host in (*one, *other)}) == 3
    assert not [name for name in names() if name.startswith(f"dpwa-{os.getpid()}-")]


@needs_namespaces
@pytest.mark.parametrize(
    "arguments", [{"count": 0}, {"count": 2, "rate_mbit": 0}, {"count": 2, "loss": 1.5}]
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(UserError, match="but must be"):
        Namespaces(**arguments)


def test_without_the_tools_the_reason_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert namespaces_missing() == "network namespaces need ip and tc (package iproute2)"
    with pytest.raises(UserError, match="package iproute2"):
        Namespaces(2)
