"""What symmetric exchange does to the disagreement V = sum |x_i - mean|^2, and to the mean.

The pair goes through a whole transaction of the real `Transactions`; only the parameters are
numbers here.
"""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from dpwa.policy.transactions import Acceptance, DecisionOutcome, Transactions

SEED = 17
TRIALS = 4_000


def nodes_of(count):
    return [Transactions(f"w{i}", is_exclusive=True, remember_s=60.0) for i in range(count)]


def exchange(nodes, x, rng, f, now):
    """One exchange of a random pair."""
    i, j = rng.sample(range(len(nodes)), 2)
    a, b, transaction = nodes[i], nodes[j], rng.randbytes(8)
    published = x[i], x[j]
    assert a.propose(transaction, f"w{j}", now, now + 1)
    assert b.accept(transaction, f"w{i}", now, now + 1) is Acceptance.ACCEPTED
    assert a.agreed(transaction)
    assert b.ready(transaction)
    assert a.prepared(transaction)
    assert a.decide(transaction, commit=True, now=now)
    x[i] += f * (published[1] - published[0])
    assert b.decided(transaction, commit=True) is DecisionOutcome.COMMIT
    x[j] += f * (published[0] - published[1])
    a.noted(transaction)


def disagreement(x):
    return float(((x - x.mean()) ** 2).sum())


@pytest.mark.parametrize(("count", "f"), [(2, 0.5), (2, 0.3), (4, 0.5), (8, 0.5), (8, 0.2)])
def test_one_exchange_contracts_as_computed(count, f):
    print(f"seed {SEED}")
    rng, nodes, ratios = random.Random(SEED), nodes_of(count), []
    for trial in range(TRIALS):
        x = np.array([rng.gauss(0, 1) for _ in range(count)])
        before = disagreement(x)
        exchange(nodes, x, rng, f, now=float(trial))
        ratios.append(disagreement(x) / before)
    error = np.std(ratios) / np.sqrt(TRIALS)
    expected = 1 - 4 * f * (1 - f) / (count - 1)
    print(f"N={count} f={f}: {np.mean(ratios):.4f} +- {error:.4f}, expected {expected:.4f}")
    rounding = 1e-12  # two nodes leave nothing to chance
    assert np.mean(ratios) == pytest.approx(expected, abs=5 * error + rounding)


def test_the_mean_is_exact_and_all_come_to_it():
    print(f"seed {SEED}")
    rng, nodes = random.Random(SEED), nodes_of(5)
    x = [Fraction(rng.randrange(-1000, 1000)) for _ in nodes]
    start = sum(x)
    for now in range(300):
        exchange(nodes, x, rng, Fraction(1, 2), float(now))
        assert sum(x) == start
    assert max(x) - min(x) < 1e-9
    assert {sum(node.report().values()) for node in nodes} != {0}
