from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from examples_support import EXAMPLES, Runner, load_example

FILE = EXAMPLES / "matrix_factorisation.py"
WORKERS = 8


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_example(FILE.name)


def test_the_gradient_is_that_of_f(example: ModuleType) -> None:
    problem = example.make_problem(seed=0, workers=2)
    x, small = problem.starts[0], 1e-5
    direction = np.random.default_rng(1).normal(size=x.shape)
    slope = (problem.f(x + small * direction) - problem.f(x - small * direction)) / (2 * small)
    # Central differences leave small^2 / 6 times a third derivative, and rounding of eps / small.
    assert slope == pytest.approx((problem.gradient(x) * direction).sum(), rel=1e-7)


def test_a_rotated_or_reflected_solution_is_one_too_but_their_mean_is_not(
    example: ModuleType,
) -> None:
    problem = example.make_problem(seed=0, workers=2)
    values, vectors = np.linalg.eigh(problem.product)
    x = vectors[:, -3:] * np.sqrt(values[-3:])
    reflected = x * [-1.0, 1.0, 1.0]
    assert max(problem.f(np.stack([x, reflected]))) < 1e-28
    assert problem.f((x + reflected) / 2) > 0.05


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_lsgd_solves_it_with_all_workers_and_elastic_averaging_with_none(
    example: ModuleType, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = example.make_problem(seed, WORKERS)
    leaders = example.lsgd(problem)
    springs = example.best_elastic(problem)
    print(leaders.lowest(example.STEPS), springs.label, springs.lowest(example.STEPS))
    assert leaders.best[-1] < example.SOLVED
    assert leaders.middle[-1] < example.SOLVED
    assert min(springs.best) > 100 * example.SOLVED
    assert min(springs.middle) > 1e-3
    assert "must be below 0.207" in capsys.readouterr().out  # an alpha that is too large


def test_springs_hold_together_what_begins_on_one_side(example: ModuleType) -> None:
    """Why elastic averaging stalls: the same starts, with all reflections turned round, solve it.

    Then all can slide together. The rest of the way is slow: hence 1e-6, and it stalls far above.
    """
    problem = example.make_problem(0, WORKERS)
    values, vectors = np.linalg.eigh(problem.product)
    sides = np.linalg.det((vectors[:, -3:] * np.sqrt(values[-3:])).T @ problem.starts)
    assert min(sides) < 0 < max(sides)
    turned = problem.starts.copy()
    turned[sides < 0, :, 0] *= -1.0
    alpha = 0.9 / WORKERS
    assert example.elastic(example.Problem(problem.product, turned), alpha).middle[-1] < 1e-6
    assert example.elastic(problem, alpha).middle[-1] > 1e-2


def test_the_same_seed_gives_the_same_curve(example: ModuleType) -> None:
    curves = [example.lsgd(example.make_problem(5, workers=3)) for _ in range(2)]
    assert curves[0] == curves[1]


def test_it_runs_as_a_command_and_draws(run: Runner, tmp_path: Path) -> None:
    out = tmp_path / "curves.png"
    done = run(sys.executable, "-W", "error", FILE, "--seed", 1, "--workers", 4, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "LSGD: best worker below 1e-12 after" in done.stdout
    assert out.read_bytes().startswith(b"\x89PNG")


def test_one_worker_has_nobody_to_follow(run: Runner) -> None:
    done = run(sys.executable, FILE, "--workers", 1)
    assert done.returncode == 2
    assert "at least 2 workers" in done.stderr
