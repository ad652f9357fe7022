"""Processes that learn the digits and write down how it goes, for campaigns of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from support.processes import PROGRAMS

FORMED_WITHIN_S = 300.0  # which only a mistake takes
SETTINGS = {"merge": "delta", "timeout_ms": 2000, "log_level": "warning"}


@dataclass
class Node:
    """One process."""

    name: str
    process: subprocess.Popen
    log: Path
    errors: Path

    def records(self, event):
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines(keepends=True)
        found = (json.loads(line) for line in lines if line.endswith("\n"))
        return [record for record in found if record["event"] == event]

    @property
    def trains(self):
        return self.records("trains")

    @property
    def sees(self):
        """Whom it knows of, itself as well; nobody before it trains."""
        found = self.trains
        return set(found[-1]["peers"]) | {self.name} if found else set()

    @property
    def is_troubled(self):
        text, found = self.errors.read_text(), self.trains
        return "Traceback" in text or "unexpected" in text or bool(found and found[-1]["uncaught"])


@dataclass
class Swarm:
    """All processes that there are."""

    folder: Path
    seed: int
    stack: ExitStack
    nodes: dict[str, Node] = field(default_factory=dict)

    def start(self, name, config, command=()):
        log, errors = self.folder / f"{name}.jsonl", self.folder / f"{name}.err"
        seed = self.seed * 1000 + len(self.nodes)
        arguments = [name, str(seed), str(log), json.dumps({**SETTINGS, **config})]
        process = subprocess.Popen(
            [*command, sys.executable, str(PROGRAMS / "digits_member.py"), *arguments],
            stderr=self.stack.enter_context(errors.open("a")),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        self.nodes[name] = Node(name, process, log, errors)

    def wait_until_all_see_all(self, timeout_s=FORMED_WITHIN_S):
        names = set(self.nodes)
        wait_until(
            lambda: all(n.sees == names for n in self.nodes.values()), timeout_s, "all see all"
        )

    def promise_of_no_trouble(self):
        troubles = [node.name for node in self.nodes.values() if node.is_troubled]
        return Promise("no uncaught exception", f"in: {troubles}", not troubles)


@dataclass(frozen=True)
class Promise:
    """What is promised, and what was seen."""

    text: str
    figure: str
    holds: bool


def wait_until(check, timeout_s, what):
    end = time.time() + timeout_s
    while time.time() < end:
        if check():
            return
        time.sleep(0.2)
    raise RuntimeError(f"not within {timeout_s:g} s: {what}")


def tell(promises):
    """Print each promise with its figure; exit with 1 if one is broken."""
    for promise in promises:
        print(f"{'holds ' if promise.holds else 'BROKEN'}  {promise.text}: {promise.figure}")
    sys.exit(not all(promise.holds for promise in promises))
