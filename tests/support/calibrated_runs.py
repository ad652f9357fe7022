"""Real runs of a few processes to calibrate by: what they do is known, and what has come of it."""

import json
import subprocess
from dataclasses import dataclass, field

import numpy as np
import yaml

from dpwa.observe.run_data import Run
from dpwa.observe.run_reading import read_run
from support.nodes import config_of
from support.processes import ended, start
from support.times import PROCESS_HANGS_AFTER_S

TASK = {"dimension": 4096, "lr": 0.01, "noise": 0.3}


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
        start(
            "calibrated_node.py",
            path,
            index,
            model_bytes,
            step_s,
            seconds,
            options,
            stdin=subprocess.PIPE,
        )
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
