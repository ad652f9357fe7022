"""Two nodes that average in rounds, of which one leaves out a step, or takes no more of them."""

import logging

import numpy as np
import pytest
from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from dpwa.collectives.paced import PacedRounds
from dpwa.data.payload import Payload

TIMEOUT_S, STEPS, SPECIAL = 4.0, 60, 20


def updates_of_the_first(second, pause_s=0.03, first=lambda *_: None):
    """Return how long updates of the first node have waited; the others do as they are told.

    `second(step, runtime, connection)`, and so `first`, is called before each of its steps, and
    returns whether it takes part in the round, or `None` to take no more steps.
    """
    found = []

    def train(node, runtime, connection):
        rounds = PacedRounds(
            connection.collectives,
            "paced",
            TIMEOUT_S,
            step=lambda: 0,
            copy=lambda: 0,
            take_over=lambda *_: None,
        )
        rounds.begin()
        for step in range(STEPS):
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

    run = ProgramRun(run_spec(2, {"timeout_ms": int(1000 * TIMEOUT_S)}, seed=1, seconds=1e6), train)
    run.begin()
    run.until_over(1000.0)
    run.end()
    assert not run.errors
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
