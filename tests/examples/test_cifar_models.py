from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import pytest
import torch
from examples_support import load_example
from torch.nn import functional

RESNET18_PARAMETERS = 11_173_962


def vgg16_parameters() -> int:
    """Configuration D: 13 convolutions of 3x3 with batch norm, then 512-512-512-10."""
    channels = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    convolutions = sum(9 * a * b + 2 * b for a, b in pairwise(channels))
    return convolutions + 2 * (512 * 512 + 512) + 512 * 10 + 10


def small_parameters() -> int:
    channels = [3, 32, 64, 128]
    convolutions = sum(9 * a * b + 2 * b for a, b in pairwise(channels))
    return convolutions + 128 * 16 * 10 + 10


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", RESNET18_PARAMETERS),
        ("vgg16", vgg16_parameters()),
        ("small", small_parameters()),
    ],
)
def test_a_network_has_its_published_number_of_parameters(
    models: ModuleType, name: str, parameters: int
) -> None:
    model = models.MODELS[name]()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "small"])
def test_every_parameter_of_a_network_learns(models: ModuleType, name: str) -> None:
    torch.manual_seed(0)
    model = models.MODELS[name]()
    logits = model(torch.randn(3, 3, 32, 32))
    assert logits.shape == (3, 10)
    functional.cross_entropy(logits, torch.tensor([1, 5, 9])).backward()  # type: ignore[no-untyped-call]
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().max() > 0, key


def test_the_stem_of_resnet18_keeps_the_size_and_its_stages_halve_it(models: ModuleType) -> None:
    model = models.resnet18()
    features = torch.zeros(1, 3, 32, 32)
    shapes = []
    for layer in model:
        features = layer(features)
        if isinstance(layer, models.BasicBlock):
            shapes.append(tuple(features.shape[1:]))
    assert shapes[::2] == shapes[1::2]
    assert shapes[::2] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_the_command_line_offers_exactly_the_networks_there_are(models: ModuleType) -> None:
    options = load_example("cifar10/options.py")
    assert tuple(models.MODELS) == options.MODEL_NAMES
