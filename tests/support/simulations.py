"""Runs to simulate, made of plain settings, and the engines of rules one by one."""

import math

from dpwa.config import load_config
from dpwa.sim.conditions import Conditions
from dpwa.sim.rules import engine
from dpwa.sim.rules.arrays import ArrayRounds
from dpwa.sim.rules.asynchronous import AsynchronousRun
from dpwa.sim.rules.lockstep import LockstepRounds
from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.sim.samples import RunRecorder
from dpwa.sim.scenario import RunSpec, Scenario, node_name
from dpwa.sim.tasks import TASKS, make_task


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
    return engine.run(run_spec(*arguments, **settings), lambda _: True)


def engine_of(kind, spec, dimension=None):
    task = make_task(spec)
    sizes = WireSizes.of(spec, dimension or task.dimension)
    return kind(spec, Conditions(spec), task, sizes, task.starts())


def played(kind, spec, watch=lambda _: True):
    made = engine_of(kind, spec)
    x = getattr(made, "x", None)
    recorder = RunRecorder(spec, make_task(spec), made.fleet.x if x is None else x, watch)
    scenario = spec.scenario
    end = made.run(recorder, scenario.rounds or math.inf, scenario.seconds or math.inf)
    return made, recorder.end(end)


BY_ARRAYS, BY_NODES, BY_EVENTS = ArrayRounds, LockstepRounds, AsynchronousRun
