"""Targets: the parts of a node's state that the state of a peer or a checkpoint can replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dpwa.data.layout import BYTES, Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.errors import PeerError, ProtocolError
from dpwa.state.safetensors_image import ImageLayout, StatePart
from dpwa.wire.messages import pack, unpack
from dpwa.wire.state import PartName


class UnfitStateError(PeerError):
    """A state from a peer or from disk cannot be loaded."""


@dataclass(frozen=True)
class Target:
    """A part of this node's state that a received part will replace."""

    part: PartName
    kind: Layout | None  # the required kind of the received part; `None`: any
    layout: ImageLayout | None  # the layout of the image, if it is known
    most_bytes: int  # maximum size of the image
    # loads an image and its numbers, or raises `UnfitStateError` and changes nothing
    load: Callable[[ByteArray, bytes], None]
    # raises the same error if they do not fit, and never changes anything; `None`: not available
    check: Callable[[ByteArray, bytes], None] | None = None


@dataclass(frozen=True)
class Origin:
    """The origin of a state: peers, or a checkpoint of this node."""

    clock: float  # the training clock of the state
    updates: int
    # the names of the peers, with a token of each peer's copy
    donors: Mapping[str, bytes] = field(default_factory=dict)
    checkpoint: str = ""
    nbytes: int = 0  # the size of the replaced part


_NUMERIC_KINDS = "biufc"


def values_part(layout: Layout, source: npt.NDArray[Any]) -> dict[str, StatePart]:
    """Copy raw parameters of any strides to a part. `layout` has one tensor, or plain bytes."""
    spec = layout.tensors[0]
    image_layout = _layout_of(source.nbytes)
    image = image_layout.empty()
    room = image[len(image_layout.header) :]
    np.copyto(room.view(source.dtype).reshape(source.shape), source)
    numbers = pack([spec.dtype, list(spec.shape)])
    return {"values": StatePart(layout, image_layout, image, numbers)}


def values_of(image: ByteArray, numbers: bytes) -> bytes | npt.NDArray[Any]:
    """Return the raw parameters in a part, or raise `UnfitStateError` if there are none."""
    try:
        dtype, shape = unpack(numbers)
        kind = np.dtype(np.uint8 if dtype == BYTES else dtype)
        # Any number of bytes is valid: all bytes after the header, whose length comes first.
        start = 8 + int.from_bytes(image[:8].tobytes(), "little")
        data = _layout_of(max(0, image.nbytes - start)).tensors_of(image)
        if data is None or kind.kind not in _NUMERIC_KINDS:
            raise UnfitStateError("the header of the state does not describe an array or bytes")
        return data.tobytes() if dtype == BYTES else data.view(kind).reshape(shape)
    except (ProtocolError, ValueError, TypeError) as error:
        raise UnfitStateError(f"{type(error).__name__}: {error}") from None


def _layout_of(nbytes: int) -> ImageLayout:
    return ImageLayout.from_specs([TensorSpec("parameters", "uint8", (nbytes,), 1)])
