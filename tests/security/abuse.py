"""The field on which nodes are attacked: a victim, an honest peer and an attacker, as processes."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from support.nodes import config_of, eventually
from support.processes import resident_mb

PROGRAMS = Path(__file__).parent / "programs"


@dataclass
class Figures:
    """What a window of time looked like, to the victim and to its honest peer."""

    median_ms: float
    p90_ms: float
    merges_per_s: float
    rss_mb: float
    descriptors: int
    threads: int
    cpu_share: float = 0.0
    attacker: dict | None = None


def run(program, *arguments):
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


class Trainer:
    """A process of victim.py, and what it prints."""

    def __init__(self, config, name, pause_ms):
        self.process = run("victim.py", config, name, pause_ms)
        self.lines = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def between(self, start, end):
        return [line for line in list(self.lines) if start < line["time"] <= end]

    def has_merged(self):
        assert self.process.poll() is None, self.process.stderr.read()
        return self.lines and self.lines[-1]["merges"] > 5

    @property
    def pid(self):
        return self.process.pid

    def end(self):
        self.process.kill()
        self._thread.join()
        self.process.communicate()


def entries(pid, folder):
    return len(list(Path(f"/proc/{pid}/{folder}").iterdir()))


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Field:
    """A victim that trains, a peer that gossips with it, and room for an attacker."""

    attackers = "attackers.py"

    def __init__(self, folder, **settings):
        mapping = config_of(2, transport="tcp", log_level="error", **settings)
        path = folder / "nodes.yaml"
        path.write_text(yaml.safe_dump(mapping))
        self.port = mapping["nodes"][0]["port"]
        self.victim = Trainer(path, "w1", 0)
        self.honest = Trainer(path, "w2", 30)

    def ready(self):
        for trainer in (self.victim, self.honest):
            eventually(trainer.has_merged, 60)
        return self

    @property
    def known(self):
        """What attackers know of the victim: what model it trains."""
        return self.victim.lines[-1]["fingerprint"]

    def attacked(self, attack, seconds, seed=1):
        """Return the figures of so many seconds under an attack."""
        attacker = run(self.attackers, attack, self.port, seconds + 1.5, seed, self.known)
        try:
            time.sleep(1.5)  # it has to start
            figures = self.watched(seconds)
            output, errors = attacker.communicate(timeout=60)
            assert attacker.returncode == 0, errors
            figures.attacker = json.loads(output)
            return figures
        finally:
            attacker.kill()
            attacker.communicate()

    def watched(self, seconds):
        pid, start = self.victim.pid, time.monotonic()
        cpu = cpu_seconds(pid)
        peaks = [0.0, 0, 0]
        while time.monotonic() < start + seconds:
            now = resident_mb(pid), entries(pid, "fd"), entries(pid, "task")
            peaks = [max(pair) for pair in zip(peaks, now, strict=True)]
            time.sleep(0.05)
        end = time.monotonic()
        share = (cpu_seconds(pid) - cpu) / (end - start)
        lines = self.victim.between(start, end)
        steps = [step for line in lines for step in line["steps_ms"]] or [np.inf]
        honest = self.honest.between(start, end)
        merges = honest[-1]["merges"] - honest[0]["merges"] if honest else 0
        spent = honest[-1]["time"] - honest[0]["time"] if len(honest) > 1 else np.inf
        return Figures(
            float(np.median(steps)), float(np.percentile(steps, 90)), merges / spent, *peaks, share
        )

    def end(self):
        self.victim.end()
        self.honest.end()


@contextmanager
def field(folder, kind=Field, **settings):
    """A field of which no process outlives the block."""
    found = kind(folder, **settings)
    try:
        yield found.ready()
    finally:
        found.end()
