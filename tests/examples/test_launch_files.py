"""The files for SLURM and SkyPilot: what they start is run as these would run it."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples_support import EXAMPLES
from support.ports import free_ports
from support.times import PROCESS_HANGS_AFTER_S

from dpwa.discovery.launchers import SkyPilot

SLURM, SKYPILOT = EXAMPLES / "slurm.sh", EXAMPLES / "skypilot.yaml"
TASK: dict[str, Any] = yaml.safe_load(SKYPILOT.read_text())
PAGE = (EXAMPLES.parent / "docs" / "launch.md").read_text()
(WITH_TORCHRUN,) = map(yaml.safe_load, re.findall(r"```yaml\n(run:.*?)```", PAGE, re.DOTALL))
# What `srun -n 2` of SLURM 22.05 sets on one host, beside SLURM_PROCID and SLURM_LOCALID.
STEP = {
    "SLURM_JOB_ID": str(os.getpid()),
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "vm",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_NODEID": "0",
}
# In the place of srun, which needs a cluster: it starts two tasks and waits for them.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_PROCID=0 SLURM_LOCALID=0 "$@" & SLURM_PROCID=1 SLURM_LOCALID=1 "$@" & wait -n && wait -n
"""


def program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(stat.S_IRWXU)


def as_python(folder: Path) -> dict[str, str]:
    """The environment, with this Python as `python`."""
    program(folder / "python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def assert_learnt_together(output: str) -> None:
    errors = [float(error) for error in re.findall(r"whole curve ([\d.]+)", output)]
    assert len(errors) == 2
    assert max(errors) < 0.03  # alone, each node stays above 0.08


@pytest.mark.parametrize(
    "script",
    [SLURM.read_text(), TASK["setup"], TASK["run"], WITH_TORCHRUN["run"]],
    ids=["slurm", "setup", "run", "torchrun"],
)
def test_the_shell_understands_them(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_script_asks_slurm_for_what_it_uses() -> None:
    text = SLURM.read_text()
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", text, re.MULTILINE))
    assert int(asked["nodes"]) * int(asked["ntasks-per-node"]) == 8
    assert "Eight nodes on two machines" in text
    assert "cpus-per-task" in asked  # otherwise SLURM_CPUS_PER_TASK is not set


@pytest.mark.slow
def test_the_script_for_sbatch_trains_with_the_variables_of_srun(tmp_path: Path) -> None:
    variables = as_python(tmp_path)
    program(tmp_path / "srun", SRUN)
    done = subprocess.run(
        ["bash", SLURM, EXAMPLES / "quickstart.py"],
        env={**variables, **STEP, "SLURM_CPUS_PER_TASK": "1"},
        capture_output=True, text=True, timeout=PROCESS_HANGS_AFTER_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "finished together with vm-1" in done.stdout
    assert_learnt_together(done.stdout)


@pytest.mark.slow
def test_the_section_with_torchrun_trains(tmp_path: Path) -> None:
    (tmp_path / "train.py").symlink_to(EXAMPLES / "quickstart.py")
    program(
        tmp_path / "torchrun",
        f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n',
    )
    (port,) = free_ports(1)
    done = subprocess.run(
        ["bash", "-c", WITH_TORCHRUN["run"].replace("8008", str(port))],
        cwd=tmp_path,
        env={
            **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0",
            "SKYPILOT_NODE_IPS": "127.0.0.1", "SKYPILOT_NUM_GPUS_PER_NODE": "2",
        },
        capture_output=True, text=True, timeout=PROCESS_HANGS_AFTER_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_learnt_together(done.stdout)


@pytest.mark.slow
def test_the_run_section_trains_with_the_variables_of_skypilot(tmp_path: Path) -> None:
    number = os.getpid() % 62_500  # else two runs at once would have the same addresses
    hosts = [f"127.{number // 250 + 1}.{number % 250 + 1}.{rank + 1}" for rank in range(2)]
    variables = {**as_python(tmp_path), "SKYPILOT_NODE_IPS": "\n".join(hosts)}
    machines = [
        subprocess.Popen(
            ["bash", "-c", TASK["run"]],
            cwd=EXAMPLES.parent, env={**variables, "SKYPILOT_NODE_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [machine.communicate(timeout=PROCESS_HANGS_AFTER_S)[0] for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert "finished together with machine1" in said[0]
    assert_learnt_together("".join(said))


def test_skypilot_takes_the_task(tmp_path: Path) -> None:
    pytest.importorskip("sky", reason="needs SkyPilot: pip install skypilot")
    script = (
        "import sys, yaml, sky; task = sky.Task.from_yaml(sys.argv[1]); print(task.num_nodes)\n"
        "try: sky.Task.from_yaml_config({**yaml.safe_load(open(sys.argv[1])), 'num_nodez': 1})\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, SKYPILOT],
        env={**os.environ, "HOME": str(tmp_path)}, cwd=EXAMPLES.parent,
        capture_output=True, text=True, timeout=PROCESS_HANGS_AFTER_S, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["4", "InvalidSkyPilotConfigError"], done.stderr


def test_the_task_starts_one_node_a_machine() -> None:
    assert set(TASK) == {"name", "num_nodes", "resources", "workdir", "setup", "run"}
    assert TASK["run"].split() == ["python", "examples/quickstart.py"]
    ranks = range(TASK["num_nodes"])
    hosts = "\n".join(f"10.0.0.{rank + 1}" for rank in ranks)
    variables = [{"SKYPILOT_NODE_IPS": hosts, "SKYPILOT_NODE_RANK": str(rank)} for rank in ranks]
    assert [SkyPilot().cluster(told, None)[0] for told in variables] == [
        f"machine{rank}" for rank in ranks
    ]
