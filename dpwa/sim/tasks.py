"""The tasks of simulated nodes, vectorised over nodes, on one float64 array of shape (N, D).

consensus    no training: nodes start at different values and only average
quadratic    a quadratic loss with noisy gradients, and optionally a different optimum on each node
digits       logistic regression or an MLP on scikit-learn's digits
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpwa.demo.data import SHARED_FRACTION, label_skewed_shards, load_digits
from dpwa.errors import UserError, from_extra
from dpwa.sim.draws import normal, uniform
from dpwa.sim.scenario import NotNegative, Positive, RunSpec
from dpwa.types import Fraction, StrictModel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_PARAMETERS = 10_000_000


class TrainingTask(Protocol):
    """A training task. The noise of a node's k-th step depends only on the seed, the node and k.

    Attributes:
        name: the name of the task in scenarios.
        options: the class of its options.
        dimension: the number D of parameters of one node.
    """

    name: ClassVar[str]
    options: ClassVar[type[StrictModel]]

    @property
    def dimension(self) -> int:
        """The number D of parameters of one node."""
        ...

    def starts(self) -> Floats:
        """Return the initial parameters, shape (N, D). If the task has training, rows are equal."""
        ...

    def step(self, x: Floats, nodes: Integers) -> Floats | None:
        """Take the next local step of some nodes, in place.

        Args:
            x: the parameters of these nodes, shape (K, D).
            nodes: the indices of these nodes, shape (K,), each once.

        Returns:
            The losses before the step, shape (K,), or `None` if the task has no training.
        """
        ...

    def evaluate(self, mean: Floats) -> tuple[float | None, float | None]:
        """Return loss and accuracy of the parameters `mean`, shape (D,), or `None` if undefined."""
        ...


class ConsensusOptions(StrictModel):
    """Options of `consensus`."""

    dimension: int = Field(
        default=8, ge=1, le=MAX_PARAMETERS, description="number of parameters, each from N(0, 1)"
    )


class Consensus:
    """A task without training. x_i starts at random values from N(0, 1) in each dimension."""

    name: ClassVar[str] = "consensus"
    options: ClassVar[type[StrictModel]] = ConsensusOptions

    def __init__(self, options: ConsensusOptions, nodes: int, seed: int) -> None:
        self.dimension = options.dimension
        self._nodes = nodes
        self._seed = seed

    def starts(self) -> NDArray[np.float64]:
        return np.random.default_rng(self._seed).normal(size=(self._nodes, self.dimension))

    def step(self, x: NDArray[np.float64], nodes: NDArray[np.int64]) -> None:
        """Do nothing."""

    def evaluate(self, mean: NDArray[np.float64]) -> tuple[None, None]:  # noqa: ARG002
        return None, None


class QuadraticOptions(StrictModel):
    """Options of `quadratic`."""

    dimension: int = Field(default=32, ge=1, le=MAX_PARAMETERS, description="number of parameters")
    lr: Positive = Field(default=0.1, description="learning rate")
    curvature: Positive = Field(default=1.0, description="curvature of the steepest direction")
    flattest: Positive = Field(
        default=0.1,
        description="curvature of the flattest direction. The curvatures of the other directions "
        "lie between these two in a geometric series",
    )
    noise: NotNegative = Field(
        default=0.1, description="standard deviation of each number of a gradient"
    )
    heterogeneity: NotNegative = Field(
        default=0.0, description="standard deviation of the nodes' optima, in each direction"
    )


class Quadratic:
    """Node i descends f_i(x) = sum_j h_j (x_j - c_ij)^2 / 2 by SGD with noise.

    The curvatures h go from `curvature` to `flattest` in equal ratios. The optima c_i are random
    values from N(0, heterogeneity^2). All nodes start at the same random values from N(0, 1).
    """

    name: ClassVar[str] = "quadratic"
    options: ClassVar[type[StrictModel]] = QuadraticOptions

    def __init__(self, options: QuadraticOptions, nodes: int, seed: int) -> None:
        self.dimension = options.dimension
        self._options = options
        self._nodes = nodes
        self._seed = seed
        self._curvatures = np.geomspace(options.curvature, options.flattest, self.dimension)
        rng = np.random.default_rng(seed)
        self._start = rng.normal(size=self.dimension)
        self._optima = np.zeros((1, self.dimension))
        if options.heterogeneity:
            spread = rng.normal(size=(nodes, self.dimension))
            self._optima = options.heterogeneity * spread
        self._steps = np.zeros(nodes, dtype=np.int64)

    def starts(self) -> NDArray[np.float64]:
        return np.tile(self._start, (self._nodes, 1))

    def step(self, x: NDArray[np.float64], nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        options = self._options
        offset = x - (self._optima[nodes] if len(self._optima) > 1 else self._optima)
        gradients = self._curvatures * offset
        losses: NDArray[np.float64] = 0.5 * np.einsum("kd,kd->k", gradients, offset)
        if options.noise:
            counters = nodes[:, None], self._steps[nodes][:, None], np.arange(self.dimension)
            gradients += options.noise * normal(self._seed, *counters)
        x -= options.lr * gradients
        self._steps[nodes] += 1
        return losses

    def evaluate(self, mean: NDArray[np.float64]) -> tuple[float, None]:
        """Return the mean of f_i over all nodes for one model."""
        offset = mean - self._optima
        return float(0.5 * (self._curvatures * offset**2).sum(axis=1).mean()), None


PIXELS, CLASSES = 64, 10
NODES_AT_ONCE = 512  # nodes whose batches are in memory at once


class DigitsOptions(StrictModel):
    """Options of `digits`."""

    model: Literal["logistic", "mlp"] = Field(
        default="logistic", description="logistic regression, or an MLP with one hidden layer"
    )
    hidden: int = Field(default=32, ge=1, le=4096, description="hidden units of the MLP")
    lr: Positive = Field(default=0.1, description="learning rate")
    batch: int = Field(default=16, ge=1, le=1437, description="number of examples in a step")
    private: bool = Field(
        default=False, description="whether each node has its own examples, mostly of few classes"
    )
    shared: Fraction = Field(
        default=SHARED_FRACTION,
        description="share of the private examples that come from all classes",
    )


class Digits:
    """Classify 1437 images of 8 by 8 pixels by SGD. Accuracy is measured on 360 other images."""

    name: ClassVar[str] = "digits"
    options: ClassVar[type[StrictModel]] = DigitsOptions

    def __init__(self, options: DigitsOptions, nodes: int, seed: int) -> None:
        self._options = options
        self._nodes = nodes
        self._seed = seed
        with from_extra("data", "task: digits needs scikit-learn [DPWA-E296]"):
            train, test = load_digits()
        self._images, self._labels = train.images.astype(np.float64), train.labels
        self._tests, self._test_labels = test.images.astype(np.float64), test.labels
        widths = [PIXELS, options.hidden, CLASSES] if options.model == "mlp" else [PIXELS, CLASSES]
        self._shapes = list(itertools.pairwise(widths))
        self.dimension = sum((a + 1) * b for a, b in self._shapes)
        self._first, self._counts, self._dealt = self._deal()
        self._steps = np.zeros(nodes, dtype=np.int64)

    def starts(self) -> Floats:
        rng = np.random.default_rng(self._seed)
        parts = [
            np.concatenate([rng.normal(scale=a**-0.5, size=a * b), np.zeros(b)])
            for a, b in self._shapes
        ]
        return np.tile(np.concatenate(parts), (self._nodes, 1))

    def step(self, x: Floats, nodes: Integers) -> Floats:
        losses = [
            self._step(x[at : at + NODES_AT_ONCE], nodes[at : at + NODES_AT_ONCE])
            for at in range(0, len(nodes), NODES_AT_ONCE)
        ]
        return np.concatenate(losses)

    def evaluate(self, mean: Floats) -> tuple[float, float]:
        scores = self._forward(self._layers(mean[None]), self._tests[None])[-1][0]
        losses = _log_sum(scores) - scores[np.arange(len(scores)), self._test_labels]
        hits = scores.argmax(axis=1) == self._test_labels
        return float(losses.mean()), float(hits.mean())

    def _step(self, x: Floats, nodes: Integers) -> Floats:
        batch = self._batch(nodes)
        images, labels = self._images[batch], self._labels[batch]
        layers = self._layers(x)
        activations = self._forward(layers, images)
        scores = activations[-1]
        log_sum = _log_sum(scores)
        of_label = np.take_along_axis(scores, labels[:, :, None], axis=2)[:, :, 0]
        losses: Floats = (log_sum - of_label).mean(axis=1)
        error = np.exp(scores - log_sum[:, :, None])
        ones = np.take_along_axis(error, labels[:, :, None], axis=2) - 1.0
        np.put_along_axis(error, labels[:, :, None], ones, axis=2)
        error *= self._options.lr / self._options.batch
        for layer in reversed(range(len(layers))):
            weights, biases = layers[layer]
            inputs = activations[layer]
            back = error @ np.swapaxes(weights, 1, 2) * (inputs > 0.0) if layer else error
            weights -= np.swapaxes(inputs, 1, 2) @ error  # views of x
            biases -= error.sum(axis=1)
            error = back
        self._steps[nodes] += 1
        return losses

    def _layers(self, x: Floats) -> list[tuple[Floats, Floats]]:
        """Return weights and biases of each layer, as views of x."""
        layers, at = [], 0
        for a, b in self._shapes:
            weights = x[:, at : at + a * b].reshape(len(x), a, b)
            layers.append((weights, x[:, at + a * b : at + (a + 1) * b]))
            at += (a + 1) * b
        return layers

    def _forward(self, layers: list[tuple[Floats, Floats]], images: Floats) -> list[Floats]:
        """Return the inputs of each layer, and the scores of the classes."""
        values = [images]
        for number, (weights, biases) in enumerate(layers):
            outputs = values[-1] @ weights + biases[:, None, :]
            values.append(outputs if number == len(layers) - 1 else np.maximum(0.0, outputs))
        return values

    def _batch(self, nodes: Integers) -> Integers:
        """Pick the next random batches of some nodes, as indices of examples, shape (K, batch)."""
        places = np.arange(self._options.batch)
        drawn = uniform(self._seed, nodes[:, None], self._steps[nodes][:, None], places)
        within = (drawn * self._counts[nodes][:, None]).astype(np.int64)
        batch: Integers = self._dealt[self._first[nodes][:, None] + within]
        return batch

    def _deal(self) -> tuple[Integers, Integers, Integers]:
        """Return each node's offset and count in a list of example indices, and this list."""
        examples, nodes = len(self._labels), self._nodes
        if not self._options.private:
            return np.zeros(nodes, np.int64), np.full(nodes, examples), np.arange(examples)
        shards = label_skewed_shards(self._labels, nodes, self._seed, self._options.shared)
        counts = np.array([len(shard) for shard in shards], dtype=np.int64)
        if not counts.all():
            raise UserError(
                f"digits.private: expected fewer nodes, because some nodes get none of the "
                f"{examples} examples (got {nodes}) [DPWA-E295]"
            )
        return np.cumsum(counts) - counts, counts, np.concatenate(shards)


def _log_sum(scores: Floats) -> Floats:
    """Return log(sum(exp(scores))) over the last axis."""
    most = scores.max(axis=-1)
    total: Floats = most + np.log(np.exp(scores - most[..., None]).sum(axis=-1))
    return total


TASKS: Mapping[str, Callable[..., TrainingTask]] = {
    kind.name: kind for kind in (Consensus, Quadratic, Digits)
}


def make_task(spec: RunSpec) -> TrainingTask:
    """Return the task of a run.

    Raises:
        UserError: a library is missing, or the task does not fit the number of nodes.
    """
    scenario = spec.scenario
    return TASKS[scenario.task](spec.task_options, scenario.nodes, scenario.seed)
