"""The pods of the manifests as network namespaces: late names, keys, a probe, a pod that moves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples_support import EXAMPLES
from support.nodes import eventually
from support.processes import PROGRAMS
from support.times import PROCESS_HANGS_AFTER_S

from dpwa.config import load_config
from dpwa.testing import Namespaces, namespaces_missing
from dpwa.testing.namespaces import Host
from dpwa.transport.keys import KeyFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing()),
]
MANIFESTS = yaml.safe_load_all((EXAMPLES / "kubernetes" / "cluster.yaml").read_text())
(CONFIG,) = (found["data"]["dpwa.yaml"] for found in MANIFESTS if found["kind"] == "ConfigMap")
NODES = load_config(yaml.safe_load(CONFIG), environ={}).nodes


class Pods:
    """One process for each node, in a network namespace of its own; names are in a file."""

    def __init__(self, folder: Path, hosts: Sequence[Host], stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        (folder / "dpwa.yaml").write_text(CONFIG)
        self._command = folder / "command.py"
        self._command.write_text("from dpwa.cli.main import main\nmain()\n")
        keys = KeyFolder(folder / "keys")
        for node in NODES:
            keys.create(node.name)
        *own, self.spare = hosts
        self.places = dict(zip((node.name for node in NODES), own, strict=True))

    def name_them(self) -> None:
        """Write what DNS would say."""
        lines = [f"{self.places[node.name].address} {node.host}\n" for node in NODES]
        self._hosts.write_text("".join(["127.0.0.1 localhost\n", *lines]))

    def popen(self, name: str, *command: object, **options: Any) -> subprocess.Popen[str]:
        known = [sys.executable, PROGRAMS / "with_own.py", "hosts", self._hosts, *command]
        environ = {"DPWA_NAME": name, "DPWA_CONFIG": str(self._folder / "dpwa.yaml")}
        environ |= {"DPWA_SECURITY": "curve", "DPWA_KEYS": str(self._folder / "keys")}
        return subprocess.Popen(
            self.places[name].command([str(part) for part in known]),
            env={**os.environ, **environ, "OMP_NUM_THREADS": "1"}, text=True, **options,
        )  # fmt: skip

    def start(self, name: str) -> subprocess.Popen[str]:
        pod = self.popen(name, EXAMPLES / "kubernetes" / "train.py")
        self._stack.callback(pod.wait)
        self._stack.callback(pod.kill)
        return pod

    def status(self, name: str, *options: str) -> list[dict[str, Any]]:
        """What `dpwa status` says in a pod; nothing while somebody does not answer."""
        asked = self.popen(
            name, self._command, "status", "--json", *options, stdout=subprocess.PIPE
        )
        said, _ = asked.communicate(timeout=PROCESS_HANGS_AFTER_S)
        return json.loads(said)["nodes"] if asked.returncode == 0 else []


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with Namespaces(len(NODES) + 1) as hosts, ExitStack() as stack:
        yield Pods(tmp_path, hosts, stack)


def test_pods_find_each_other_and_one_that_is_started_elsewhere(pods: Pods) -> None:
    running = {node.name: pods.start(node.name) for node in NODES}
    assert not pods.status("dpwa-0", "--node", "dpwa-0")  # its name is not known yet
    pods.name_them()
    eventually(lambda: pods.status("dpwa-0", "--node", "dpwa-0"), 60.0)

    def are_together() -> list[dict[str, Any]]:
        nodes = pods.status("dpwa-1")
        if not all("peers" in node for node in nodes):  # one does not answer
            return []
        healths = [peer["health"] for node in nodes for peer in node["peers"]]
        return nodes if set(healths) == {"alive"} else []

    eventually(are_together, 60.0)
    running["dpwa-3"].send_signal(signal.SIGTERM)
    assert running["dpwa-3"].wait(PROCESS_HANGS_AFTER_S) == 128 + signal.SIGTERM
    pods.places["dpwa-3"] = pods.spare
    pods.name_them()
    pods.start("dpwa-3")

    def are_together_again() -> list[dict[str, Any]]:
        nodes = are_together()
        clocks = [node["clock"] for node in nodes]  # it takes over the state of the others
        return nodes if nodes and clocks[3] > 0.8 * min(clocks[:3]) else []

    *others, again = eventually(are_together_again, 60.0)
    assert again["name"] == "dpwa-3"
    assert again["uptime_s"] < min(node["uptime_s"] for node in others)
    assert all(node["handshakes_refused"]["unknown_key"] == 0 for node in [*others, again])
