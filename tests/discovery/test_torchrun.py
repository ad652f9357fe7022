"""Processes that torchrun, or one like it, has started find each other."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch
from support.ports import free_ports
from support.processes import PROGRAMS, Program, ended, start
from support.times import PROCESS_HANGS_AFTER_S, at_most

from dpwa.discovery import launchers
from dpwa.discovery.launchers import Torchrun
from dpwa.errors import UserError

PROGRAM = PROGRAMS / "connect_and_merge.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def told_by(output):
    """What the processes have said, by name."""
    found = [json.loads(said) for said in re.findall(r"\{[^{}]*\}", output)]  # of one pipe
    return {said["name"]: said for said in found}


def assert_together(told, size):
    names = [f"rank{rank}" for rank in range(size)]
    assert sorted(told) == names
    for said in told.values():
        assert said["nodes"] == names
        assert said["merges"] >= 5
        assert not said["has_process_group"]


@pytest.mark.slow
def test_ranks_of_torchrun_find_each_other(tmp_path):
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node=2", f"--master-port={free_ports(1)[0]}", PROGRAM],
        capture_output=True, text=True, cwd=tmp_path, timeout=PROCESS_HANGS_AFTER_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_together(told_by(done.stdout), 2)


def test_ranks_find_each_other_by_the_store_of_their_agent(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    told |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}
    program = str(PROGRAM)
    ranks = [Program([program], **told, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(2)]
    with ended(*ranks):
        said = [rank.communicate(timeout=PROCESS_HANGS_AFTER_S) for rank in ranks]
    assert_together(told_by("".join(out for out, _ in said)), 2)


@pytest.mark.slow  # test_launchers.py has a short one
def test_processes_of_mpirun_find_each_other_by_the_store_of_the_first_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    told = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
    told |= {"PMIX_NAMESPACE": str(tmp_path)}
    ranks = [Program([str(PROGRAM)], **told, OMPI_COMM_WORLD_RANK=str(rank)) for rank in range(3)]
    with ended(*ranks):
        said = [rank.communicate(timeout=PROCESS_HANGS_AFTER_S) for rank in ranks]
    assert_together(told_by("".join(out for out, _ in said)), 3)


@pytest.mark.slow
def test_two_agents_of_torchrun_and_a_worker_that_is_killed(tmp_path):
    port, mark = free_ports(1)[0], tmp_path / "killed"
    agents = [
        subprocess.Popen(
            [*TORCHRUN, "--nnodes=2", "--nproc-per-node=2", "--max-restarts=2",
             "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", PROGRAM, "0", mark],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for _ in range(2)
    ]  # fmt: skip
    with ended(*agents):
        said = [agent.communicate(timeout=PROCESS_HANGS_AFTER_S) for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0], said
    assert mark.exists()
    told = told_by("".join(out for out, _ in said))  # of each name the last
    assert_together(told, 4)
    # Only where a process has failed does torchrun count that all were started again.
    assert {said["restarts"] for said in told.values()} == {0, 1}


def test_whoever_sets_the_same_variables_is_served_and_may_be_late(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(free_ports(1)[0]))
    monkeypatch.setenv("WORLD_SIZE", "3")
    programs = []
    for rank, late_s in enumerate((2.0, 0.0, 4.0)):  # the one with the store is not the first
        monkeypatch.setenv("RANK", str(rank))
        programs.append(start(PROGRAM, late_s))
    with ended(*programs):
        said = [program.communicate(timeout=PROCESS_HANGS_AFTER_S) for program in programs]
    assert_together(told_by("".join(out for out, _ in said)), 3)


def test_a_script_may_have_a_process_group_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch.distributed as dist\n"
        "import os\n"
        "os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1')\n"
        f"os.environ['MASTER_PORT'] = '{free_ports(1)[0]}'\n"
        "dist.init_process_group('gloo')\n"
        "from dpwa.discovery.launchers import Torchrun\n"
        "print(Torchrun().cluster(os.environ, None)[0])\n"
        "dist.destroy_process_group()\n"
    )
    done = Program([str(script)])
    with ended(done):
        out, errors = done.communicate(timeout=PROCESS_HANGS_AFTER_S)
    assert (done.returncode, out) == (0, "rank0\n"), errors


def environ(**changed):
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    return {**told, **changed}


@pytest.mark.parametrize("wrong", [{"RANK": "2"}, {"RANK": "x"}, {"MASTER_PORT": "x"}])
def test_what_makes_no_sense_is_shown(wrong):
    with pytest.raises(UserError, match=r"RANK below WORLD_SIZE \(got RANK="):
        Torchrun().cluster(environ(**wrong), None)


def test_a_store_that_is_not_there(monkeypatch):
    monkeypatch.setattr(launchers, "PATIENCE_S", 1.0)
    began, port = time.monotonic(), free_ports(1)[0]
    with pytest.raises(UserError, match=f"rank 1 of 2 could not exchange .* at 127.0.0.1:{port}"):
        Torchrun().cluster(environ(RANK="1", MASTER_PORT=str(port)), None)
    assert time.monotonic() - began < at_most(10.0)


def test_a_rank_that_does_not_come(monkeypatch):
    monkeypatch.setattr(launchers, "PATIENCE_S", 1.0)
    with pytest.raises(UserError, match="rank 0 of 2 has waited 1 s for the address of rank 1"):
        Torchrun().cluster(environ(MASTER_PORT=str(free_ports(1)[0])), None)
