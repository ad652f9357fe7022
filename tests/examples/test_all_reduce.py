"""The example of AllReduceSGD and AllReduceEA, as its reader runs it."""

import re
import sys
from importlib.util import find_spec

import pytest
from examples_support import DPWA, EXAMPLES, Runner, run_here

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")

EXAMPLE = EXAMPLES / "all_reduce.py"


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "least"), [("sgd", 0.94), ("ea", 0.88)])
def test_all_nodes_end_with_the_same_that_knows_all_digits(
    run: Runner, algorithm: str, least: float
) -> None:
    done = run(*DPWA, "launch", "-n", 4, "--", sys.executable, "-W", "error", EXAMPLE, algorithm)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"(\d+) steps, 4 nodes, accuracy ([\d.]+)", done.stdout)
    assert len(found) == 4
    assert len({steps for steps, _ in found}) > 1, "their numbers of steps differ"
    (accuracy,) = {float(accuracy) for _, accuracy in found}
    assert accuracy >= least


def test_without_the_launcher_it_says_how_to_start_it() -> None:
    code, errors = run_here(EXAMPLE, "sgd")
    assert code == 1
    assert "dpwa launch -n 4" in errors
