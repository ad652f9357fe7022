"""Simulate training with up to 2,000 whole nodes, and consensus with up to 10,000 nodes."""

from __future__ import annotations

from typing import Any

from dpwa.sim.load import load_scenario
from dpwa.sim.samples import RunOutcome
from dpwa.sim.scenario import RunSpec
from dpwa.sim.simulate import simulate
from dpwa.sim.summary import figures_of

TOPOLOGIES = ("random", "exponential", "ring")
LOST_AT_S = 3.0
SCENARIO: dict[str, Any] = {
    "rounds": 150,
    "task": "quadratic",
    "quadratic": {"noise": 1.0},
    "target": {"loss": 0.3},
    "model_mb": 10,
    "merge": "delta",
    "compute": {"step_ms": 200, "jitter": 0.1},
    "network": {"latency_ms": 1},
}


def study(nodes: int, topology: str, seed: int) -> dict[str, Any]:
    spec = load_scenario({**SCENARIO, "nodes": nodes, "seed": seed}, {"topology": topology})
    outcome = simulate(spec)
    return {"nodes": nodes, "topology": topology, **_figures(spec, outcome)}


def recovery(nodes: int, seed: int) -> dict[str, Any]:
    """Return the time to the target with and without a loss of half of the nodes."""
    times = {}
    for name, share in (("without_s", 0.0), ("with_s", 0.5)):
        lost = [{"at_s": LOST_AT_S, "share": share}] if share else []
        scenario = {**SCENARIO, "nodes": nodes, "seed": seed, "churn": {"lost": lost}}
        spec = load_scenario(scenario)
        times[name] = figures_of(spec, simulate(spec)).seconds_to_target
    return {"nodes": nodes, "lost_at_s": LOST_AT_S, **times}


def consensus(nodes: int, seed: int) -> dict[str, Any]:
    """Return the rounds of pulls in lockstep until a millionth of the variance is left."""
    scenario = {"nodes": nodes, "seed": seed, "rounds": 100, "schedule": "lockstep"}
    spec = load_scenario({**scenario, "target": {"variance_ratio": 1e-6}})
    return {"nodes": nodes, "rounds": figures_of(spec, simulate(spec)).rounds_to_target}


def _figures(spec: RunSpec, outcome: RunOutcome) -> dict[str, Any]:
    found = figures_of(spec, outcome)
    sent = [node.bytes_sent for node in outcome.nodes]
    served = [node.served for node in outcome.nodes]
    steps = sum(node.updates for node in outcome.nodes)
    return {
        "seconds_to_target": found.seconds_to_target,
        "rounds_to_target": found.rounds_to_target,
        "mb_per_step": sum(sent) / steps / 1e6,
        "busiest_by_mean": max(served) * len(served) / sum(served),
        "waits": found.waiting_share,
    }
