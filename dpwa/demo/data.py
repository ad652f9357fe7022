"""The digits of scikit-learn, and private shards of them in which a few classes dominate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

TEST_SIZE = 360
SHARED_FRACTION = 0.03
_SPLIT_SEED = 2017


@dataclass(frozen=True)
class Examples:
    """Labelled images. `images` is (n, 64) float32, `labels` is (n,) int64 from 0 to 9."""

    images: Floats
    labels: Integers

    def subset(self, indices: Integers) -> Examples:
        return Examples(self.images[indices], self.labels[indices])


def load_digits() -> tuple[Examples, Examples]:
    """Return 1437 training and 360 test examples, stratified and equal in every process."""
    from sklearn.datasets import load_digits as bundled_digits
    from sklearn.model_selection import train_test_split

    digits: Any = bundled_digits()
    everything = Examples(digits.data.astype(np.float32), digits.target.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(everything.labels)),
        test_size=TEST_SIZE,
        stratify=everything.labels,
        random_state=_SPLIT_SEED,
    )
    return _standardised(everything.subset(train), everything.subset(test))


def label_skewed_shards(
    labels: Integers, count: int, seed: int, shared_fraction: float = SHARED_FRACTION
) -> list[Integers]:
    """Split the examples into `count` label-skewed shards, each dominated by a few classes.

    Class c belongs to the shards i with i = c modulo min(count, number of classes). A share of each
    class, `shared_fraction` (0 to 1), is divided equally between all shards. The same seed gives
    the same shards. Each shard is the sorted indices of its examples.
    """
    rng = np.random.default_rng(seed)
    shards: list[list[int]] = [[] for _ in range(count)]
    classes = np.unique(labels)
    for position, label in enumerate(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        shared = round(shared_fraction * len(members))
        for turn, example in enumerate(members[:shared]):
            shards[(position + turn) % count].append(int(example))
        _deal(members[shared:], shards, _owners(position, count, len(classes)))
    return [np.sort(np.array(shard, dtype=np.int64)) for shard in shards]


def _owners(position: int, count: int, classes: int) -> list[int]:
    ring = min(count, classes)
    return [shard for shard in range(count) if shard % ring == position % ring]


def _deal(members: Integers, shards: list[list[int]], owners: list[int]) -> None:
    for owner, part in zip(owners, np.array_split(members, len(owners)), strict=True):
        shards[owner].extend(int(example) for example in part)


def _standardised(train: Examples, test: Examples) -> tuple[Examples, Examples]:
    """Scale both sets by one mean and deviation of all training pixels. Some pixels never vary."""
    mean, deviation = train.images.mean(), train.images.std()
    return (
        Examples((train.images - mean) / deviation, train.labels),
        Examples((test.images - mean) / deviation, test.labels),
    )
