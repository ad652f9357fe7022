"""benchmarks/language: runs are disturbed, ended and told as they should be."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.launched import assert_gone, interruptible
from support.nodes import eventually
from support.processes import Program, ended

FOLDER = Path(__file__).parent.parent.parent / "benchmarks" / "language"
RUN = FOLDER / "run.py"
FEW = ("--workers", "2", "--seconds", "5")


def run_here(*arguments):
    script = Program([str(RUN), *arguments])
    with ended(script):
        return script.communicate(timeout=100), script.returncode


def test_it_explains_itself():
    (told, errors), code = run_here("--help")
    assert (code, errors) == (0, "")
    assert "usage: run" in told


def test_a_condition_that_there_is_not_is_a_usage_error():
    (_, errors), code = run_here("--conditions", "calm,kil")
    assert code == 2
    assert "expected some of calm,kill,slow,both (got kil)" in errors


def test_a_system_that_is_not_here_is_left_out_and_it_says_why(tmp_path):
    absent = ("--torchft-python", "/nowhere/python", "--out", str(tmp_path))
    (_, errors), code = run_here("--systems", "torchft,gosip", *absent)
    assert code == 1
    assert "torchft is skipped: /nowhere/python: No such file or directory" in errors
    assert "gosip is skipped" in errors
    assert "expected one of elastic, gossip" in errors


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "figures", raising=False)
    import figures

    return figures


def step(t, **more):
    return {"event": "step", "t": t, "step": int(t), **more}


def loss(mark, value):
    return {"event": "loss", "t": mark + 0.2, "mark": mark, "step": 10 * mark, "loss": value}


def test_the_curve_is_of_what_each_worker_measured_last(figures):
    plan = {"seconds": 20, "evaluate_s": 5}
    records = {0: [loss(5, 3.0), loss(10, 2.2), loss(15, 1.7)], 1: [loss(5, 4.0)]}
    found = figures.figures_of(records, plan, [])
    points = [(p["s"], p["loss"], p["worst"], p["workers"]) for p in found["curve"]]
    assert points == [
        (5, 3.5, 4.0, 2), (10, 3.1, 4.0, 2), (15, 1.7, 1.7, 1), (20, 1.7, 1.7, 1),
    ]  # fmt: skip
    reached = found["reached"]["2.0"]
    assert (reached["s"], reached["step"]) == pytest.approx((10 + 5 * 11 / 14, 75 + 75 * 11 / 14))


def test_a_kill_costs_the_time_until_the_next_steps(figures):
    plan = {"seconds": 20, "evaluate_s": 5}
    killed, other = [step(1), step(14), step(19)], [step(14), step(16.5), step(17), step(21)]
    early = [step(13), step(18), step(19)]  # it does not pause: it was killed just before
    kill, before = {"s": 15, "worker": 0}, {"s": 14, "worker": 2}
    found = figures.figures_of({0: killed, 1: other, 2: early}, plan, [before, kill])
    assert found["kills"][1] == {**kill, "back_s": 4, "pause_s": 2.5}
    assert found["steps_of_workers"] == {0: 3, 1: 3, 2: 3}
    assert found["steps_per_s"] == 9 / 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "setting"), [("adamw", "calm-2-workers"), ("muon", "calm-muon-2-workers")]
)
def test_a_run_ends_with_figures_and_a_picture(optimizer, setting, tmp_path):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    options = ("--systems", "alone,gossip", "--optimizer", optimizer, "--out", str(tmp_path))
    done = subprocess.run(
        [sys.executable, RUN, *FEW, *options], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    for name, workers in (("alone", 1), ("gossip", 2)):
        result = json.loads((tmp_path / f"{setting}-{name}-1.json").read_text())
        assert (result["system"], result["condition"], result["seed"]) == (name, "calm", 1)
        (point,) = result["curve"]
        assert 2 < point["loss"] <= point["worst"] < 6
        assert point["workers"] == workers
        assert len(result["steps_of_workers"]) == workers
        assert result["steps_per_s"] > 0
        assert result["kills"] == []
        assert f"| {name} | 1 | {point['loss']:.3f} |" in done.stdout
    assert (tmp_path / f"{setting}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_behind(tmp_path):
    command = [sys.executable, RUN, "--workers", "2", "--systems", "ddp", "--out", str(tmp_path)]
    with interruptible():
        script = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def workers():
        records = [path.read_text().splitlines() for path in tmp_path.glob("raw/*/w*.jsonl")]
        pids = [json.loads(lines[0])["pid"] for lines in records if lines]
        return pids if len(pids) == 2 else None

    try:
        pids = eventually(workers, 60)
        time.sleep(0.5)
        os.kill(script.pid, signal.SIGINT)
        assert script.wait(timeout=20) == 130
        assert_gone(*pids)
    finally:
        script.terminate()
        script.wait()
