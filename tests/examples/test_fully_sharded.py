from __future__ import annotations

import re
import sys

import pytest
from examples_support import DPWA, EXAMPLES, Runner

SCRIPT = EXAMPLES / "fully_sharded.py"


@pytest.mark.slow
def test_two_groups_of_two_ranks_end_with_one_model(run: Runner) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = run(*DPWA, "launch", "-n", 2, "--", *torchrun, "--nproc-per-node=2", SCRIPT)
    assert done.returncode == 0, done.stderr
    for name, peer in (("w1", "w2"), ("w2", "w1")):
        assert f"{name}: finished together with {peer}" in done.stdout
    losses = [float(loss) for loss in re.findall(r"step 300, loss ([0-9.]+)", done.stdout)]
    assert len(losses) == 2
    assert max(losses) < 1.0
