"""Three networks for 32x32 images: ResNet-18, VGG-16 with batch norm, and a small CNN."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

VGG16_CHANNELS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them.

    Source: He et al., "Deep Residual Learning for Image Recognition" (2016), figure 2.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(in_channels, out_channels, 3, stride)
        self.second = _convolution(out_channels, out_channels, 3)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = _convolution(in_channels, out_channels, 1, stride)

    def forward(self, features: Tensor) -> Tensor:
        """Map (B, in, H, W) to (B, out, H/stride, W/stride)."""
        residual = self.second(functional.relu(self.first(features)))
        return functional.relu(residual + self.shortcut(features))


def resnet18(classes: int = 10) -> nn.Sequential:
    """Return a ResNet-18 for CIFAR, with a 3x3 stem and no pooling before the first block."""
    stages: list[nn.Module] = []
    in_channels = 64
    for out_channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        stages.append(BasicBlock(in_channels, out_channels, stride))
        stages.append(BasicBlock(out_channels, out_channels, 1))
        in_channels = out_channels
    return nn.Sequential(
        _convolution(3, 64, 3),
        nn.ReLU(inplace=True),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def vgg16(classes: int = 10) -> nn.Sequential:
    """Return a VGG-16 with batch norm. Its two hidden linear layers have 512 units, not 4096.

    Source: Simonyan and Zisserman, "Very Deep Convolutional Networks" (2015), configuration D.
    """
    layers: list[nn.Module] = []
    in_channels = 3
    for stage in VGG16_CHANNELS:
        for out_channels in stage:
            layers += [_convolution(in_channels, out_channels, 3), nn.ReLU(inplace=True)]
            in_channels = out_channels
        layers.append(nn.MaxPool2d(2))
    for _ in range(2):
        layers += [nn.Flatten(), nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(512, classes))


def small(classes: int = 10) -> nn.Sequential:
    """Return a network of three convolutions and one linear layer, for the CPU of a laptop."""
    layers: list[nn.Module] = []
    in_channels = 3
    for out_channels in (32, 64, 128):
        layers += [
            _convolution(in_channels, out_channels, 3),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        ]
        in_channels = out_channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, classes))


MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "resnet18": resnet18,
    "vgg16": vgg16,
    "small": small,
}


def _convolution(
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1
) -> nn.Sequential:
    """Return a convolution without bias, followed by batch norm."""
    return nn.Sequential(
        nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            bias=False,
        ),
        nn.BatchNorm2d(out_channels),
    )
