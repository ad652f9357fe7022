"""The engine at the level of rules: algorithms and rules of real nodes, without their messages.

The schedule `lockstep` lets all nodes take each round together; `asynchronous` lets each go at its
own pace. What a fetch takes is worked out from the sizes of real messages and the links.
"""

from __future__ import annotations

import math

from dpwa.algorithms import algorithm
from dpwa.errors import UserError
from dpwa.sim.conditions import Conditions
from dpwa.sim.rules.arrays import ArrayRounds, fits
from dpwa.sim.rules.asynchronous import AsynchronousRun
from dpwa.sim.rules.fleet import told
from dpwa.sim.rules.lockstep import LockstepRounds
from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.sim.samples import RunOutcome, RunRecorder, Watch
from dpwa.sim.scenario import RunSpec
from dpwa.sim.tasks import make_task

NAME = "rules"


def run(spec: RunSpec, watch: Watch) -> RunOutcome:
    """Simulate a run; `watch` is shown each sample as it is taken, and returns whether to go on."""
    _check(spec)
    conditions = Conditions(spec)
    task = make_task(spec)
    sizes = WireSizes.of(spec, task.dimension)
    x = task.starts()
    recorder = RunRecorder(spec, task, x, watch)
    rounds, seconds = spec.scenario.rounds or math.inf, spec.scenario.seconds or math.inf
    is_lockstep = spec.scenario.schedule == "lockstep"
    if is_lockstep and fits(spec, conditions, sizes):
        arrays = ArrayRounds(spec, conditions, task, sizes, x)
        samples = recorder.end(arrays.run(recorder, rounds, seconds))
        return RunOutcome(samples, arrays.figures(), (), NAME, recorder.was_stopped)
    schedule = LockstepRounds if is_lockstep else AsynchronousRun
    engine = schedule(spec, conditions, task, sizes, x)
    end = engine.run(recorder, rounds, seconds)
    fleet = engine.fleet
    events = told(fleet.events, conditions, end.time_s)
    return RunOutcome(recorder.end(end), fleet.figures(), events, NAME, recorder.was_stopped)


def _check(spec: RunSpec) -> None:
    """Refuse what this engine would leave out without a word."""
    config = spec.config
    left_out = {
        "robust": config.robust != "none",
        "quarantine_s": config.quarantine_s > 0.0,
        "links": bool(config.links),
    }
    for setting, is_set in left_out.items():
        if is_set:
            raise UserError(
                f"{setting}: expected it unset with detail: rules, which leaves it out [DPWA-E178]"
            )
    if algorithm(config.algorithm).averages_gradients:
        raise UserError(
            f"detail: expected nodes with algorithm: {config.algorithm}, as only whole nodes "
            "average gradients (got rules) [DPWA-E178]"
        )
