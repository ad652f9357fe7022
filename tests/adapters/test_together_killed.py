"""`algorithm: together` between processes, of which one is killed or stopped at a chosen moment."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.nodes import config_of
from support.processes import PROGRAMS, Program, ended
from support.times import PROCESS_HANGS_AFTER_S, at_most

STEPS = 60
slow = pytest.mark.slow
POINTS = ["called", "entered", "met", "exchanged", "ready", "ended"]
CHECKED_ALWAYS = {"exchanged"}


class Trainer:
    def __init__(self, name, config, *, steps=STEPS, faults=""):
        argv = [str(PROGRAMS / "together.py"), name, json.dumps(config), str(steps)]
        self.process = Program(argv, has_input=True, DPWA_FAULTS=faults)
        self.rows = []

    def row(self):
        """Read a row; `None` at the end."""
        line = self.process.stdout.readline()
        row = json.loads(line) if line else "done"
        if row == "done":
            return None
        self.rows.append(row)
        return row

    def to_the_end(self):
        while self.row() is not None:
            pass
        return self.rows


def config_for(count, **settings):
    return config_of(count, algorithm="together", log_level="error", timeout_ms=2500, **settings)


def assert_equal_in_pace(*rows_of):
    """Whoever has kept pace with another after a step has what that one has."""
    by_step = [{row["step"]: row for row in rows} for rows in rows_of]
    compared = 0
    for one in by_step:
        for other in by_step:
            for step in one.keys() & other.keys():
                if one[step]["pace"] and one[step]["pace"] == other[step]["pace"]:
                    assert one[step]["digest"] == other[step]["digest"], step
                    compared += 1
    return compared


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        pytest.param(point, nth, marks=[slow] * (nth < 20 or point not in CHECKED_ALWAYS))
        for point in POINTS
        for nth in (1, 2, 20)
    ],
)
def test_the_others_go_on_wherever_in_a_round_one_is_killed(point, nth):
    config = config_for(3, transport="tcp")  # so that buckets are averaged during the pass
    survivors = [Trainer(name, config) for name in ("w1", "w2")]
    killed = Trainer("w3", config, faults=f"collective.{point}:{nth}:SIGKILL")
    with ended(*(trainer.process for trainer in (*survivors, killed))):
        rows = [trainer.to_the_end() for trainer in survivors]
        killed.to_the_end()
        assert killed.process.wait(PROCESS_HANGS_AFTER_S) == -signal.SIGKILL
    assert [row[-1]["step"] for row in rows] == [STEPS, STEPS]
    assert [row[-1]["pace"] for row in rows] == [["w1", "w2"]] * 2
    assert assert_equal_in_pace(*rows) > STEPS


def test_who_was_killed_comes_back_with_what_the_others_have():
    config = config_for(3)
    trainers = [Trainer(f"w{index}", config, steps=2000) for index in (1, 2, 3)]
    with ended(*(trainer.process for trainer in trainers)):
        while trainers[2].row()["step"] < 20:
            pass
        trainers[2].process.kill()
        trainers[2].process.wait(PROCESS_HANGS_AFTER_S)
        trainers[2] = Trainer("w3", config, steps=2000)
        with ended(trainers[2].process):
            together = 0
            while together < 20:
                together += trainers[2].row()["pace"] == ["w1", "w2", "w3"]
            for trainer in trainers:
                trainer.process.kill()
            rows = [trainer.to_the_end() for trainer in trainers]
    assert rows[2][0]["step"] > 20
    assert assert_equal_in_pace(*rows) > 3 * 20


@slow
def test_one_that_is_stopped_for_twenty_seconds_costs_a_deadline_and_is_back_within_five():
    config = config_for(3)
    trainers = [Trainer(f"w{index}", config, steps=2000) for index in (1, 2, 3)]
    with ThreadPoolExecutor(2) as pool, ended(*(trainer.process for trainer in trainers)):
        # All the time: who prints more than a pipe holds stands still.
        others = [pool.submit(trainer.to_the_end) for trainer in trainers[:2]]
        while trainers[2].row()["step"] < 50:
            pass
        trainers[2].process.send_signal(signal.SIGSTOP)
        time.sleep(20.0)
        trainers[2].process.send_signal(signal.SIGCONT)
        began = time.monotonic()
        while trainers[2].row()["pace"] != ["w1", "w2", "w3"]:
            pass
        assert time.monotonic() - began < at_most(5.0)
        for trainer in trainers:
            trainer.process.send_signal(signal.SIGKILL)
        rows = [*(other.result() for other in others), trainers[2].to_the_end()]
    settled = [row for row in rows[0] if row["step"] > 5]
    assert ["w1", "w2"] in [row["pace"] for row in settled]
    assert max(row["s"] for row in settled) < at_most(0.5 + 0.1)
    assert assert_equal_in_pace(*rows) > 100


def test_two_of_whom_one_is_killed_one_trains_alone_and_says_so():
    config = config_for(2) | {"log_level": "warning"}
    alone, killed = (Trainer(name, config, steps=100) for name in ("w1", "w2"))
    with ended(alone.process, killed.process):
        while killed.row()["step"] < 20:
            pass
        killed.process.kill()
        rows = alone.to_the_end()
        alone.process.stdin.close()
        alone.process.wait(PROCESS_HANGS_AFTER_S)
        told = alone.process.stderr.read()
    assert rows[-1]["step"] == 100
    assert (
        "no other node is in sync, so this node trains alone until a node joins [DPWA-W078]" in told
    )
