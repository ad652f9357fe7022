"""Nodes that average in rounds of those who keep pace: who is left out, is late, or comes back."""

import logging

import numpy as np
import pytest
from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from dpwa.collectives.paced import PacedRounds
from dpwa.data.payload import Payload


def play(count, train, timeout_s):
    """Let so many nodes train until all have done so."""
    settings = {"timeout_ms": int(1000 * timeout_s)}
    run = ProgramRun(run_spec(count, settings, seed=1, seconds=1e6), train)
    run.plan_events()
    run.until_over(1000.0)
    run.end_run()
    assert not run.errors


def begun(connection, timeout_s, step=lambda: 0, copy=lambda: 0, take_over=lambda *_: None):
    """Return rounds of a node that has begun."""
    calls = {"step": step, "copy": copy, "take_over": take_over}
    rounds = PacedRounds(connection.collectives, "paced", timeout_s, **calls)
    rounds.begin_rounds()
    return rounds


# Two nodes, of which one leaves out a step, or takes no more of them

TIMEOUT_S, SPECIAL = 4.0, 20


def updates_of_the_first(second, pause_s=0.03, first=lambda *_: None):
    """Return how long updates of the first node have waited; the others do as they are told.

    `second(step, runtime, connection)`, and so `first`, is called before each of its steps, and
    returns whether it takes part in the round, or `None` to take no more steps.
    """
    found = []

    def train(node, runtime, connection):
        rounds = begun(connection, TIMEOUT_S)
        for step in range(60):
            told = step, runtime, connection
            has_part = second(*told) if node.index else first(*told) or True
            runtime.sleep(pause_s)
            began = runtime.now()
            if has_part is None:
                return
            if has_part:
                rounds.average(Payload(np.ones(1)))
            rounds.stepped(int(has_part))
            if node.index == 0:
                found.append(runtime.now() - began)

    play(2, train, TIMEOUT_S)
    return found


@pytest.mark.parametrize("first", [0, SPECIAL])
def test_a_step_that_is_left_out_is_no_reason_to_warn(first, caplog):
    with caplog.at_level(logging.WARNING, "dpwa"):
        updates_of_the_first(lambda step, *_: step != first)
    assert "W078" not in caplog.text


@pytest.mark.parametrize("first", [0, SPECIAL])
def test_an_update_waits_no_longer_than_its_timeout_for_a_peer_that_steps_no_more(first, caplog):
    def second(step, runtime, _):
        if step == first - 1:
            runtime.sleep(1.2)  # it is left out once, and has just been let in again
        if step == first:
            runtime.sleep(60.0)
        return None if step == first else True

    with caplog.at_level(logging.WARNING, "dpwa"):
        waited_s = updates_of_the_first(second, pause_s=0.2)
    assert max(waited_s) <= TIMEOUT_S
    assert sum(waited_s) < 2 * TIMEOUT_S
    assert caplog.text.count("W078") == 1


def test_a_node_that_waits_in_a_barrier_holds_up_no_round():
    def second(step, _, connection):
        if step == 1:  # after a step that was left out
            connection.barrier()
        return step > 0

    def first(step, _, connection):
        if step == 1:
            connection.barrier()

    assert max(updates_of_the_first(second, first=first)) < 0.5


# A node that leaves its group between a round and the end of the step, as at an interrupt

STEPS, LEAVES_AT = 20, 8


def averaged_with(count):
    """Train with so many nodes, of which the last one leaves once.

    Returns:
        For each node and step: how many were in the round, and the state after the step.
    """
    found = {}

    def train(node, runtime, connection):
        state, mine = [0.0], found.setdefault(node.index, [])
        rounds = begun(
            connection,
            5.0,
            step=lambda: len(mine),
            copy=lambda: list(state),
            take_over=lambda _, given: state.__setitem__(0, given[0]),
        )
        for step in range(STEPS):
            runtime.sleep(0.1)
            value = Payload(gradient := np.full(1, float(node.index + step)))
            contributors = rounds.average(value)
            state[0] += gradient[0]
            if step == LEAVES_AT and node.index == count - 1:
                connection.collectives.group("paced").leave_group()
            rounds.stepped()
            mine.append((contributors, state[0]))

    play(count, train, 5.0)
    return found


@pytest.mark.parametrize("count", [2, 3])
def test_a_node_that_was_evicted_after_its_round_is_back_before_its_next_one(count):
    found = averaged_with(count)
    of_the_last, of_the_first = found[count - 1], found[0]
    contributors = [number for number, _ in of_the_last[: STEPS - 1]]
    assert contributors == [count] * (STEPS - 1)  # it is one step behind the others then
    after = slice(LEAVES_AT + 2, STEPS)
    assert [state for _, state in of_the_first[after]] == [
        state for _, state in of_the_last[LEAVES_AT + 1 : STEPS - 1]
    ]


# How long nodes wait for each other where the training goes on during all rounds but the last

IN_BUCKETS, BUCKETS = 50, 5  # steps, and rounds of each
FORWARD_S, BACKWARD_S = 0.3, 0.7


def steps_of_all(slower):
    """Return in how many steps all three have averaged, if one takes so many times as long."""
    found = []

    def train(node, runtime, connection):
        rounds = begun(connection, 5.0)
        for _ in range(IN_BUCKETS):
            began, taken_part = runtime.now(), set()
            for bucket in range(1, BUCKETS + 1):
                made_s = FORWARD_S + BACKWARD_S * bucket / BUCKETS
                made_at = began + made_s * (slower if node.index == 0 else 1.0)
                runtime.sleep(max(0.0, made_at - runtime.now()))
                last = {"is_last": bucket == BUCKETS, "waits_since": made_at}
                taken_part.add(rounds.average(Payload(np.ones(1)), **last))
            rounds.stepped()
            if node.index == 1:
                found.append(taken_part)

    play(3, train, 5.0)
    return found.count({3})


@pytest.mark.parametrize(
    ("slower", "least", "most"),
    [
        pytest.param(1.0, IN_BUCKETS, IN_BUCKETS, marks=pytest.mark.slow),
        (1.3, IN_BUCKETS, IN_BUCKETS),
        pytest.param(2.0, 0, IN_BUCKETS // 2, marks=pytest.mark.slow),
    ],
)
def test_only_what_the_training_waits_for_is_taken_off(slower, least, most):
    assert least <= steps_of_all(slower) <= most
