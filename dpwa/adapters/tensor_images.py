"""Images: the bytes of tensors, which nodes send to other nodes or write to disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from dpwa.adapters.plain_tensors import Named, dtype_name, spec_of
from dpwa.data.segments import ByteArray
from dpwa.state.safetensors_image import ImageLayout, can_be_stored


def storable(named: Iterable[Named]) -> list[Named]:
    """Return the tensors whose dtypes the storage format supports."""
    stored = []
    for name, tensor in named:
        values = tensor.detach()
        if values.dtype == torch.complex128:
            values = torch.view_as_real(values)
        if can_be_stored(dtype_name(values)):
            stored.append((name, values))
    return stored


def layout_of(named: Iterable[Named]) -> ImageLayout:
    return ImageLayout.from_specs(spec_of(name, tensor) for name, tensor in named)


@torch.no_grad()
def copied(layout: ImageLayout, named: Iterable[Named]) -> ByteArray:
    image = layout.empty()
    in_image = dict(views(layout, image[len(layout.header) :]))
    for name, tensor in named:
        in_image[name].copy_(tensor)
    return image


def views(layout: ImageLayout, data: ByteArray) -> Iterator[Named]:
    flat = torch.from_numpy(data) if data.nbytes else torch.empty(0, dtype=torch.uint8)
    for spec, start in zip(layout.tensors.tensors, layout.tensors.offsets, strict=True):
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if spec.nbytes:
            yield spec.name, flat[start : start + spec.nbytes].view(dtype).view(spec.shape)
        else:
            yield spec.name, torch.empty(spec.shape, dtype=dtype)
