from __future__ import annotations

import re
import sys

import pytest
from examples_support import DPWA, EXAMPLES, Runner

LORA = EXAMPLES / "lora.py"


@pytest.mark.slow
def test_nodes_learn_together_what_none_can_alone(run: Runner) -> None:
    done = run(*DPWA, "launch", "-n", 2, "--", sys.executable, "-W", "error", LORA)
    assert done.returncode == 0, done.stderr
    errors = [float(error) for error in re.findall(r"all inputs ([\d.]+)", done.stdout)]
    assert len(errors) == 2
    assert max(errors) < 0.05  # alone, each node stays at 0.37
