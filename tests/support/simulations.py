"""Runs to simulate, made of plain settings."""

from dpwa.config import load_config
from dpwa.sim.rules.arrays import ArrayRounds
from dpwa.sim.scenario import RunSpec, Scenario, node_name
from dpwa.sim.simulate import simulate
from dpwa.sim.tasks import TASKS


def run_spec(nodes, settings=None, options=None, groups=None, **scenario):
    read = Scenario.model_validate({"nodes": nodes, **scenario})
    listed = [
        {"name": node_name(n), "host": f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", "port": 7000}
        for n in range(nodes)
    ]
    for node, group in zip(listed, groups or (), strict=False):
        node["group"] = group
    config = load_config({"nodes": listed, "seed": read.seed, **(settings or {})})
    return RunSpec(read, config, TASKS[read.task].options(**(options or {})))


def simulated(*arguments, **settings):
    return simulate(run_spec(*arguments, **settings))


def by_arrays(spec):
    """Return the rounds of a run after it, whether it fits or not, and its outcome."""
    arrays = ArrayRounds(spec)
    return arrays, arrays.simulate(lambda sample: True)
