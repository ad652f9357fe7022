"""Compare gossip with all-reduce in virtual time, with a straggler and with up to 64 nodes.

Gossip runs in the simulator. A node starts a step after the step before and the fetch of a peer's
snapshot. A synchronous round takes the time of the slowest step and of a ring all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import numpy as np
from claims import Claim, Paper, main, verdict
from numpy.typing import NDArray

from dpwa.config import load_config
from dpwa.sim.conditions import Conditions
from dpwa.sim.nodes.engine import NodesRun
from dpwa.sim.scenario import RunSpec, Scenario, node_name
from dpwa.sim.tasks import TASKS, make_task

MAX_RUN_S = 600.0  # virtual time of a run
TARGET = 0.2  # loss. The loss at the start is about 45
SLOWER = 10.0  # factor for the steps of the straggler
SLOW_SIZE = 16  # number of nodes, one of which is the straggler
MODEL_MB = 100.0
NETWORK = {"latency_ms": 0.05, "upload_mbps": 10_000.0, "download_mbps": 10_000.0}
COMPUTE = {"step_ms": 100.0, "jitter": 0.2}
TASK = {"dimension": 128, "curvature": 1.0, "flattest": 0.5, "noise": 1.0}
SIZES, QUICK_SIZES = (2, 4, 8, 16, 32, 64), (2, 8)
RUNS = {2: 4, 4: 3, 8: 2}  # by the number of nodes. Runs of few nodes differ more
FIRST_RATE = 2.0**-6
LOOK_EVERY_S = 0.025  # a quarter of a step


def run_of(nodes: int, seed: int, rate: float, straggles: bool = False) -> RunSpec:
    slow = [{"nodes": 1, "slower": SLOWER}] if straggles else []
    scenario = Scenario.model_validate(
        {
            "nodes": nodes,
            "seed": seed,
            "task": "quadratic",
            "seconds": MAX_RUN_S,
            "model_mb": MODEL_MB,
            "network": NETWORK,
            "compute": {**COMPUTE, "stragglers": slow},
        }
    )
    listed = [{"name": node_name(i), "host": f"10.0.0.{i + 1}", "port": 7000} for i in range(nodes)]
    config = load_config({"nodes": listed, "seed": seed, "merge": "delta"})
    return RunSpec(scenario, config, TASKS["quadratic"].options(**TASK, lr=rate))


CURVATURES = np.geomspace(TASK["curvature"], TASK["flattest"], TASK["dimension"])


def is_reached(x: NDArray[np.float64], *, of_mean: bool) -> bool:
    """Return whether the target is reached by the mean loss of models (N, D), or of their mean."""
    models = x.mean(axis=0) if of_mean else x
    return bool(np.mean(0.5 * models**2 @ CURVATURES) <= TARGET)


def by_all_reduce(spec: RunSpec, limit_s: float) -> float:
    """Return the seconds to the target if each step takes the mean of all gradients."""
    task, conditions, nodes = make_task(spec), Conditions(spec), np.arange(spec.scenario.nodes)
    x, now = task.starts(), 0.0
    for updates in count():
        if is_reached(x, of_mean=True):
            return now
        if now > limit_s:
            return math.inf
        slowest_s = max(conditions.step_s(node, updates, now) for node in nodes)
        task.step(x, nodes)
        x[:] = x.mean(axis=0)  # all models were equal, so this is a step with the mean gradient
        now += slowest_s + ring_s(spec.scenario)
    return math.inf


def ring_s(scenario: Scenario) -> float:
    """Return the seconds of a ring all-reduce, which is 2(N-1) messages of 1/N of the model."""
    part_s = 8 * MODEL_MB / scenario.nodes / scenario.network.upload_mbps
    return 2 * (scenario.nodes - 1) * (part_s + scenario.network.latency_ms / 1000)


def by_gossip(spec: RunSpec, limit_s: float, *, of_mean: bool) -> float:
    """Return the seconds to the target with gossip.

    The target is for the mean of the nodes' losses or, with `of_mean`, the loss of the mean model.
    """
    run, reached = NodesRun(spec, lambda _: True), list[float]()

    def look() -> None:
        now = run.network.clock.now()
        if is_reached(run.parameters, of_mean=of_mean):
            reached.append(now)
        if reached or now > limit_s:
            run.network.stop()
        else:
            run.network.call_later(LOOK_EVERY_S, look)

    run.network.call_later(0.0, look)
    run.simulate()
    return reached[0] if reached else math.inf


WAYS: dict[str, Callable[[RunSpec, float], float]] = {
    "all-reduce": by_all_reduce,
    "gossip": partial(by_gossip, of_mean=False),
    "gossip, mean model": partial(by_gossip, of_mean=True),
}


def fastest(name: str, nodes: int, seeds: Sequence[int], rate: float) -> tuple[float, float]:
    """Return the mean seconds to the target with the best learning rate, and this rate.

    The search starts at `rate`. It doubles or halves the rate as long as the result gets better.
    """

    def seconds(tried: float, best: float) -> float:
        left_s = best * len(seeds)  # time limit for a result that is not worse than `best`
        for seed in seeds:
            left_s -= WAYS[name](run_of(nodes, seed, tried), min(left_s, MAX_RUN_S))
            if left_s < 0.0:
                return math.inf
        return best - left_s / len(seeds)

    best, best_rate = seconds(rate, MAX_RUN_S), rate
    for factor in (2.0, 0.5):
        tried = best_rate * factor
        while tried <= 1.0 and (better := seconds(tried, best)) < best:
            best, best_rate = better, tried
            tried *= factor
    return best, best_rate


def reproduce(seed: int, quick: bool) -> list[Claim]:
    sizes = QUICK_SIZES if quick else SIZES
    found: dict[str, list[tuple[float, float]]] = {}
    for name in WAYS:
        rate = FIRST_RATE
        for nodes in sizes:
            seeds = range(seed, seed + (1 if quick else RUNS.get(nodes, 1)))
            found.setdefault(name, []).append(fastest(name, nodes, seeds, rate))
            rate = found[name][-1][1]
    nodes = sizes[-1] if quick else SLOW_SIZE
    times = {}
    for name, way in WAYS.items():
        normal, rate = found[name][sizes.index(nodes)]
        times[name] = normal, way(run_of(nodes, seed, rate, straggles=True), MAX_RUN_S)
    return [stragglers(nodes, times), *scale(sizes, found)]


def stragglers(nodes: int, times: dict[str, tuple[float, float]]) -> Claim:
    ratios = {name: slowed / normal for name, (normal, slowed) in times.items()}
    rows = [
        f"{name} {normal:.1f} s, {slowed:.1f} s with it (factor {ratios[name]:.1f})"
        for name, (normal, slowed) in times.items()
    ]
    return Claim(
        "Synchronous SGD is not resilient to slow nodes, but gossiping SGD is resilient",
        f"{nodes} nodes, time without and with a node that is {SLOWER:g} times slower: "
        f"{'; '.join(rows)}",
        verdict(ratios["all-reduce"] > 2, ratios["gossip"] < 2, ratios["gossip, mean model"] < 2),
    )


def scale(sizes: Sequence[int], found: dict[str, list[tuple[float, float]]]) -> list[Claim]:
    seconds = {name: [best for best, _ in pairs] for name, pairs in found.items()}
    rows = [f"{name} {', '.join(f'{s:.0f}' for s in found)} s" for name, found in seconds.items()]
    setting = f"N = {', '.join(map(str, sizes))}, learning rates tuned for each: {'; '.join(rows)}"
    wins = {
        name: [
            size
            for size, ours, theirs in zip(sizes, seconds[name], seconds["all-reduce"], strict=True)
            if ours < theirs
        ]
        for name in ("gossip", "gossip, mean model")
    }
    few = [size for size in sizes if size <= 32]
    up_to = max(wins["gossip"], default=0)
    return [
        Claim(
            "Asynchronous SGD converges faster at fewer nodes (up to about 32)",
            setting,
            verdict(
                2 in wins["gossip"], up_to >= 32, wins["gossip, mean model"][: len(few)] == few
            ),
            f"by the loss of the nodes' own models, gossip is faster up to {up_to} nodes. The "
            "limit depends on noise, target and network",
        ),
        Claim(
            "Synchronous SGD scales better to more nodes (up to about 100)",
            f"from N = {sizes[0]} to {sizes[-1]}, all-reduce becomes "
            f"{seconds['all-reduce'][0] / seconds['all-reduce'][-1]:.2g} times as fast, gossip "
            f"{seconds['gossip'][0] / seconds['gossip'][-1]:.2g} times, and its mean model "
            f"{seconds['gossip, mean model'][0] / seconds['gossip, mean model'][-1]:.2g} times",
            verdict(
                seconds["all-reduce"][-1] < seconds["gossip"][-1],
                seconds["all-reduce"][-1] < seconds["gossip, mean model"][-1],
            ),
            "the noise of a single model's last steps limits its learning rate, for any number "
            "of nodes. The mean of all models does not have this noise",
        ),
    ]


PAPER = Paper(
    "How to scale distributed deep learning? (Jin et al., 2016)",
    "arXiv:1611.04581",
    "The runs compare `gossip` with `merge: delta` to a ring all-reduce, in virtual time. The "
    "task is a quadratic of 128 parameters with noisy gradients. A step takes about 100 ms, a "
    "model has 100 MB, and a link has 10 Gbit/s.",
    reproduce,
)

if __name__ == "__main__":
    main([PAPER], __doc__)
