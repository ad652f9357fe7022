from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from examples_support import DPWA, EXAMPLES, Runner, run_here
from support.launched import run_nodes

QUICKSTART = EXAMPLES / "quickstart.py"
TRAINERS = ("accelerate_loop", "lightning_trainer", "transformers_trainer")
SHORT = ("quickstart", "fully_sharded", "lora", "shared_data", *TRAINERS)


@pytest.mark.parametrize("name", SHORT)
def test_it_is_shorter_than_forty_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 40


def test_nodes_merge_and_end_alike(tmp_path: Path) -> None:
    script = tmp_path / "quickstart.py"
    shorter = QUICKSTART.read_text().replace("+ 4.0 ", "+ 0.3 ")
    script.write_text(shorter)
    assert shorter != QUICKSTART.read_text()
    said = "".join(run_nodes(script, 2))
    assert_merged(said, 2)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4])
def test_every_launched_node_merges_and_learns_what_it_never_saw(run: Runner, nodes: int) -> None:
    done = run(
        *DPWA, "launch", "-n", nodes, "--",
        "env", "-u", "DPWA_RANK", "-u", "DPWA_WORLD_SIZE",  # as on several machines
        sys.executable, "-W", "error", QUICKSTART,
    )  # fmt: skip
    assert_learnt(done, nodes)


@pytest.mark.slow
def test_it_runs_under_torchrun(run: Runner) -> None:
    done = run(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        QUICKSTART,
    )  # fmt: skip
    assert_learnt(done, 2)


def test_started_by_hand_it_says_where_it_has_looked() -> None:
    code, errors = run_here(QUICKSTART)
    assert code == 1
    assert "torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT): not there" in errors


def assert_learnt(done: subprocess.CompletedProcess[str], nodes: int) -> None:
    assert done.returncode == 0, done.stderr
    assert assert_merged(done.stdout, nodes) < 0.03  # alone, each node stays above 0.08


def assert_merged(said: str, nodes: int) -> float:
    """Return the largest error on the whole curve."""
    merges = [int(count) for count in re.findall(r"(\d+) merges", said)]
    assert len(merges) == nodes
    assert min(merges) > 0
    errors = [float(error) for error in re.findall(r"whole curve ([\d.]+)", said)]
    assert len(errors) == nodes
    assert max(errors) - min(errors) < 1e-4  # they end together
    return max(errors)
