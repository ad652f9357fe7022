"""Gossip within the Trainer of Transformers, the real one."""

import json
import re
import subprocess
import sys

import pytest
from support.processes import PROGRAMS
from support.times import at_most

pytest.importorskip("transformers", reason="needs the extra: pip install dpwa[hf]")
pytest.importorskip("accelerate", reason="needs the extra: pip install dpwa[hf]")

EXAMPLE = PROGRAMS.parents[2] / "examples" / "transformers_trainer.py"
LAUNCH = (sys.executable, "-m", "dpwa", "launch", "-n", "2", "--", sys.executable)


def run(folder, *arguments):
    """Run a script on two nodes; each has a folder of its own below the working folder."""
    return subprocess.run(
        [*LAUNCH, *map(str, arguments)],
        cwd=folder, capture_output=True, text=True, timeout=at_most(150.0), check=False,
    )  # fmt: skip


def told_by(done):
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(found) for found in re.findall(r"\{\"steps\".*\}", done.stdout)]
    assert len(said) == 2
    return said


def assert_every_step_is_gossip(said, steps):
    """The first step has nothing to merge yet, nor has one whose peer has not begun."""
    (outcomes,) = said["outcomes"]
    assert said["merges"] == outcomes["fetched"] == steps - 1 - outcomes.get("not_ready", 0)
    assert said["merges"] > 3


@pytest.fixture
def script(tmp_path):
    """The node, with a folder of its own for each name."""
    path = tmp_path / "node.py"
    path.write_text(
        "import os, runpy, sys\n"
        "sys.argv[1] = os.path.join(sys.argv[1], os.environ['DPWA_NAME'])\n"
        f"runpy.run_path({str(PROGRAMS / 'trainer_node.py')!r}, run_name='__main__')\n"
    )
    return path


def test_it_merges_at_every_optimizer_step_and_goes_on_after_an_interruption(script, tmp_path):
    for said in told_by(run(tmp_path, script, tmp_path, 40, 25)):
        assert said["stopped"]
        assert (said["steps"], said["updates"]) == (25, 25)  # not one for each micro-batch
        assert_every_step_is_gossip(said, 25)
        assert said["first_clock"] == 0
        assert not said["has_process_group"]
    for said in told_by(run(tmp_path, script, tmp_path, 40, 0)):
        assert not said["stopped"]
        assert (said["steps"], said["updates"]) == (40, 40)
        assert said["first_clock"] == 20  # of the newest checkpoint
        assert_every_step_is_gossip(said, 20)
        assert said["losses"][-1] < said["losses"][0]
        assert said["logged"]


def test_the_example_is_short_and_runs(tmp_path):
    assert len(EXAMPLE.read_text().splitlines()) < 40
    done = run(tmp_path, EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("in 60 optimizer steps") == 2
    assert done.stdout.count("finished together with") == 2


def test_a_trainer_that_has_started_a_process_group_is_told_what_to_do(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(EXAMPLE)],
        cwd=tmp_path, capture_output=True, text=True, timeout=at_most(100.0), check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "the Trainer has started torch.distributed" in done.stderr
