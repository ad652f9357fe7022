"""`dpwa launch --engine ray` on a real Ray cluster: two machines, though both are this one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from support.extras import needs
from support.launched import IMPORTS, LAUNCH, assert_gone, launch, python
from support.processes import PROGRAMS
from support.ray_clusters import ray_cluster
from support.times import PROCESS_HANGS_AFTER_S, at_most

pytestmark = needs("ray")

KILLED_ONCE = PROGRAMS / "killed_once.py"
ON_RAY = ("--engine", "ray")


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    with ray_cluster():
        yield


@pytest.fixture
def launcher() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a launcher in the background, killed when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [*LAUNCH, *ON_RAY, *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def notes(lines: Iterable[str]) -> list[str]:
    """Return what the launcher says, but that it waits, which it does on a busy machine."""
    said = [line for line in lines if line.startswith("dpwa launch")]
    return [line for line in said if "waiting for Ray to find free" not in line]


def launch_on_ray(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return launch(*ON_RAY, *arguments, timeout=PROCESS_HANGS_AFTER_S, **options)


def test_nodes_know_who_they_are_and_print_as_they_do_without_ray(tmp_path: Path) -> None:
    code = IMPORTS + (
        "for name in 'NAME RANK WORLD_SIZE SEED'.split(): print(name, os.environ['DPWA_' + name])\n"
        "print(os.getcwd()); print('log', file=sys.stderr); sys.stdout.flush()\n"
        "sys.exit(3 if os.environ['DPWA_RANK'] == '1' else 0)"
    )
    environment = os.environ | {"DPWA_SEED": "5"}
    done = launch_on_ray("-n", "2", *python(code), env=environment, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    for rank, node in enumerate(("w1", "w2")):
        expected = [f"NAME {node}", f"RANK {rank}", "WORLD_SIZE 2", "SEED 5", str(tmp_path)]
        assert re.findall(rf"^{node} \| (.*)$", done.stdout, re.MULTILINE) == expected
        assert f"{node} | log" in done.stderr.splitlines()
    assert notes(done.stderr.splitlines()) == [
        "dpwa launch: node w2 failed: exit code 3",
        "dpwa launch: 1 of 2 nodes failed: w2",
    ]


@pytest.mark.parametrize("victim", ["itself", "parent"])
def test_a_killed_node_or_worker_comes_back_and_is_merged_again(
    tmp_path: Path, victim: str
) -> None:
    logs = tmp_path / "logs"
    options = ("-n", "2", "--restart", "on-failure:1", "--log-dir", str(logs))
    command = (sys.executable, str(KILLED_ONCE), str(tmp_path), victim)
    done = launch_on_ray(*options, "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    notice = "node w2 failed: ended by SIGKILL. Restarting the node in 1 s (restart 1 of 1)"
    assert f"dpwa launch: {notice}" in done.stderr.splitlines()
    assert ("the Ray worker of w2 has died: The actor is dead" in done.stderr) == (
        victim == "parent"
    )
    said = [line for line in (logs / "w2.log").read_text().splitlines() if "dpwa" not in line]
    # What a node has printed last is lost with the actor that passes it on.
    assert said[-2:] == ["life 2", "met"]
    assert victim == "parent" or said[0] == "life 1"
    assert "met" in (logs / "w1.log").read_text().splitlines()


SLEEPER = IMPORTS + (
    "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\nprint(os.getpid())\ntime.sleep(600)\n"
)


def pids_of_ready_nodes(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline().split("| ")[1]) for _ in range(2)]


def test_ctrl_c_ends_all_nodes_and_gives_their_room_back(
    launcher: Callable[..., subprocess.Popen[str]],
) -> None:
    process = launcher("-n", "2", *python(SLEEPER))
    pids = pids_of_ready_nodes(process)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PROCESS_HANGS_AFTER_S)
    assert time.monotonic() - began < at_most(8)
    assert process.returncode == 130
    first, last = notes(errors.splitlines())
    said = r"dpwa launch: stopping w\d, w\d with SIGINT \(a second Ctrl-C kills the nodes\)"
    assert re.fullmatch(said, first)
    assert last == "dpwa launch: all nodes have stopped"
    assert_gone(*pids)
    assert launch_on_ray("-n", "2", "true").returncode == 0


def test_stubborn_nodes_are_killed_by_a_second_ctrl_c(
    launcher: Callable[..., subprocess.Popen[str]],
) -> None:
    ignore = "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n"
    process = launcher("-n", "2", *python(SLEEPER.replace("print", f"{ignore}print", 1)))
    pids = pids_of_ready_nodes(process)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert "with SIGINT" in next(line for line in process.stderr if notes([line]))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PROCESS_HANGS_AFTER_S)
    assert process.returncode == 130
    assert_gone(*pids)


def test_nodes_end_when_the_launcher_is_killed(
    launcher: Callable[..., subprocess.Popen[str]],
) -> None:
    process = launcher("-n", "2", *python(SLEEPER))
    pids = pids_of_ready_nodes(process)
    process.kill()
    process.wait()
    end = time.monotonic() + PROCESS_HANGS_AFTER_S
    while time.monotonic() < end and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.1)
    assert_gone(*pids)


def test_who_waits_for_room_says_so_and_can_be_stopped(
    launcher: Callable[..., subprocess.Popen[str]],
) -> None:
    process = launcher("-n", "3", "true")
    assert process.stderr is not None
    line = process.stderr.readline()
    waits = (
        r"dpwa launch: waiting for Ray to find free resources for w\d.* \(CPU=1 for each node\)\n"
    )
    assert re.fullmatch(waits, line)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PROCESS_HANGS_AFTER_S)
    assert process.returncode == 130


def test_a_cluster_that_is_not_there_is_one_message() -> None:
    done = launch_on_ray("-n", "2", "true", env=os.environ | {"RAY_ADDRESS": "127.0.0.1:1"})
    assert (done.returncode, done.stdout) == (2, "")
    problem = "[Errno 111] Connection refused [DPWA-E072]"
    assert done.stderr == f"dpwa: found no Ray cluster at 127.0.0.1:1: {problem}\n"


@pytest.mark.slow
def test_without_a_cluster_ray_is_started_here_with_room_for_all() -> None:
    here = os.environ | {"RAY_ADDRESS": "local"}
    done = launch_on_ray("-n", "3", "--resources", "CPU=4", "--", "echo", "hi", env=here)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["w1 | hi", "w2 | hi", "w3 | hi"]
    too_much = launch_on_ray("-n", "2", "--resources", "GPU=100", "true", env=here)
    assert too_much.returncode == 2
    assert (
        "dpwa: the nodes need GPU=200 in total, but Ray on this machine has GPU=" in too_much.stderr
    )


@pytest.mark.slow
def test_the_quickstart_runs_on_ray_as_it_is() -> None:
    quickstart = PROGRAMS.parents[2] / "examples" / "quickstart.py"
    done = launch_on_ray("-n", "2", "--", sys.executable, str(quickstart))
    assert done.returncode == 0, done.stderr
    errors = [float(error) for error in re.findall(r"whole curve ([\d.]+)", done.stdout)]
    assert len(errors) == 2
    assert max(errors) < 0.03  # alone, each node stays above 0.08
