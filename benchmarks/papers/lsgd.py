"""Compare LSGD with EASGD on matrix factorisation from different starts, and on a small network."""

from __future__ import annotations

import math
import statistics

import numpy as np
from claims import Claim, Paper, main, verdict
from swarm import Swarm, SwarmSettings
from training import make, train_round

WORKERS = 8  # for the factorisation
SIZE = 64  # rows and columns of the matrix
REACHED = 1e-4  # target loss, divided by the loss at the start
MAX_STEPS = 400
STEP = 0.2  # learning rate of the factorisation
NETWORK_WORKERS = 4
LR = 0.1  # learning rate of the network
ALONE = {"fetch_probability": 0.0}


class Factorisation:
    """The task to minimize F(X) = |M - X X'|^2 / 4, where X has the shape (`SIZE`, rank).

    The gradient is (X X' - M) X. M is Y Y', and all numbers of Y and of the starts are from
    N(0, 1 / SIZE). X Q has the same F as X for any rotation Q, so workers tend to different minima.
    """

    def __init__(self, rank: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        draws = [rng.normal(scale=SIZE**-0.5, size=(n, SIZE * rank)) for n in (1, WORKERS)]
        answer = draws[0].reshape(SIZE, rank)
        self._matrix = answer @ answer.T
        self._starts = draws[1]
        self._rank = rank

    def starts(self) -> np.ndarray:
        return self._starts.copy()

    def step(self, x: np.ndarray, nodes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        factor = x.reshape(len(x), SIZE, self._rank)
        off = factor @ np.swapaxes(factor, 1, 2) - self._matrix
        x -= STEP * (off @ factor).reshape(x.shape)
        return (off**2).sum(axis=(1, 2)) / 4


def reproduce(seed: int, quick: bool) -> list[Claim]:
    ranks = (16,) if quick else (1, 4, 16, 32)
    seeds = range(seed, seed + (1 if quick else 5))
    return [factorisation(ranks, seeds), *network(seed, *((60, 2) if quick else (400, 10)))]


def factorisation(ranks: tuple[int, ...], seeds: range) -> Claim:
    ways = {
        "lsgd": ("lsgd", {}, {"local_period": 8, "global_period": 32}),
        "elastic": ("elastic", {}, {"period": 4}),
        "workers without exchanges": ("gossip", ALONE, {}),
    }
    steps = {
        name: [
            statistics.mean(steps_to_factorise(*way, rank, one) for one in seeds) for rank in ranks
        ]
        for name, way in ways.items()
    }
    rows = [f"{name} {', '.join(f'{s:.0f}' for s in found)}" for name, found in steps.items()]
    pairs = zip(steps["lsgd"], steps["elastic"], strict=True)
    return Claim(
        "On low-rank matrix problems the best worker of LSGD reaches the minimum sooner than the "
        "best worker of EASGD, which pulls workers to the mean of different minima",
        f"steps until the lowest loss of {WORKERS} workers is {REACHED:g} of the first, for ranks "
        f"{', '.join(map(str, ranks))}: {'; '.join(rows)}",
        verdict(*(ours < theirs for ours, theirs in pairs)),
        "without noise an exchange cannot help, so the best of workers without exchanges is at "
        "least as fast as the best of LSGD",
    )


def steps_to_factorise(
    name: str, settings: dict[str, float], options: dict[str, int], rank: int, seed: int
) -> int:
    """Return the steps until the best worker reaches the target, at most `MAX_STEPS`."""
    task = Factorisation(rank, seed)
    swarm = Swarm(name, task.starts(), SwarmSettings(seed, **settings), **options)
    first = math.inf
    for step in range(MAX_STEPS):
        train_round(swarm, task)
        best = min(worker.loss for worker in swarm.workers)
        first = best if step == 0 else first
        if best <= REACHED * first:
            return step
    return MAX_STEPS


def network(seed: int, steps: int, runs: int) -> list[Claim]:
    ways = {
        "lsgd": ("lsgd", {"loss_window": 8}, {}),
        "elastic": ("elastic", {}, {"period": 4}),
        "gossip": ("gossip", {"delta": True}, {}),
        "workers without exchanges": ("gossip", ALONE, {}),
    }
    found = {name: trained(*way, seed, steps, runs) for name, way in ways.items()}
    means = {name: values.mean(axis=0) for name, values in found.items()}
    errors = {name: values.std(axis=0, ddof=1) / runs**0.5 for name, values in found.items()}
    early, late, accuracy = range(3)
    losses = [f"{name} {m[early]:.3f} and {m[late]:.3f}" for name, m in means.items()]
    right = [f"{name} {m[accuracy]:.4f}" for name, m in means.items()]
    apart = means["lsgd"][accuracy] - means["elastic"][accuracy]
    error = float(np.hypot(errors["lsgd"][accuracy], errors["elastic"][accuracy]))
    return [
        Claim(
            "On networks LSGD converges faster than EASGD",
            f"loss of the mean model after {steps // 4} and {steps} steps: {', '.join(losses)}",
            verdict(
                means["lsgd"][early] < means["elastic"][early],
                means["lsgd"][late] < means["elastic"][late],
            ),
            "here, LSGD is no faster than plain gossip, or than the mean of workers without "
            "exchanges, because digits are an easy problem",
        ),
        Claim(
            "On networks LSGD ends with a lower test error than EASGD",
            f"accuracy after {steps} steps: {', '.join(right)}. The accuracy of `lsgd` minus "
            f"the accuracy of `elastic` is {apart:+.4f} +- {error:.4f}",
            verdict(apart > 2 * error),
            "" if apart > 2 * error else "the errors on these digits do not differ",
        ),
    ]


def trained(
    name: str,
    settings: dict[str, float],
    options: dict[str, int],
    seed: int,
    steps: int,
    runs: int,
) -> np.ndarray:
    """Return losses after a quarter of the steps and after all, and accuracies, shape (runs, 3)."""
    rows = []
    for run in range(seed, seed + runs):
        digits = make("digits", NETWORK_WORKERS, run, model="mlp", batch=128, lr=LR)
        swarm = Swarm(name, digits.starts(), SwarmSettings(run, **settings), **options)
        losses = []
        for step in range(1, steps + 1):
            train_round(swarm, digits)
            if step in (steps // 4, steps):
                losses.append(digits.evaluate(swarm.x.mean(axis=0))[0])
        rows.append((*losses, digits.evaluate(swarm.x.mean(axis=0))[1]))
    return np.array(rows)


PAPER = Paper(
    "Leader Stochastic Gradient Descent for Distributed Training (Teng et al., 2019)",
    "arXiv:1905.10395",
    "The runs use `lsgd` and `elastic` in lockstep, with the same learning rate. The first problem "
    f"is |X X^T - M|^2 / 4 for a {SIZE}x{SIZE} matrix, with {WORKERS} workers from different "
    "starts and without noise. The second is a network with 32 hidden units on scikit-learn's "
    "digits, with 4 workers. The paper trains on CIFAR-10 and ImageNet.",
    reproduce,
)

if __name__ == "__main__":
    main([PAPER], __doc__)
