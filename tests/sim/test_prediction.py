"""A simulation is calibrated by a real run of four processes, and predicts it, and another one."""

import json
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pytest
import yaml
from support.commands import run_dpwa
from support.nodes import config_of
from support.processes import ended, start
from support.times import PROCESS_HANGS_AFTER_S

from dpwa.observe.run_log_contents import Run
from dpwa.observe.run_log_reader import read_run

TASK = {"dimension": 4096, "lr": 0.01, "noise": 0.3}
CLOSE = 0.15  # relative
STEPS_S = (0.03, 0.03, 0.03, 0.09)  # they wait, as for a GPU: four processes share few cores
LINKS = {"max_upload_mbps": 300}  # streams of 2 MB take longer than most steps
SECONDS = 15.0
OTHER = {"fetch_probability": 0.7, "max_upload_mbps": 200}  # of a run that it is not fitted to
LOSS = 350.0
FIGURES = ("steps_per_s", "bytes_per_node", "seconds", "waiting_share", "seconds_to_target")


@dataclass
class RealRun:
    folder: str
    run: Run  # what the logs say
    told: list = field(repr=False)  # of each node, time and loss of each step, shape (steps, 2)

    @property
    def seconds(self):
        return max(t[-1, 0] for t in self.told) - min(t[0, 0] for t in self.told)

    @property
    def steps_per_s(self):
        return sum(map(len, self.told)) / self.seconds

    @property
    def bytes_per_s(self):
        return sum(node.total("sent_bytes") for node in self.run.nodes.values()) / self.seconds

    @property
    def waiting_share(self):
        """Of the time of all nodes."""
        waited = sum(node.total("wait_s") for node in self.run.nodes.values())
        return waited / (self.seconds * len(self.told))

    def seconds_to(self, loss):
        """When the mean of the newest losses of all nodes was there first, since the beginning."""
        began = min(t[0, 0] for t in self.told)
        moments = np.unique(np.concatenate([t[:, 0] for t in self.told]))
        newest = [
            t[np.maximum(0, np.searchsorted(t[:, 0], moments, "right") - 1), 1] for t in self.told
        ]
        reached = moments[np.mean(newest, axis=0) <= loss]
        return float(reached[0]) - began if len(reached) else None


def real_run(folder, steps_s, seconds, *, model_bytes=1e6, task=None, **settings):
    """Let nodes train for some seconds, each with a step of its own; return what they have told."""
    config = config_of(
        len(steps_s), run_log=str(folder / "logs"), transport="tcp", merge="delta", **settings
    )
    path = folder / "nodes.yaml"
    path.write_text(yaml.safe_dump(config))
    options = json.dumps({**TASK, **(task or {}), "nodes": len(steps_s)})
    nodes = [
        start("calibrated_node.py", path, index, model_bytes, step_s, seconds, options, stdin=-1)
        for index, step_s in enumerate(steps_s)
    ]
    with ended(*nodes):
        for word in ("ready", "done"):
            said = [node.stdout.readline().strip() for node in nodes]
            assert said == [word] * len(nodes), [
                node.communicate(timeout=PROCESS_HANGS_AFTER_S)[1] for node in nodes
            ]
            for node in nodes:
                node.stdin.write("\n")
                node.stdin.flush()
        outputs = [node.communicate(timeout=PROCESS_HANGS_AFTER_S)[0] for node in nodes]
    told = [np.array(json.loads(output.strip().splitlines()[-1])) for output in outputs]
    return RealRun(str(folder / "logs"), read_run(folder / "logs"), told)


def simulated(file, **settings):
    """Return the figures of simulations with other seeds: the median of three of each."""
    task = {"task": "quadratic", **{f"quadratic.{key}": value for key, value in TASK.items()}}
    words = [f"--set={key}={value}" for key, value in (task | settings).items()]
    result = run_dpwa("sim", file, *words, "--set", "seed=11", "--repeat", 3, "--json", "-j", 1)
    assert result.exit_code == 0, result.stderr
    runs = json.loads(result.stdout)["runs"]
    known = [name for name in FIGURES if all(run[name] is not None for run in runs)]
    return {name: median(run[name] for run in runs) for name in known}


def predicted(file, **settings):
    """Return steps/s, MB/s of a node, waiting share and seconds to the target."""
    found = simulated(file, **settings)
    reached = simulated(file, **settings, **{"target.loss": LOSS, "seconds": 3 * SECONDS})
    return (
        found["steps_per_s"],
        found["bytes_per_node"] / found["seconds"] / 1e6,
        found["waiting_share"],
        reached["seconds_to_target"],
    )


def measured(run):
    """Return the same of a real run, by what its processes have told."""
    of_a_node = run.bytes_per_s / len(run.told) / 1e6
    return run.steps_per_s, of_a_node, run.waiting_share, run.seconds_to(LOSS)


def require_close(real, simulation, told):
    """Compare, and print both."""
    names = ("steps/s", "MB/s of a node", "waiting share", "seconds to target")
    errors = {}
    for name, true, found in zip(names, real, simulation, strict=True):
        errors[name] = found / true - 1.0
        print(f"{told}: {name}: real {true:.4g}, simulated {found:.4g} ({errors[name]:+.1%})")
    assert all(abs(error) < CLOSE for error in errors.values()), errors


@pytest.mark.slow
def test_a_calibrated_simulation_predicts_the_run_and_one_with_another_setting(tmp_path):
    runs = {}
    for name, settings in (("same", {}), ("other", OTHER)):
        folder = tmp_path / name
        folder.mkdir()
        runs[name] = real_run(folder, STEPS_S, SECONDS, model_bytes=2e6, **(LINKS | settings))
    file = tmp_path / "ours.yaml"
    result = run_dpwa("sim", "calibrate", runs["same"].folder, "--out", file)
    assert result.exit_code == 0, result.stderr
    print(result.stdout)
    assert measured(runs["same"])[2] > 0.2  # or waits would be no test
    require_close(measured(runs["same"]), predicted(file), "the run")
    require_close(measured(runs["other"]), predicted(file, **OTHER), "another setting")
