"""Results of `dpwa sim`: those of stopped runs, of repeated ones, and of folders."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import run_dpwa
from support.nodes import eventually

from dpwa.cli.sim_report import Comparison
from dpwa.sim.sweep import plan_runs, run_all

SCENARIO = {"nodes": 6, "rounds": 8, "schedule": "lockstep", "target": {"variance_ratio": 1e-2}}
DPWA = (sys.executable, "-m", "dpwa")


@pytest.fixture(scope="module")
def runs():
    sweep = {"topology": ["random", "ring"]}
    planned = plan_runs(SCENARIO, {"rounds": 40}, sweep, repeat=3)
    return run_all(planned, processes=1, progress=lambda _: True)


def test_of_runs_that_were_stopped_none_is_the_best(runs):
    assert Comparison("ours", runs, is_sweep=True).best is not None
    stopped = replace(runs[1], figures=replace(runs[1].figures, was_stopped=True))
    found = Comparison("ours", [runs[0], stopped, *runs[2:]], is_sweep=True)
    assert found.best is None
    assert found.to_json()["best"] is None


def test_a_mistake_leaves_no_folder(tmp_path):
    out = tmp_path / "out"
    assert run_dpwa("sim", "one-straggler", "--set", "nodes=0", "--out", out).exit_code == 2
    assert not out.exists()


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_simulated(tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    began = time.monotonic()
    told = run_dpwa("sim", "one-straggler", "--set", "seconds=1e6", "--out", out)
    assert told.exit_code == 2
    assert f"--out: {out} cannot be written" in told.stderr
    assert time.monotonic() - began < 60.0  # the run takes hours


def test_without_greenlet_it_is_told_once_and_nothing_is_written(monkeypatch):
    monkeypatch.setitem(sys.modules, "greenlet", None)  # as if it were not installed
    for name in [name for name in sys.modules if name.startswith("dpwa.sim.nodes")]:
        monkeypatch.delitem(sys.modules, name)
    found = run_dpwa("sim", "one-straggler", "--sweep", "algorithm=gossip,lsgd", "--json")
    assert (found.exit_code, found.stdout) == (2, "")
    (line,) = found.stderr.splitlines()
    assert "simulated nodes need greenlet" in line


def children_of(pid):
    """Process ids of the children of a process."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def stopped(number, out, ready):
    """Send a signal to all processes of a long sweep when it is ready; return what became of it."""
    sweep = subprocess.Popen(
        [*DPWA, "sim", "one-straggler", "--set", "seconds=1e6", "--set", "target.loss=1e-300",
         "--sweep", "seed=1,2", "--processes", "2", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        ready(sweep)
        os.killpg(sweep.pid, number)
        _, errors = sweep.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(sweep.pid, signal.SIGKILL)
    assert "Traceback" not in errors
    assert "leaked" not in errors
    return sweep.returncode, errors


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)],
)  # Ctrl-C of a single run is in test_sim_command.py
def test_a_terminal_and_a_scheduler_stop_a_sweep_with_what_it_has(tmp_path, number, code):
    found, errors = stopped(
        number, tmp_path, lambda sweep: eventually(lambda: len(children_of(sweep.pid)) >= 3, 30)
    )  # the two that simulate, and one that cleans up after them
    assert found == code
    assert "stopped after 0 of 2 runs" in errors
    assert (tmp_path / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("after_s", [0.6, 1.0, 1.4, 1.8, 2.2, 2.6])
def test_a_signal_while_processes_start_is_like_any_other(tmp_path, number, code, after_s):
    found, _ = stopped(number, tmp_path, lambda _: time.sleep(after_s))
    assert found in (code, -number)  # nothing is under way yet that could be stopped
