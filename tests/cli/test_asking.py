"""Which run the commands that watch one look at."""

import fcntl
import os
import subprocess
import time
from pathlib import Path

import pytest
from support.commands import run_dpwa
from support.nodes import eventually

from dpwa.cli.query_options import watch
from dpwa.errors import UserError
from dpwa.launch.configs import run_folder, runs_here

NODES = "nodes: [{name: w1, host: 127.0.0.1, port: 1}]"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("DPWA_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def made(temporary):
    """Return a maker of folders as launchers make them, which hold them as long as they live."""
    locks = []

    def make(name, text=NODES, age_s=0, *, is_held=True):
        path = temporary / name / "dpwa.yaml"
        path.parent.mkdir()
        path.write_text(text)
        lock = path.with_name("lock")
        lock.touch()
        for each in (lock, path.parent):
            os.utime(each, (time.time() - age_s,) * 2)
        if is_held:
            locks.append(os.open(lock, os.O_RDWR))
            fcntl.flock(locks[-1], fcntl.LOCK_EX)
        return path

    yield make
    for lock in locks:
        os.close(lock)


def test_the_newest_run_of_a_launcher_is_the_default(made):
    own = os.getpid()
    old = made(f"dpwa-launch-{own}-a", age_s=60)
    new = made(f"dpwa-launch-{own}-b", NODES.replace("w1", "n7"))
    made("other")
    made(f"dpwa-launch-{own}-c", is_held=False)  # killed; another process has its number now
    assert [run.config for run in runs_here()] == [new, old]
    with watch(None, None) as watched:
        assert [node.name for node in watched.view().nodes] == ["n7"]


def test_folders_of_launchers_that_were_killed_are_removed_by_the_next_one(temporary, made):
    dead = made("dpwa-launch-7-a", age_s=100, is_held=False)
    kept = [
        made("dpwa-launch-7-b", age_s=100),
        made("dpwa-launch-7-c", is_held=False),  # it may be about to be locked
    ]
    logs = temporary / "dpwa-launch-4-logs"  # nobody's who launches
    logs.mkdir()
    os.utime(logs, (0, 0))
    with run_folder():
        assert [path.exists() for path in (dead, *kept, logs)] == [False, True, True, True]


def test_folders_of_other_users_are_left_alone(made, monkeypatch):
    dead = made("dpwa-launch-7-a", age_s=100, is_held=False)
    made("dpwa-launch-7-b")
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert runs_here() == []
    with run_folder():
        assert dead.exists()


def test_a_run_of_a_file_is_found_where_the_file_is(temporary):
    path = temporary / "nodes.yaml"
    path.write_text(NODES)
    with run_folder(path):
        assert [run.config for run in runs_here()] == [path]
    assert runs_here() == []


@pytest.mark.parametrize("command", [["status"], ["doctor"], ["top", "--once"]], ids="".join)
def test_the_run_of_this_folder_comes_first_and_is_named_and_so_are_the_others(
    temporary, made, monkeypatch, command
):
    launchers = []
    for folder, age_s in ((temporary / "mine", 300), (temporary / "yours", 0)):
        folder.mkdir()
        argv = ["/bin/sh", "-c", "read line", "dpwa launch", "-n", "1", "--", "python", "x y.py"]
        launchers.append(subprocess.Popen(argv, cwd=folder, stdin=subprocess.PIPE))
        command_line = Path("/proc", str(launchers[-1].pid), "cmdline")
        eventually(command_line.read_bytes)  # a little later than the program begins
        text = NODES.replace("w1", folder.name)
        made(f"dpwa-launch-{launchers[-1].pid}-a", text, age_s)
    try:
        monkeypatch.chdir(temporary / "mine")
        asked = run_dpwa(*command)
    finally:
        for launcher in launchers:
            with launcher:
                launcher.stdin.close()
    assert asked.exit_code == 3
    assert ("mine" in asked.stdout) == (command != ["top", "--once"])
    first, second, *_ = asked.stderr.splitlines()
    assert first == "dpwa: using the run `python 'x y.py'` in this folder, started 5 min ago"
    other = temporary / f"dpwa-launch-{launchers[1].pid}-a" / "dpwa.yaml"
    assert second.startswith(
        f"dpwa: this machine has other runs: `python 'x y.py'` in {temporary}/yours, started "
    )
    assert second.endswith(f" s ago (-c {other})")


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_commands_that_ask_every_node_find_the_run_themselves(temporary, command):
    asked = run_dpwa(command)
    assert asked.exit_code == 2
    assert "Give the configuration of a run with -c FILE [" in asked.stderr
    path = temporary / "nodes.yaml"
    path.write_text(NODES)
    with run_folder(path):
        asked = run_dpwa(command, "--timeout-ms", 100)
    assert asked.exit_code == 3
    assert "w1" in asked.stdout


def test_nodes_that_were_started_by_hand_are_found_by_the_file_of_their_folder(
    temporary, monkeypatch
):
    (temporary / "dpwa.yaml").write_text(NODES)
    monkeypatch.chdir(temporary)
    asked = run_dpwa("status", "--timeout-ms", 100)
    assert asked.exit_code == 3
    assert asked.stderr.startswith("dpwa: using the run of dpwa.yaml in this folder\n")
    assert "w1" in asked.stdout
    (temporary / "dpwa.yaml").write_text("timeout_ms: 100\n")  # for `dpwa launch -n`
    assert "Give the configuration of a run" in run_dpwa("status").stderr


def test_without_any_run_it_says_how_to_name_one():
    with pytest.raises(UserError, match="this machine has no run of `dpwa launch`"):
        watch(None, None)


@pytest.mark.parametrize(
    ("address", "name", "endpoint"),
    [
        ("10.0.0.1:7000", "tcp://10.0.0.1:7000", "tcp://10.0.0.1:7000"),
        ("w1@10.0.0.1:7000", "w1", "tcp://10.0.0.1:7000"),
        ("tcp://[::1]:7000", "tcp://[::1]:7000", "tcp://[::1]:7000"),
        ("ipc:///tmp/w1", "ipc:///tmp/w1", "ipc:///tmp/w1"),
    ],
)
def test_an_address_may_be_short(address, name, endpoint):
    with watch(None, address) as watched:
        (node,) = watched.view().nodes
    assert (node.name, node.endpoint) == (name, endpoint)


@pytest.mark.parametrize("address", ["", "10.0.0.1", "10.0.0.1:x", "a b@h:1", "http://h:1"])
def test_an_address_that_is_none(address):
    with pytest.raises(UserError, match=r"--at: expected host:port, or NAME@host:port"):
        watch(None, address)
