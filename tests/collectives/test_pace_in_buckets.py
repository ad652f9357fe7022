"""How long nodes wait for each other where the training goes on during all rounds but the last."""

import numpy as np
import pytest
from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from dpwa.collectives.paced import PacedRounds
from dpwa.data.payload import Payload

NODES, STEPS, BUCKETS = 3, 100, 5
FORWARD_S, BACKWARD_S = 0.3, 0.7


def steps_of_all(slower):
    """Return in how many steps all have averaged, if one node takes so many times as long."""
    found = []

    def train(node, runtime, connection):
        rounds = PacedRounds(
            connection.collectives,
            "paced",
            5.0,
            step=lambda: 0,
            copy=lambda: 0,
            take_over=lambda *_: None,
        )
        rounds.begin()
        for _ in range(STEPS):
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

    run = ProgramRun(run_spec(NODES, {"timeout_ms": 5000}, seed=1, seconds=1e6), train)
    run.begin()
    run.until_over(1000.0)
    run.end()
    assert not run.errors
    return found.count({NODES})


@pytest.mark.parametrize(
    ("slower", "least", "most"),
    [
        pytest.param(1.0, STEPS, STEPS, marks=pytest.mark.slow),
        (1.3, STEPS, STEPS),
        (2.0, 0, STEPS // 2),
    ],
)
def test_only_what_the_training_waits_for_is_taken_off(slower, least, most):
    assert least <= steps_of_all(slower) <= most
