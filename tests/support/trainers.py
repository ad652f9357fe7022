"""Two nodes whose training loop is another library's: started for real, and what they have told."""

import json
import re
import subprocess
import sys

from support.processes import PROGRAMS
from support.times import PROCESS_HANGS_AFTER_S

EXAMPLES = PROGRAMS.parents[2] / "examples"


def run(folder, *command):
    return subprocess.run(
        list(map(str, command)),
        cwd=folder, capture_output=True, text=True, timeout=PROCESS_HANGS_AFTER_S, check=False,
    )  # fmt: skip


def launch(folder, script, *arguments):
    """Run a script on two nodes; it must succeed. Returns what was printed."""
    nodes = (sys.executable, "-m", "dpwa", "launch", "-n", "2", "--", sys.executable)
    done = run(folder, *nodes, script, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_trained_to_the_end(printed, steps):
    """A node that starts late takes over the steps of the other, and takes the rest."""
    taken = [int(found) for found in re.findall(r"in (\d+) optimizer steps", printed)]
    assert len(taken) == 2
    assert 0 < min(taken) <= max(taken) == steps


def told_by(folder, program, *arguments):
    """Run a program that ends with `trainer_together.tell` on two nodes; return what they tell."""
    printed = launch(folder, PROGRAMS / program, *arguments)
    said = [json.loads(found) for found in re.findall(r"\{\"steps\".*\}", printed)]
    assert len(said) == 2
    return said


def assert_every_step_is_gossip(said, steps):
    """The first step has nothing to merge yet, nor has one whose peer has not begun."""
    (outcomes,) = said["outcomes"]
    assert said["merges"] == outcomes["fetched"] == steps - 1 - outcomes.get("not_ready", 0)
    assert said["merges"] > 3


def assert_merges_at_every_step_and_goes_on_after_an_interruption(program, folder):
    """Interrupt a training of 40 steps at step 25, and resume it at its checkpoint of step 20."""
    for said in told_by(folder, program, folder, 40, 25):
        assert said["stopped"]
        assert (said["steps"], said["updates"]) == (25, 25)  # not one for each micro-batch
        assert_every_step_is_gossip(said, 25)
        assert said["first_clock"] == 0
    for said in told_by(folder, program, folder, 40, 0):
        assert not said["stopped"]
        assert (said["steps"], said["updates"]) == (40, 40)
        assert said["first_clock"] == said["saved_clock"] > 0  # of the newest checkpoint
        assert_every_step_is_gossip(said, 20)
        half = len(said["losses"]) // 2
        assert sum(said["losses"][-half:]) < sum(said["losses"][:half])
        assert said["logged"]
        assert not said["has_process_group"]
