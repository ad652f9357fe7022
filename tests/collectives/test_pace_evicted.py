"""A node that leaves its group between a round and the end of the step, as at an interrupt."""

import numpy as np
import pytest
from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from dpwa.collectives.paced import PacedRounds
from dpwa.data.payload import Payload

STEPS, LEAVES_AT = 20, 8


def averaged_with(count):
    """Train with so many nodes, of which the last one leaves once.

    Returns:
        For each node and step: how many were in the round, and the state after the step.
    """
    found = {}

    def train(node, runtime, connection):
        state, mine = [0.0], found.setdefault(node.index, [])
        rounds = PacedRounds(
            connection.collectives,
            "paced",
            5.0,
            step=lambda: len(mine),
            copy=lambda: list(state),
            take_over=lambda _, given: state.__setitem__(0, given[0]),
        )
        rounds.begin()
        for step in range(STEPS):
            runtime.sleep(0.1)
            value = Payload(gradient := np.full(1, float(node.index + step)))
            contributors = rounds.average(value)
            state[0] += gradient[0]
            if step == LEAVES_AT and node.index == count - 1:
                connection.collectives.runner("paced").group.leave()
            rounds.stepped()
            mine.append((contributors, state[0]))

    run = ProgramRun(run_spec(count, {"timeout_ms": 5000}, seed=1, seconds=1e6), train)
    run.begin()
    run.until_over(1000.0)
    run.end()
    assert not run.errors
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
