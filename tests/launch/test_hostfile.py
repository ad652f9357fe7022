"""`dpwa launch --nodes-from`: 127.0.0.1 and 127.0.0.2 stand for two hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.launched import IMPORTS, LAUNCH, launch, python
from support.ports import free_ports
from support.processes import PROGRAMS
from support.times import PROCESS_HANGS_AFTER_S

from dpwa.errors import UserError
from dpwa.launch.hostfile import HostLine, nodes_of, own_line, read_hostfile

TWO_HOSTS = "# both are here\n127.0.0.1 group=a slots=2\n\n127.0.0.2   # one by default\n"
IDENTITY = IMPORTS + "print(*(os.environ['DPWA_' + n] for n in 'NAME RANK WORLD_SIZE'.split()))"


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.txt"
    path.write_text(TWO_HOSTS)
    return path


def test_hosts_have_slots_and_comments(hosts: Path) -> None:
    assert read_hostfile(hosts) == [HostLine("127.0.0.1", 2, "a"), HostLine("127.0.0.2", 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\na slots=2\n", ":3: host a is already on line 1"),
        ("# none\n\n", ": expected a host on each line"),
        (
            "a slots=0\n",
            r":1: expected slots=N and group=NAME .*, with N from 1 to 1000 \(got slots=0\)",
        ),
        ("a\nb slots=1001\n", r":2: expected slots=N .*\(got slots=1001\)"),
        ("a slots=2 max_slots=4\n", r":1: expected slots=N .*\(got slots=2 max_slots=4\)"),
        ("a slots=2 slots=3\n", r":1: expected slots=N .*\(got slots=2 slots=3\)"),
        ("a group=b/c\n", r":1: expected slots=N .*\(got group=b/c\)"),
        ("a 4\n", r":1: expected slots=N .*\(got 4\)"),
        ("http://a\n", r":1: expected a host name or an IP address \(got http://a\)"),
        ("0.0.0.0\n", r":1: expected a host name or an IP address \(got 0.0.0.0\)"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=f"hosts.txt{message}"):
        read_hostfile(path)


def test_a_file_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read hostfile .*missing: No such file"):
        read_hostfile(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="binary: expected text in UTF-8"):
        read_hostfile(tmp_path / "binary")


def test_every_host_arrives_at_the_same_addresses() -> None:
    lines = [HostLine("gpu01", 2, "b"), HostLine("10.0.0.2", 1)]
    there = {here: nodes_of(lines, 7000, here) for here in ("gpu01", "10.0.0.2")}
    for nodes in there.values():
        assert [(node.name, node.host, node.port) for node in nodes] == [
            ("w1", "gpu01", 7000),
            ("w2", "gpu01", 7001),
            ("w3", "10.0.0.2", 7000),
        ]
        assert [node.group for node in nodes] == ["b", "b", None]
    assert [node.bind for node in there["gpu01"]] == ["*", "*", None]
    assert [node.bind for node in there["10.0.0.2"]] == [None] * 3
    with pytest.raises(UserError, match="no port is left for 2 nodes on gpu01"):
        nodes_of(lines, 65_535, "gpu01")


def test_a_host_finds_itself_by_name_or_address() -> None:
    far = HostLine("203.0.113.7", 1)
    by_name, by_address = HostLine(socket.gethostname(), 1), HostLine("127.0.0.1", 1)
    assert own_line([far, by_address], None) is by_address
    assert own_line([by_address, by_name, far], None) is by_name
    assert own_line([by_address, by_name, far], "203.0.113.7") is far
    with pytest.raises(UserError, match=r"this machine match none of 203\.0\.113\.7\. Pass"):
        own_line([far], None)
    with pytest.raises(UserError, match=r"match 127\.0\.0\.1, 127\.0\.0\.2\. Pass"):
        own_line([by_address, HostLine("127.0.0.2", 1)], None)
    with pytest.raises(UserError, match=r"--host: expected one of 203\.0\.113\.7 \(got a\)"):
        own_line([far], "a")


def test_each_host_starts_its_own_nodes(hosts: Path) -> None:
    (port,) = free_ports(1)
    options = ("--nodes-from", str(hosts), "--port", str(port))
    first = launch(*options, "--host", "127.0.0.1", *python(IDENTITY))
    assert sorted(first.stdout.splitlines()) == ["w1 | w1 0 3", "w2 | w2 1 3"], first.stderr
    second = launch(*options, "--host", "127.0.0.2", *python(IDENTITY))
    assert second.stdout.splitlines() == ["w3 | w3 2 3"], second.stderr
    fewer = launch(*options, "-n", "1", "--host", "127.0.0.1", *python(IDENTITY))
    assert fewer.stdout.splitlines() == ["w1 | w1 0 1"]
    none = launch(*options, "-n", "1", "--host", "127.0.0.2", *python(IDENTITY))
    assert none.returncode == 2
    assert none.stderr == (
        f"dpwa: {hosts}: none of the first 1 nodes is on this host, 127.0.0.2. Use a larger -n, or "
        "start only the other hosts [DPWA-E070]\n"
    )


@pytest.mark.slow  # test_restarts.py has the same of one host
def test_nodes_of_two_hosts_merge_and_one_that_is_killed_comes_back(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("127.0.0.1\n127.0.0.2\n")
    (port,) = free_ports(1)
    options = ("--nodes-from", str(hosts), "--port", str(port), "--restart", "on-failure:1")
    command = ("--", sys.executable, str(PROGRAMS / "killed_once.py"), str(tmp_path))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [
        subprocess.Popen([*LAUNCH, *options, "--host", host, *command], env=os.environ, **pipes)
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    try:
        said = [process.communicate(timeout=PROCESS_HANGS_AFTER_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert [process.returncode for process in started] == [0, 0], said
    assert "w1 | met\n" in said[0]
    assert "node w2 failed: ended by SIGKILL. Restarting the node" in said[1]
    assert "w2 | life 2\nw2 | met\n" in said[1]
