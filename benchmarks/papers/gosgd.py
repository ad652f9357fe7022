"""Measure GoSGD with rare and frequent exchanges, and compare it with EASGD."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from claims import Claim, Paper, main, verdict
from swarm import Swarm, SwarmSettings
from training import distance, make, train_round

NODES = 8
PROBABILITIES = (0.01, 0.02, 0.1, 0.4, 1.0)
LR = 0.05
NEAR = 0.05  # tolerance, divided by a loss


@dataclass(frozen=True)
class Result:
    loss: float  # of the mean model, on test examples
    accuracy: float
    distance: float  # from the nodes to their mean, over the second half of the steps


def reproduce(seed: int, quick: bool) -> list[Claim]:
    steps, runs = (200, 1) if quick else (600, 5)
    chances = PROBABILITIES[::4] if quick else PROBABILITIES
    seeds = range(seed, seed + runs)

    def push_sum(is_private: bool) -> dict[float, Result]:
        found = {}
        for chance in (0.0, *chances):
            found[chance] = train("push_sum", seeds, steps, is_private, probability=chance)
        return found

    alike, apart = push_sum(False), push_sum(True)
    elastic = {p: train("elastic", seeds, steps, False, period=round(1 / p)) for p in chances}
    return [
        rarely_is_enough(alike, apart),
        consensus(alike),
        beside_elastic(alike, elastic),
    ]


def train(name: str, seeds: range, steps: int, is_private: bool, **options: float) -> Result:
    results = []
    for seed in seeds:
        digits = make("digits", NODES, seed, model="mlp", batch=32, lr=LR, private=is_private)
        swarm = Swarm(name, digits.starts(), SwarmSettings(seed), **options)
        distances = []
        for step in range(steps):
            train_round(swarm, digits)
            if step >= steps // 2 and step % 10 == 0:
                distances.append(distance(swarm))
        mean = swarm.x.mean(axis=0)
        results.append((*digits.evaluate(mean), statistics.mean(distances)))
    return Result(*(float(value) for value in np.mean(results, axis=0)))


def rarely_is_enough(alike: dict[float, Result], apart: dict[float, Result]) -> Claim:
    most = max(alike)
    rare = min(p for p in alike if p)
    costs = {at: found[rare].loss / found[most].loss for at, found in enumerate((alike, apart))}
    return Claim(
        "Exchanges may be rare: a small probability p trains as well as a large one",
        f"loss of the mean model with p = {_list(alike)}: "
        f"{', '.join(f'{r.loss:.3f}' for r in alike.values())} if all nodes sample all digits, "
        f"{', '.join(f'{r.loss:.2f}' for r in apart.values())} (accuracy "
        f"{', '.join(f'{r.accuracy:.2f}' for r in apart.values())}) if each node has few classes",
        verdict(costs[0] < 1 + NEAR, costs[1] < 1 + NEAR),
        "the claim holds if all nodes have the same data. But then the mean model is as good with "
        "p = 0. If each node has its own classes, each exchange matters",
    )


def consensus(alike: dict[float, Result]) -> Claim:
    chances = [p for p in alike if p]
    distances = [alike[p].distance for p in chances]
    falls = all(one > other for one, other in pairwise(distances))
    return Claim(
        "Good consensus: nodes stay near each other even with rare exchanges",
        f"distance to the mean with p = {_list(alike)}: "
        f"{', '.join(f'{result.distance:.3f}' for result in alike.values())}",
        verdict(falls, distances[0] < 0.75 * alike[0.0].distance),
    )


def beside_elastic(alike: dict[float, Result], elastic: dict[float, Result]) -> Claim:
    losses = [elastic[p].loss for p in elastic]
    distances = [elastic[p].distance for p in elastic]
    return Claim(
        "With as many exchanges and steps, GoSGD has a lower loss than EASGD",
        f"p = {_list(elastic)}: loss {', '.join(f'{alike[p].loss:.3f}' for p in elastic)}, and for "
        f"`elastic` with period 1/p {', '.join(f'{loss:.3f}' for loss in losses)}. Distance "
        f"{', '.join(f'{alike[p].distance:.2f}' for p in elastic)} and "
        f"{', '.join(f'{found:.2f}' for found in distances)}",
        verdict(
            all(alike[p].loss < elastic[p].loss for p in elastic),
            all(alike[p].distance < elastic[p].distance for p in elastic),
        ),
        "EASGD is dpwa's `elastic`, whose center has no server. Its center is behind the nodes, "
        "and the pull to the center undoes part of each step",
    )


def _list(found: dict[float, Result]) -> str:
    return ", ".join(f"{p:g}" for p in found)


PAPER = Paper(
    "Gossip training for deep learning (Blot et al., 2016)",
    "arXiv:1611.09726",
    f"The runs use `push_sum` in lockstep with {NODES} nodes. They train a network with 32 hidden "
    "units on scikit-learn's digits. The paper trains on CIFAR-10.",
    reproduce,
)

if __name__ == "__main__":
    main([PAPER], __doc__)
