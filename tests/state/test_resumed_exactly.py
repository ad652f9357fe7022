"""Who is killed, and resumed from its checkpoint, ends bit by bit as who was not."""

import itertools
import json
import random

import pytest
from support.nodes import config_of
from support.processes import ended, start
from support.times import PROCESS_HANGS_AFTER_S

STEPS, EVERY = 60, 7
LOOPS = (
    "two_calls",
    "two_calls_and_then_the_schedule",
    "step_first",
    "wait_first",
    "one_call",
    "one_call_and_then_the_schedule",
    "attached",
    "wrapped",  # in a GossipOptimizer
    "numbers",
)
ALGORITHMS = ("together", "local", "push_sum", "symmetric", "noloco")
CASES = [*itertools.product(LOOPS, ["gossip"]), *itertools.product(LOOPS[:-1], ALGORITHMS)]
CHECKED_ALWAYS = [("attached", "gossip"), ("two_calls", "push_sum")]


def run(folder, loop, *options, **settings):
    """The code that a run ends with, and what it tells."""
    checkpoint = {"dir": str(folder), "every_steps": EVERY, "keep": 1}
    config = config_of(1, transport="tcp", checkpoint=checkpoint, **settings)
    process = start("resumed.py", json.dumps(config), loop, "--steps", STEPS, *options)
    with ended(process):
        out, errors = process.communicate(timeout=PROCESS_HANGS_AFTER_S)
    return process.returncode, json.loads(out) if out else errors


def assert_resumed_exactly(folder, loop, kills, options=(), **settings):
    """Let a run be killed at each of these moments, one after the other."""
    code, whole = run(folder / "whole", loop, *options, **settings)
    assert code == 0, whole
    assert whole[:2] == [0, [STEPS, STEPS, 0 if loop == "numbers" else STEPS]]
    for kill in kills:
        assert run(folder / "cut", loop, *options, "--kill", kill, **settings)[0] == -9
    code, rest = run(folder / "cut", loop, *options, **settings)
    assert code == 0, rest
    assert rest[0] > 0
    assert rest[0] % EVERY == 0
    assert rest[1:] == whole[1:]


@pytest.mark.parametrize(
    ("loop", "algorithm"),
    [
        case if case in CHECKED_ALWAYS else pytest.param(*case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_a_run_that_was_killed_twice_or_more_ends_as_one_that_was_not(tmp_path, loop, algorithm):
    rng = random.Random(loop + algorithm)
    kills, options = [rng.randrange(120, 180), rng.randrange(60, 90)], []
    if algorithm == "gossip":
        options = ["--schedule", "cycle"]
    elif (loop, algorithm) not in CHECKED_ALWAYS:
        kills[1:] = (rng.randrange(30, 60) for _ in range(3))
    assert_resumed_exactly(tmp_path, loop, kills, options, algorithm=algorithm)


@pytest.mark.parametrize(
    "loop",
    [
        "two_calls",
        pytest.param("one_call_and_then_the_schedule", marks=pytest.mark.slow),
        pytest.param("attached", marks=pytest.mark.slow),
    ],
)
def test_under_together_who_is_killed_and_comes_back_ends_as_one_node_alone(tmp_path, loop):
    """Two nodes have the same data, so their mean gradient is that of one of them."""
    code, (_, *whole) = run(tmp_path, loop, "--steps", 150)
    assert code == 0
    config = json.dumps(config_of(2, algorithm="together", transport="tcp"))
    options = [config, loop, "--steps", 150, "--pause", 0.02]
    staying = start("resumed.py", *options)
    killed = start("resumed.py", *options, "--name", "w2", "--kill", 150)
    with ended(staying, killed):
        assert killed.wait(PROCESS_HANGS_AFTER_S) == -9
        back = start("resumed.py", *options, "--name", "w2")
        with ended(back):
            told = [p.communicate(timeout=PROCESS_HANGS_AFTER_S)[0] for p in (staying, back)]
    (_, *first), (_, *second) = map(json.loads, told)
    assert first[1] == second[1] == whole[1]
    assert first[0][0] == second[0][0] == 150
