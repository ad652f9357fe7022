"""The model that is gossiped."""

import pytest
import torch

from dpwa.bench.model import FlatModel


@pytest.mark.parametrize("tensors", [1, 3, 2500])
def test_the_parts_are_the_flat_memory(tensors):
    model = FlatModel(10_000, tensors, seed=0)
    parts = list(model.module.parameters())
    assert len(parts) == tensors
    model.flat.fill_(7.0)
    assert torch.equal(torch.cat([part.detach() for part in parts]), torch.full((2500,), 7.0))


def test_neighbours_differ_and_drift_apart():
    one, two = FlatModel(400, 1, seed=0), FlatModel(400, 1, seed=1)
    assert not torch.equal(one.flat, two.flat)
    before = (one.flat.norm(), two.flat.norm())
    one.train_a_little()
    two.train_a_little()
    assert one.flat.norm() < before[0]
    assert two.flat.norm() > before[1]
