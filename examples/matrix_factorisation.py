"""Compare LSGD with elastic averaging. In this problem, the mean of two solutions is no solution.

    python examples/matrix_factorisation.py [--seed 0] [--workers 8] [--out curves.png]

The problem is to find X, shape (n, r), with X X^T = U U^T. Each worker minimizes f(X) =
|X X^T - U U^T|^2 / 4. If X is a solution, X Q is also a solution for every rotation or reflection
Q. Between two solutions, f is above 0. For example, the mean of X and -X is 0, and f(0) > 0.
Each worker starts at a random point, and approaches a different X Q.

Elastic averaging (EASGD) pulls all workers toward a center. The center is a mean of different
solutions, and therefore no solution. Workers can turn their solutions toward each other. But no
worker gets from a rotation to a reflection, because f is larger between them. So the workers stop
where pull and gradient are equal. A stronger pull is worse for the best worker, and a weaker pull
is worse for the center. A much stronger pull would help, but is unstable if alpha >= 2 / (N + 1).

LSGD pulls all other workers toward the best worker. The best worker descends as if it were alone,
and the other workers reach its solution. The number of workers does not limit the pull.

All methods have the same starts, step size, number of steps, and steps between communications.
Gradient descent is not random here, so only the starts are random. For elastic averaging, the
table shows the best of six values of alpha.

Source: Teng et al., Leader Stochastic Gradient Descent for Distributed Training of Deep Learning
Models (2019), which compares both methods on this problem.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpwa.algorithms import algorithm
from dpwa.policy.elastic import elastic_round, elastic_warning
from dpwa.policy.leaders import LossReports

Array = NDArray[np.float64]

SHAPE = (20, 3)  # shape of X
SQUARED_SINGULAR_VALUES = (1.0, 0.75, 0.5)  # of the matrix U
LARGEST_CURVATURE = 2.0 * max(SQUARED_SINGULAR_VALUES)  # largest curvature of f at a solution
LR = 0.4
STEPS = 600
STEPS_BETWEEN = 8  # steps between two communications
BETAS = (0.1, 0.2, 0.43, 0.9, 1.6, 2.5)  # alpha = beta / N. The paper of EASGD uses 0.9
PULLS = {"c2": 0.5, "p2": 0.1}
SHOWN = (0, 20, 40, 80, 160, 320, STEPS)
SOLVED = 1e-12


@dataclass(frozen=True)
class Problem:
    """The product U U^T, shape (n, n), and the first X of each worker, shape (N, n, r)."""

    product: Array
    starts: Array

    def f(self, x: Array) -> Array:
        """Return f for each X of shape (..., n, r)."""
        return np.square(self._residual(x)).sum(axis=(-2, -1)) / 4

    def gradient(self, x: Array) -> Array:
        """Return the gradient of f, with the shape of x."""
        return self._residual(x) @ x

    def _residual(self, x: Array) -> Array:
        return x @ np.swapaxes(x, -2, -1) - self.product


@dataclass
class Curve:
    """The values of f, before the first step and after each step."""

    label: str
    best: list[float] = field(default_factory=list)  # lowest f of the workers
    middle: list[float] = field(default_factory=list)  # f of the center, or of the mean

    def add(self, problem: Problem, xs: Array, middle: Array) -> None:
        """Add the values after one more step."""
        self.best.append(float(problem.f(xs).min()))
        self.middle.append(float(problem.f(middle)))

    def lowest(self, step: int) -> tuple[float, float]:
        """Return the lowest values of the last steps, because a communication raises f."""
        lately = slice(max(0, step - STEPS_BETWEEN + 1), step + 1)
        return min(self.best[lately]), min(self.middle[lately])


def make_problem(seed: int, workers: int) -> Problem:
    rng = np.random.default_rng(seed)
    u = np.linalg.qr(rng.normal(size=SHAPE))[0] * np.sqrt(SQUARED_SINGULAR_VALUES)
    return Problem(u @ u.T, rng.normal(size=(workers, *SHAPE)) / np.sqrt(SHAPE[0]))


# Training without gossip, and elastic averaging


def alone(problem: Problem) -> Curve:
    curve, xs = Curve("alone"), problem.starts
    curve.add(problem, xs, xs.mean(axis=0))
    for _ in range(STEPS):
        xs = xs - LR * problem.gradient(xs)
        curve.add(problem, xs, xs.mean(axis=0))
    return curve


def elastic(problem: Problem, alpha: float) -> Curve:
    curve, xs = Curve(f"elastic, alpha {alpha:.3g}"), problem.starts
    center = xs.mean(axis=0)
    curve.add(problem, xs, center)
    for step in range(1, STEPS + 1):
        xs = xs - LR * problem.gradient(xs)
        if step % STEPS_BETWEEN == 0:
            flat, middle = elastic_round(xs.reshape(len(xs), -1), center.ravel(), alpha)
            xs, center = flat.reshape(xs.shape), middle.reshape(SHAPE)
        curve.add(problem, xs, center)
    return curve


def best_elastic(problem: Problem) -> Curve:
    """Return the curve of the alpha with the lowest f, of the best worker or of the center."""
    nodes, curves = len(problem.starts), []
    for beta in BETAS:
        warning = elastic_warning(beta / nodes, nodes, LR * LARGEST_CURVATURE)
        if warning is None:
            curves.append(elastic(problem, beta / nodes))
            print("{:22}{:12.1e}{:12.1e}".format(curves[-1].label, *curves[-1].lowest(STEPS)))
        else:
            print(f"not tried: {warning}")
    return min(curves, key=lambda curve: min(curve.lowest(STEPS)))


# LSGD with dpwa's own class. The class needs values, a view and received snapshots


class ArrayValues:
    """The part of `dpwa.algorithms.Values` that LSGD needs."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def lerp_(self, other: ArrayValues, weight: float) -> None:
        """Move these values toward other values, in place."""
        self.array += weight * (other.array - self.array)

    def copy_(self, other: ArrayValues) -> None:
        """Overwrite these values with other values."""
        self.array[...] = other.array

    def clone(self) -> ArrayValues:
        """Return a copy of these values."""
        return ArrayValues(self.array.copy())


@dataclass
class Received:
    """The part of `dpwa.algorithms.Received` that LSGD needs: a leader's parameters."""

    peer: str
    model: ArrayValues
    published: Array

    def merge(self, factor: float, *, buffers: float | None = None) -> float:  # noqa: ARG002
        """Move the model toward the leader. This model has no buffers."""
        self.model.lerp_(ArrayValues(self.published), factor)
        return factor

    def values(self, into: ArrayValues | None = None) -> ArrayValues:  # noqa: ARG002
        """Return the parameters of the leader."""
        return ArrayValues(self.published)


class Worker:
    """The part of `dpwa.algorithms.View` that LSGD needs, and the round of a node."""

    fetch_probability = 1.0

    def __init__(self, number: int, x: Array, names: Sequence[str]) -> None:
        self.name, self.peers = names[number], names[:number] + names[number + 1 :]
        self.model = ArrayValues(x.copy())
        self.rng = random.Random(number)
        self.reports = LossReports(self.name, group="", incarnation=0, forget_after_s=10.0)
        period = STEPS_BETWEEN * len(names)  # counts the updates of all workers
        lsgd = algorithm("lsgd")
        self.algorithm = lsgd(lsgd.options_model(global_period=period, **PULLS))
        self.updates = 0
        self.now = 0.0

    def leader(self, *, of_all: bool = True) -> str | None:  # noqa: ARG002
        """Return the worker that has reported the lowest f."""
        best = self.reports.leader(self.now)
        return None if best is None else best.node

    def has_groups(self) -> bool:
        """Return False, because all workers are in one group."""
        return False

    def total_updates(self) -> float:
        """Return the number of updates of all workers together."""
        return self.reports.total_updates(self.now, len(self.peers) + 1)

    def send(self, f: float) -> None:
        """Start an update, and add the f of this worker to the reports."""
        self.updates, self.now = self.updates + 1, self.now + 1.0
        self.reports.report_own_loss(f, self.updates, self.now)

    def step(self, gradient: Callable[[Array], Array]) -> None:
        """Take a step of gradient descent, and move toward the last leader."""
        self.model.array -= LR * gradient(self.model.array)
        self.algorithm.publishes(self)

    def merge(self, published: dict[str, Array], asked: str | None) -> None:
        """Move toward the worker with the name in `asked`, unless this is None."""
        if asked is not None:
            self.algorithm.merge(self, Received(asked, self.model, published[asked]))


def lsgd(problem: Problem) -> Curve:
    names = [f"w{number}" for number in range(len(problem.starts))]
    workers = [Worker(number, x, names) for number, x in enumerate(problem.starts)]
    curve = Curve("LSGD")
    for step in range(STEPS + 1):
        xs = np.stack([worker.model.array for worker in workers])
        curve.add(problem, xs, xs.mean(axis=0))
        if step < STEPS:
            lsgd_round(problem, workers)
    return curve


def lsgd_round(problem: Problem, workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.step(problem.gradient)
    published = {worker.name: worker.model.array.copy() for worker in workers}
    for worker in workers:
        worker.send(float(problem.f(published[worker.name])))
    news = [worker.reports.select_reports(worker.now, worker.rng, most=1) for worker in workers]
    asked = []
    for worker in workers:
        for of_one in news:
            worker.reports.receive_reports(of_one, worker.now)
        ask = worker.algorithm.asks(worker)
        asked.append(None if ask is None else ask.peer)
    for worker, peer in zip(workers, asked, strict=True):
        worker.merge(published, peer)


# The command


def show(curves: Sequence[Curve]) -> None:
    print("\n" + " " * 8 + "".join(f"{curve.label:^24}" for curve in curves))
    print(f"{'step':8}" + f"{'best worker':>12}{'mean':>10}  " * len(curves))
    for step in SHOWN:
        numbers = ("{:12.1e}{:10.1e}  ".format(*curve.lowest(step)) for curve in curves)
        print(f"{step:<8}" + "".join(numbers))


def conclude(curve: Curve) -> None:
    solved = next((step for step, f in enumerate(curve.best) if f < SOLVED), None)
    when = "never" if solved is None else f"after {solved} steps"
    all_agree = "is" if curve.middle[-1] < SOLVED else "is not"
    print(f"{curve.label}: best worker below {SOLVED:g} {when}. The mean {all_agree} a solution")


def draw(curves: Sequence[Curve], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for curve in curves:
        (line,) = axes.semilogy(curve.best, label=f"{curve.label}: best worker")
        axes.semilogy(curve.middle, "--", color=line.get_color(), label=f"{curve.label}: mean")
    axes.set(xlabel="gradient steps of each worker", ylabel="f(X)", ylim=(1e-16, None))
    axes.legend(fontsize="small", loc="center right")
    figure.savefig(file, dpi=120, bbox_inches="tight")
    plt.close(figure)
    print(f"curves in {file}")


def worker_count(text: str) -> int:
    count = int(text)
    if count < 2:
        raise argparse.ArgumentTypeError("expected at least 2 workers")
    return count


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare LSGD with elastic averaging.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=worker_count, default=8)
    parser.add_argument("--out", type=Path, help="file for a plot (needs matplotlib)")
    options = parser.parse_args(arguments)
    problem = make_problem(options.seed, options.workers)
    print(f"{options.workers} workers, seed {options.seed}, step size {LR:g}, {STEPS} steps,")
    print(
        f"a communication every {STEPS_BETWEEN}. f is the lowest of the last {STEPS_BETWEEN} steps."
    )
    print("Elastic averaging: f of the best worker and of the center:")
    curves = [alone(problem), best_elastic(problem), lsgd(problem)]
    show(curves)
    print()
    for curve in curves:
        conclude(curve)
    if options.out is not None:
        draw(curves, options.out)


if __name__ == "__main__":
    main()
