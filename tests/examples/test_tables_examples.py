"""The examples of shared tables, as their reader runs them."""

import re
import sys
from importlib.util import find_spec

import pytest
from examples_support import DPWA, EXAMPLES, Runner, run_here
from support.launched import run_nodes


@pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")
def test_workers_learn_a_logistic_regression_together() -> None:
    assert_learnt("".join(run_nodes(EXAMPLES / "logistic_regression.py", 2)), 2)


@pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")
@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "options"), [(2, []), (4, ["--sync"])])
def test_launched_workers_learn_it_as_well(run: Runner, nodes: int, options: list[str]) -> None:
    example = EXAMPLES / "logistic_regression.py"
    launch = (*DPWA, "launch", "-n", nodes, "--", sys.executable, "-W", "error", example)
    done = run(*launch, *options)
    assert done.returncode == 0, done.stderr
    assert_learnt(done.stdout, nodes)


def assert_learnt(said: str, nodes: int) -> None:
    found = [float(share) for share in re.findall(r"accuracy ([\d.]+)", said)]
    assert len(found) == nodes
    assert len(set(found)) == 1, "all have read the same table"
    assert found[0] >= 0.92


@pytest.mark.slow
def test_workers_learn_an_embedding_by_its_rows(run: Runner) -> None:
    example = EXAMPLES / "sparse_embedding.py"
    done = run(*DPWA, "launch", "-n", 4, "--", sys.executable, "-W", "error", example)
    assert done.returncode == 0, done.stderr
    found = [int(share) for share in re.findall(r"in (\d+)% of the cases", done.stdout)]
    assert len(found) == 4
    assert min(found) >= 80


@pytest.mark.parametrize("name", ["logistic_regression.py", "sparse_embedding.py"])
def test_without_the_launcher_they_say_how_to_start_them(name: str) -> None:
    code, errors = run_here(EXAMPLES / name)
    assert code == 1
    assert "dpwa launch -n 4" in errors
