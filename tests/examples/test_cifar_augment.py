from __future__ import annotations

from types import ModuleType

import pytest
import torch
from examples_support import load_example
from torch import Tensor
from torch.nn import functional

PADDING = 2


@pytest.fixture(scope="module")
def augment() -> ModuleType:
    return load_example("cifar10/augment.py")


def all_versions(image: Tensor) -> set[bytes]:
    """Every crop of a padded image, and its mirror image, by its bytes."""
    padded = functional.pad(image, (PADDING,) * 4)
    size = image.shape[-1]
    crops = [
        padded[:, row : row + size, column : column + size]
        for row in range(2 * PADDING + 1)
        for column in range(2 * PADDING + 1)
    ]
    return {
        version.contiguous().numpy().tobytes() for crop in crops for version in (crop, crop.flip(2))
    }


def test_all_crops_and_mirror_images_occur_and_nothing_else(augment: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(1, 255, (3, 6, 6), generator=generator, dtype=torch.uint8)
    many = augment.random_crop_and_flip(image.expand(2000, 3, 6, 6), generator, padding=PADDING)
    assert many.dtype == torch.uint8
    assert many.shape == (2000, 3, 6, 6)
    assert {version.numpy().tobytes() for version in many} == all_versions(image)


def test_each_image_stays_at_its_place_in_the_batch(augment: ModuleType) -> None:
    images = torch.arange(1, 9, dtype=torch.float32).view(8, 1, 1, 1).expand(8, 3, 16, 16)
    result = augment.random_crop_and_flip(images, torch.Generator().manual_seed(1))
    assert result.amax(dim=(1, 2, 3)).tolist() == list(range(1, 9))


def test_the_same_seed_gives_the_same_images(augment: ModuleType) -> None:
    images = torch.rand(16, 3, 32, 32)
    once, again, other = (
        augment.random_crop_and_flip(images, torch.Generator().manual_seed(seed))
        for seed in (3, 3, 4)
    )
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
