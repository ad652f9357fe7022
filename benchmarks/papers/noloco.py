"""Find the values of alpha and gamma for which NoLoCo's outer steps are stable."""

from __future__ import annotations

import numpy as np
from claims import Claim, Paper, main, verdict
from swarm import Swarm, SwarmSettings

from dpwa.algorithms.outer import NoLoCoOptions, noloco_limit

ALPHAS = (0.0, 0.3, 0.5, 0.7, 0.9)
SHARES = (0.9, 1.0, 1.1, 1.2)  # values of gamma, divided by the limit
SIZE, ROUNDS = 16, 100
NEAR = 0.1  # tolerance, divided by the limit


def reproduce(seed: int, quick: bool) -> list[Claim]:
    alphas = (0.5,) if quick else ALPHAS
    found = {
        nodes: [measured_limit(nodes, alpha, seed) for alpha in alphas]
        for nodes in ((32,) if quick else (64, 256))
    }
    rows = [
        f"{', '.join(f'{limit:.2f}' for limit in limits)} times the formula with {nodes} nodes"
        for nodes, limits in found.items()
    ]
    small = [growth(64, alpha, 0.05, seed) for alpha in alphas]
    usual, heavy = growth(64, 0.5, 0.7, seed), growth(64, 0.9, 0.7, seed)
    at = ", ".join(f"{alpha:g}" for alpha in alphas)
    return [
        Claim(
            "The distance between nodes stays bounded for 0 < gamma < 2(1 - alpha^2)",
            f"the measured limit for alpha = {at} is {'; '.join(rows)}. "
            f"With gamma = 0.05, {sum(v < 0 for v in small)} of {len(small)} converge",
            verdict(
                *(abs(limit - 1) < NEAR for limits in found.values() for limit in limits),
                *(value < 0 for value in small),
            ),
            "the formula is for many nodes, and was derived here. dpwa refuses settings beyond it",
        ),
        Claim(
            "The usual alpha 0.5 and gamma 0.7 are stable. With DiLoCo's momentum of 0.9, the same "
            "gamma is not",
            f"each round multiplies V by {np.exp(usual):.2f} with alpha 0.5, and by "
            f"{np.exp(heavy):.2f} with alpha 0.9",
            verdict(usual < 0, heavy > 0),
        ),
    ]


def measured_limit(nodes: int, alpha: float, seed: int) -> float:
    """Return the gamma with a growth of 0, divided by `noloco_limit`, or NaN if there is none."""
    limit = noloco_limit(alpha)
    growths = [growth(nodes, alpha, share * limit, seed) for share in SHARES]
    if not growths[0] < 0 < growths[-1]:
        return float("nan")
    return float(np.interp(0.0, growths, SHARES))


def growth(nodes: int, alpha: float, gamma: float, seed: int) -> float:
    """Return the change of log V per round without training, over the last two thirds of rounds."""
    starts = np.random.default_rng(seed).normal(size=(nodes, SIZE))
    swarm = Swarm("noloco", starts, SwarmSettings(seed), period=1)
    for worker in swarm.workers:  # without validation, because dpwa refuses a gamma above the limit
        worker.algorithm.options = NoLoCoOptions.model_construct(
            period=1, alpha=alpha, beta=0.7, gamma=gamma
        )
    logs = []
    for _ in range(ROUNDS):
        swarm.round()
        logs.append(np.log(((swarm.x - swarm.x.mean(axis=0)) ** 2).sum()))
    begun = ROUNDS // 3
    return float(logs[-1] - logs[begun]) / (ROUNDS - 1 - begun)


PAPER = Paper(
    "NoLoCo: No-all-reduce Low Communication Training (Kolehmainen et al., 2025)",
    "arXiv:2506.10911",
    "The runs use `noloco` without training, with an outer step in each round and random partners.",
    reproduce,
)

if __name__ == "__main__":
    main([PAPER], __doc__)
