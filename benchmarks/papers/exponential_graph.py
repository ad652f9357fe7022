"""Measure the error of the mean in one-peer exponential graphs after log2 N rounds."""

from __future__ import annotations

import random

import numpy as np
from claims import Claim, Paper, main, verdict
from swarm import Swarm, SwarmSettings

from dpwa.policy.mixing import mixing_matrix, second_modulus
from dpwa.policy.topology import Topology, log2_ceiling, topology
from dpwa.types import NoOptions

EXACT = 1e-12  # rounding error, divided by the distance at the start


def reproduce(seed: int, quick: bool) -> list[Claim]:
    most = 6 if quick else 8
    powers = [2**k for k in range(1, most + 1)]
    others = [n for n in range(3, 40 if quick else 130) if n & (n - 1)]
    one_peer = topology("one_peer_exponential")
    exact = [left(one_peer, n, log2_ceiling(n), seed) for n in powers]
    once = [left(one_peer, n, log2_ceiling(n), seed) for n in others]
    thrice = [left(one_peer, n, 3 * log2_ceiling(n), seed) for n in others]
    permuted = [left(drawn(seed, n, True), n, log2_ceiling(n), seed) for n in powers[1:]]
    replaced = [left(drawn(seed, n, False), n, log2_ceiling(n), seed) for n in powers[1:]]
    return [
        Claim(
            "The mean is exact after log2 N rounds if N is a power of two",
            f"N = 2 to {powers[-1]}: at most {max(exact):.0e} of the distance is left",
            verdict(max(exact) < EXACT),
        ),
        Claim(
            "The mean is not exact for any other N",
            f"N = 3 to {others[-1]}: {min(once):.2g} to {max(once):.2g} of the distance is left "
            f"after ceil(log2 N) rounds, and up to {max(thrice):.1g} after three times as many",
            verdict(min(once) > EXACT),
            "each further period reduces the distance again",
        ),
        Claim(
            "The mean is also exact if each period has the steps 1, 2, 4, ... in a random order, "
            "but not if each round picks a random step",
            f"N = 4 to {powers[-1]}: at most {max(permuted):.0e} of the distance is left with a "
            f"random order, and up to {max(replaced):.2f} with random steps",
            verdict(max(permuted) < EXACT, max(replaced) > EXACT),
        ),
        gaps(powers if quick else [*powers, 512], others),
    ]


def left(graph: Topology, nodes: int, rounds: int, seed: int) -> float:
    """Return the distance to the mean after the rounds, divided by the distance at the start."""
    starts = np.random.default_rng(seed).normal(size=(nodes, 2))
    swarm = Swarm("gossip", starts, SwarmSettings(seed, graph, graph.options(), factor=0.5))
    for _ in range(rounds):
        swarm.round()
    mean = starts.mean(axis=0)
    return float(np.linalg.norm(swarm.x - mean) / np.linalg.norm(starts - mean))


def drawn(seed: int, nodes: int, is_permuted: bool) -> Topology:
    """Return the graph with its steps in a random order, or with independent random steps."""
    exponents = list(range(log2_ceiling(nodes)))
    rng = random.Random(seed)
    order = rng.sample(exponents, len(exponents)) if is_permuted else rng.choices(exponents, k=9)

    def rule(options: object, index: int, nodes: int, round_number: int) -> list[int]:  # noqa: ARG001
        return [(index + 2 ** order[round_number % len(order)]) % nodes]

    return Topology("drawn", NoOptions, rule, lambda options, nodes: len(order))  # noqa: ARG005


def gaps(even: list[int], others: list[int]) -> Claim:
    static = topology("exponential")
    equal, above = [], []
    for nodes in sorted({*even, *others}):
        degree = log2_ceiling(nodes)
        weight = degree / (degree + 1)  # the node and all its neighbors count equally
        modulus = second_modulus(mixing_matrix(static, static.options(), nodes, weight))
        off = (1.0 - modulus) - 2.0 / (1 + degree)
        (above if nodes % 2 else equal).append(off)
    return Claim(
        "The static graph has a spectral gap of 2 / (1 + ceil(log2 N)) for even N, more for odd N",
        f"the difference is at most {max(map(abs, equal)):.0e} for even N, and from "
        f"{min(above):.2f} to {max(above):.2f} for odd N",
        verdict(max(map(abs, equal)) < EXACT, min(above) > EXACT),
    )


PAPER = Paper(
    "Exponential Graph is Provably Efficient for Decentralized Deep Training (Ying et al., 2021)",
    "arXiv:2110.13363",
    "The runs use `gossip` with `one_peer_exponential` and f = 0.5 in lockstep, and the "
    "mixing matrices of `exponential`.",
    reproduce,
)

if __name__ == "__main__":
    main([PAPER], __doc__)
