"""The manifests for Kubernetes: they agree with each other, and their parts do what they say."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from examples_support import DPWA, EXAMPLES
from support.commands import run_dpwa
from support.nodes import config_of, eventually
from support.ports import free_ports
from support.times import PROCESS_HANGS_AFTER_S

from dpwa import DpwaConnection
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.config import Config, load_config
from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import KeyFolder

FOLDER = EXAMPLES / "kubernetes"
TRAIN = FOLDER / "train.py"


def objects(file: str) -> dict[str, Any]:
    return {found["kind"]: found for found in yaml.safe_load_all((FOLDER / file).read_text())}


CLUSTER = objects("cluster.yaml")
SET = objects("statefulset.yaml")["StatefulSet"]
JOB = objects("job.yaml")["Job"]
RUNS = pytest.mark.parametrize("run", [SET, JOB], ids=["StatefulSet", "Job"])


def merged(base: Any, patch: Any) -> Any:
    """What `kubectl patch` makes: entries of lists go by their `name`, or else their path."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {key: merged(base.get(key), value) for key, value in patch.items()}
    if isinstance(base, list) and isinstance(patch, list):
        key = "mountPath" if "mountPath" in patch[0] else "name"
        old, new = ({entry[key]: entry for entry in entries} for entries in (base, patch))
        return list(merged(old, new).values())
    return deepcopy(patch)


def with_keys() -> dict[str, Any]:
    (patch,) = yaml.safe_load_all((FOLDER / "keys.yaml").read_text())
    return merged(SET, patch)  # type: ignore[no-any-return]


def config() -> Config:
    return load_config(yaml.safe_load(CLUSTER["ConfigMap"]["data"]["dpwa.yaml"]), environ={})


def container(run: dict[str, Any]) -> dict[str, Any]:
    (only,) = run["spec"]["template"]["spec"]["containers"]
    return only  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "found", [*CLUSTER.values(), SET, JOB, with_keys()], ids=lambda found: found["kind"]
)
def test_the_schema_of_kubernetes_has_no_objection(found: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip(
        "kubernetes_validate", reason="needs the extra: pip install dpwa[k8s-test]"
    )
    kubernetes.validate(found, kubernetes.latest_version(), strict=True)
    spoilt = merged(found, {"spec": {"replicaz": 1}} if "spec" in found else {"dada": {}})
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(spoilt, kubernetes.latest_version(), strict=True)


@RUNS
def test_pods_are_called_as_the_configuration_says(run: dict[str, Any]) -> None:
    name, service = run["metadata"]["name"], CLUSTER["Service"]["metadata"]["name"]
    spec = run["spec"]
    assert spec.get("serviceName", spec["template"]["spec"].get("subdomain")) == service
    count = spec.get("replicas", spec.get("completions"))
    assert spec.get("parallelism", count) == count
    pods = [f"{name}-{index}" for index in range(count)]
    assert [node.name for node in config().nodes] == pods
    assert [node.host for node in config().nodes] == [
        f"{pod}.{service}.default.svc.cluster.local" for pod in pods
    ]
    # A pod listens on all of its addresses: its own name may not be in DNS yet.
    assert {node.bind for node in config().nodes} == {"*"}
    variables = {entry["name"]: entry for entry in container(run)["env"]}
    if run is JOB:
        assert variables["DPWA_NAME"]["value"] == f"{name}-$(INDEX)"
        assert list(variables).index("INDEX") < list(variables).index("DPWA_NAME")
    else:
        assert variables["DPWA_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


@RUNS
def test_labels_ports_and_mounts_agree(run: dict[str, Any]) -> None:
    template, policy = run["spec"]["template"], CLUSTER["NetworkPolicy"]["spec"]
    labels = template["metadata"]["labels"]
    (rule,) = policy["ingress"]
    chosen = [policy["podSelector"], *(entry["podSelector"] for entry in rule["from"])]
    chosen += [{"matchLabels": CLUSTER["Service"]["spec"]["selector"]}]
    chosen += [run["spec"].get("selector", {"matchLabels": labels})]
    assert all(selector == {"matchLabels": labels} for selector in chosen)
    (port,) = {node.port for node in config().nodes}
    (served,), (opened,) = CLUSTER["Service"]["spec"]["ports"], container(run)["ports"]
    assert served["port"] == opened["containerPort"] == rule["ports"][0]["port"] == port
    (mount,), (volume,) = container(run)["volumeMounts"], template["spec"]["volumes"]
    assert mount["name"] == volume["name"]
    assert volume["configMap"]["name"] == CLUSTER["ConfigMap"]["metadata"]["name"]
    variables = {entry["name"]: entry.get("value") for entry in container(run)["env"]}
    file = Path(variables["DPWA_CONFIG"] or "")
    assert str(file.parent) == mount["mountPath"]
    assert file.name in CLUSTER["ConfigMap"]["data"]
    assert Path(container(run)["command"][-1]).name == TRAIN.name


def test_the_keys_of_a_pod_are_those_that_dpwa_takes(tmp_path: Path) -> None:
    made = KeyFolder(tmp_path / "keys")
    for node in config().nodes:
        made.create(node.name)
    mounted = {"/secret": tmp_path / "secret", "/allowed": made.allowed, "/keys": tmp_path / "pod"}
    mounted["/keys"].mkdir()
    mounted["/keys"].chmod(0o777)
    mounted["/secret"].mkdir()
    (mounted["/secret"] / "own.key").write_bytes(made.secret_file("dpwa-1").read_bytes())
    run = with_keys()
    (init,) = run["spec"]["template"]["spec"]["initContainers"]
    *shell, script = init["command"]
    for there, here in mounted.items():
        script = script.replace(f" {there}", f" {here}").replace(f'"{there}', f'"{here}')
    for _ in range(2):  # a pod may run it again
        subprocess.run([*shell, script], env={**os.environ, "DPWA_NAME": "dpwa-1"}, check=True)
    variables = {entry["name"]: entry.get("value") for entry in container(run)["env"]}
    own = KeyFolder(variables["DPWA_KEYS"].replace("/keys", str(mounted["/keys"]), 1))
    assert own.owners() == ["dpwa-1"]
    assert stat.S_IMODE(own.secret_file("dpwa-1").stat().st_mode) == 0o600
    (port,) = free_ports(1)
    settings = {"security": "curve", "keys": str(own.path), "transport": "tcp"}
    nodes = [{"name": "dpwa-1", "host": "127.0.0.1", "port": port}]
    file = tmp_path / "dpwa.yaml"
    file.write_text(yaml.safe_dump({"nodes": nodes, **settings}))
    with DpwaConnection("dpwa-1", str(file)):  # what the probe asks with these keys
        assert run_dpwa("status", "-c", file, "--node", "dpwa-1").exit_code == 0
    ring = Keyring(own, "dpwa-1")
    assert all(ring.for_link(node.name) for node in config().nodes)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """train.py as in a container, as the node w1 of two."""
    file = tmp_path / "dpwa.yaml"
    file.write_text(yaml.safe_dump({**config_of(2), "transport": "tcp", "log_level": "info"}))
    variables = {**os.environ, "DPWA_NAME": "w1", "DPWA_CONFIG": str(file)}
    with subprocess.Popen(
        [sys.executable, TRAIN], env=variables, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process, file
        process.kill()


@pytest.mark.slow
def test_a_pod_is_ready_when_its_node_answers_and_leaves_in_good_order(
    pod: tuple[subprocess.Popen[str], Path],
) -> None:
    process, file = pod
    shell, flag, command = container(SET)["readinessProbe"]["exec"]["command"]
    probe = command.replace("dpwa", '"$0" "$1" "$2"', 1)
    variables = {**os.environ, "DPWA_NAME": "w1", "DPWA_CONFIG": str(file)}

    def is_ready() -> bool:
        done = subprocess.run([shell, flag, probe, *DPWA], env=variables, capture_output=True)
        return done.returncode == 0

    assert not is_ready()  # it has only just been started
    net = torch.nn.Linear(1, 1)
    with DpwaPyTorchAdapter(net, "w2", str(file)) as gossip:
        eventually(is_ready, 60.0)
        links = gossip.connection.node
        eventually(lambda: links.links["w1"].value == "up")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROCESS_HANGS_AFTER_S) == 128 + signal.SIGTERM

        def health() -> str:
            (peer,) = links.report()["peers"]
            return str(peer["health"])

        assert eventually(lambda: health() == "left")  # without `finish`, so not finished
