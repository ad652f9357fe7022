from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.9))


def batches_of(*brightness: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [value + torch.randn(8, 3, 6, 6, generator=generator) for value in brightness]


def test_statistics_become_the_mean_over_the_batches(
    evaluate: ModuleType, model: nn.Sequential
) -> None:
    batches = batches_of(-3.0, 0.0, 5.0)
    evaluate.recompute_batch_norm(model, batches)
    convolution: nn.Module = model[0]
    features = [convolution(images).detach() for images in batches]
    means = torch.stack([values.mean(dim=(0, 2, 3)) for values in features]).mean(dim=0)
    variances = torch.stack([values.var(dim=(0, 2, 3)) for values in features]).mean(dim=0)
    statistics = model[1].state_dict()
    torch.testing.assert_close(statistics["running_mean"], means)
    torch.testing.assert_close(statistics["running_var"], variances)


def test_what_was_measured_before_is_forgotten(evaluate: ModuleType, model: nn.Sequential) -> None:
    running_mean = model[1].state_dict()["running_mean"]
    running_mean.fill_(1e6)
    evaluate.recompute_batch_norm(model, batches_of(0.0))
    assert running_mean.abs().max() < 10


@pytest.mark.parametrize("is_training", [True, False])
def test_mode_momentum_and_parameters_stay(
    evaluate: ModuleType, model: nn.Sequential, is_training: bool
) -> None:
    model.train(is_training)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    evaluate.recompute_batch_norm(model, batches_of(1.0))
    assert all(layer.training == is_training for layer in model.modules())
    assert model[1].momentum == 0.1
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_is_off_while_statistics_are_measured(evaluate: ModuleType) -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm2d(3))
    images = torch.ones(4, 3, 2, 2)
    evaluate.recompute_batch_norm(model, [images])
    torch.testing.assert_close(model[1].running_mean, torch.ones(3))


def test_a_model_without_batch_norm_is_not_even_run(evaluate: ModuleType) -> None:
    batches = iter(batches_of(0.0))
    evaluate.recompute_batch_norm(nn.Linear(2, 2), batches)
    assert len(list(batches)) == 1


def test_accuracy_counts_images_not_batches(evaluate: ModuleType) -> None:
    model = nn.Identity()
    logits = torch.eye(4)
    batches = [(logits[:3], torch.tensor([0, 1, 2])), (logits[3:], torch.tensor([0]))]
    assert evaluate.accuracy(model, batches) == 0.75
    assert model.training


def test_accuracy_of_no_images_is_an_error(evaluate: ModuleType) -> None:
    with pytest.raises(ValueError, match="no images"):
        evaluate.accuracy(nn.Identity(), [])
