"""Optimizers of any form in processes: a late node and a killed one go on bit by bit."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.nodes import config_of
from support.optimizer_forms import FORMS
from support.processes import ended, start
from support.times import PROCESS_HANGS_AFTER_S

STEPS = 20
CHECKED_ALWAYS = {"lookahead of nested"}
forms = pytest.mark.parametrize(
    "form",
    [form if form in CHECKED_ALWAYS else pytest.param(form, marks=pytest.mark.slow)
     for form in FORMS],
)  # fmt: skip


def node(name, config, form, *options):
    return start("together.py", name, json.dumps(config), STEPS, "--form", form, *options)


def rows_of(process):
    out, error = process.communicate(timeout=PROCESS_HANGS_AFTER_S)
    rows = [json.loads(line) for line in out.splitlines()]
    return [row for row in rows if row != "done"], error


@forms
def test_under_together_a_late_node_has_the_others_bits_after_each_step(form):
    config = config_of(2, algorithm="together")
    first = node("w1", config, form, "--whole")
    with ended(first):
        rows = [json.loads(first.stdout.readline()) for _ in range(8)]
        second = node("w2", config, form, "--whole")
        with ended(second), ThreadPoolExecutor(2) as pool:
            (more, _), (late, error) = pool.map(rows_of, [first, second])
    assert "DPWA-W085" not in error
    by_step = {row["step"]: row for row in rows + more}
    both = [row for row in late if row["pace"] == ["w1", "w2"] and row["step"] in by_step]
    assert len(both) > 5, (late, error)
    for row in both:
        if by_step[row["step"]]["pace"] == row["pace"]:
            assert row["digest"] == by_step[row["step"]]["digest"], row["step"]


@forms
def test_a_killed_node_ends_as_one_that_was_not(form, tmp_path):
    ends = []
    for folder, *kill in (["whole"], ["killed", "--kill", 15], ["killed"]):
        checkpoint = {"dir": str(tmp_path / folder), "every_steps": 4}
        config = config_of(1, checkpoint=checkpoint, initial_state="peers", log_level="error")
        process = node("w1", config, form, *kill)
        with ended(process):
            rows, error = rows_of(process)
        assert process.returncode == (-signal.SIGKILL if kill else 0), error
        ends.append(rows)
    assert ends[2][0]["step"] > 4  # it has not begun anew
    whole, _, back = (rows[-1] | {"s": 0.0} for rows in ends)  # however long it took
    assert back == whole
