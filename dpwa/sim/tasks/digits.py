"""Digits: logistic regression, or an MLP, on the images of scikit-learn."""

from __future__ import annotations

import itertools
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpwa.demo.data import SHARED_FRACTION, label_skewed_shards, load_digits
from dpwa.errors import UserError
from dpwa.sim.draws import uniform
from dpwa.types import Fraction, StrictModel

PIXELS, CLASSES = 64, 10
NODES_AT_ONCE = 512  # whose batches are in memory

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class DigitsOptions(StrictModel):
    """Options of `digits`."""

    model: Literal["logistic", "mlp"] = Field(
        default="logistic", description="logistic regression, or an MLP with one hidden layer"
    )
    hidden: int = Field(default=32, ge=1, le=4096, description="hidden units of the MLP")
    lr: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = Field(
        default=0.1, description="learning rate"
    )
    batch: int = Field(default=16, ge=1, le=1437, description="examples of a step")
    private: bool = Field(
        default=False, description="on: each node has examples of its own, mostly of few classes"
    )
    shared: Fraction = Field(
        default=SHARED_FRACTION, description="share of private examples that are of all classes"
    )


class Digits:
    """Classify 1437 images of 8 by 8 pixels by SGD; 360 others tell the accuracy."""

    name: ClassVar[str] = "digits"
    options: ClassVar[type[StrictModel]] = DigitsOptions

    def __init__(self, options: DigitsOptions, nodes: int, seed: int) -> None:
        self._options = options
        self._nodes = nodes
        self._seed = seed
        try:
            train, test = load_digits()
        except ImportError:
            raise UserError(
                "task: digits needs scikit-learn: pip install -c constraints.txt '.[data]'"
                " [DPWA-E296]"
            ) from None
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
        """Return what goes into each layer, and the scores."""
        values = [images]
        for number, (weights, biases) in enumerate(layers):
            outputs = values[-1] @ weights + biases[:, None, :]
            values.append(outputs if number == len(layers) - 1 else np.maximum(0.0, outputs))
        return values

    def _batch(self, nodes: Integers) -> Integers:
        """Draw the next batch of some nodes: indices of examples, shape (K, batch)."""
        places = np.arange(self._options.batch)
        drawn = uniform(self._seed, nodes[:, None], self._steps[nodes][:, None], places)
        within = (drawn * self._counts[nodes][:, None]).astype(np.int64)
        batch: Integers = self._dealt[self._first[nodes][:, None] + within]
        return batch

    def _deal(self) -> tuple[Integers, Integers, Integers]:
        """Return where the examples of each node begin, how many they are, and all of them."""
        examples, nodes = len(self._labels), self._nodes
        if not self._options.private:
            return np.zeros(nodes, np.int64), np.full(nodes, examples), np.arange(examples)
        shards = label_skewed_shards(self._labels, nodes, self._seed, self._options.shared)
        counts = np.array([len(shard) for shard in shards], dtype=np.int64)
        if not counts.all():
            raise UserError(
                f"digits.private: expected so few nodes that each has an example of {examples} "
                f"(got {nodes}) [DPWA-E295]"
            )
        return np.cumsum(counts) - counts, counts, np.concatenate(shards)


def _log_sum(scores: Floats) -> Floats:
    """Return log(sum(exp(scores))) over the last axis."""
    most = scores.max(axis=-1)
    total: Floats = most + np.log(np.exp(scores - most[..., None]).sum(axis=-1))
    return total
