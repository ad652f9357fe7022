from __future__ import annotations

import re
import sys

import pytest
from examples_support import DPWA, EXAMPLES, Runner

EXAMPLE = EXAMPLES / "shared_data.py"


@pytest.mark.slow  # tests/sampling and tests/campaigns/test_seen_once.py have short ones
def test_the_nodes_together_see_each_item_once_an_epoch(run: Runner) -> None:
    done = run(*DPWA, "launch", "-n", 2, "--", sys.executable, "-W", "error", EXAMPLE)
    assert done.returncode == 0, done.stderr
    seen = [(int(a), int(b)) for a, b in re.findall(r"on (\d+) of (\d+) items", done.stdout)]
    assert len(seen) == 2
    assert sum(part for part, _ in seen) == seen[0][1] == 5 * 2048
    errors = [float(error) for error in re.findall(r"whole curve ([\d.]+)", done.stdout)]
    assert max(errors) < 0.1
