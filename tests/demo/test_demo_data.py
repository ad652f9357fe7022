from __future__ import annotations

import numpy as np
import pytest

from dpwa.demo.data import Examples, label_skewed_shards, load_digits


@pytest.fixture(scope="module")
def digits() -> tuple[Examples, Examples]:
    return load_digits()


def test_digits_are_split_into_1437_and_360_with_all_classes_in_both(digits):
    train, test = digits
    assert train.images.shape == (1437, 64)
    assert test.images.shape == (360, 64)
    assert train.images.dtype == np.float32
    assert set(train.labels) == set(test.labels) == set(range(10))
    assert np.bincount(test.labels).min() >= 34


def test_training_images_are_standardised(digits):
    train, _ = digits
    assert abs(float(train.images.mean())) < 1e-4
    assert float(train.images.std()) == pytest.approx(1.0, abs=1e-4)


def test_split_is_the_same_every_time(digits):
    again = load_digits()[1]
    assert np.array_equal(again.images, digits[1].images)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 10, 11, 25, 64])
def test_shards_are_disjoint_and_cover_everything(digits, count):
    labels = digits[0].labels
    shards = label_skewed_shards(labels, count, seed=5)
    assert len(shards) == count
    assert all(len(shard) > 0 for shard in shards)
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))


@pytest.mark.parametrize("count", [2, 4, 8, 10, 20])
def test_a_shard_has_mostly_its_own_few_classes(digits, count):
    labels = digits[0].labels
    own_classes = -(-10 // count)
    for shard in label_skewed_shards(labels, count, seed=1):
        sizes = np.sort(np.bincount(labels[shard], minlength=10))[::-1]
        assert sizes[:own_classes].sum() >= 0.9 * len(shard)


def test_without_shared_examples_a_shard_knows_nothing_but_its_own_classes(digits):
    labels = digits[0].labels
    shards = label_skewed_shards(labels, 4, seed=0, shared_fraction=0.0)
    assert [sorted(set(labels[shard].tolist())) for shard in shards] == [
        [0, 4, 8],
        [1, 5, 9],
        [2, 6],
        [3, 7],
    ]


def test_the_seed_decides_the_shards(digits):
    labels = digits[0].labels
    first, same, other = (label_skewed_shards(labels, 4, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
