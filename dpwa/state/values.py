"""Raw parameters, one array or plain bytes, as a part of a state."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpwa.data.layout import BYTES, Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError
from dpwa.state.image import ImageLayout, StatePart
from dpwa.state.target import UnfitStateError
from dpwa.wire.messages import pack, unpack

_NUMERIC_KINDS = "biufc"


def values_part(layout: Layout, source: npt.NDArray[Any]) -> dict[str, StatePart]:
    """Copy raw parameters.

    Args:
        layout: of one tensor, or of plain bytes.
        source: the values, of any strides.
    """
    spec = layout.tensors[0]
    image_layout = _layout_of(source.nbytes)
    image = image_layout.empty()
    room = image[len(image_layout.header) :]
    np.copyto(room.view(source.dtype).reshape(source.shape), source)
    numbers = pack([spec.dtype, list(spec.shape)])
    return {"values": StatePart(layout, image_layout, image, numbers)}


def values_of(image: ByteArray, numbers: bytes) -> bytes | npt.NDArray[Any]:
    """Return the raw parameters of a part.

    Raises:
        UnfitStateError: it has none.
    """
    try:
        dtype, shape = unpack(numbers)
        kind = np.dtype(np.uint8 if dtype == BYTES else dtype)
        # Bytes may be as many as they like: all but the header, whose length comes first.
        start = 8 + int.from_bytes(image[:8].tobytes(), "little")
        data = _layout_of(max(0, image.nbytes - start)).tensors_of(image)
        if data is None or kind.kind not in _NUMERIC_KINDS:
            raise UnfitStateError("its header is none of raw parameters")
        return data.tobytes() if dtype == BYTES else data.view(kind).reshape(shape)
    except (ProtocolError, ValueError, TypeError) as error:
        raise UnfitStateError(f"{type(error).__name__}: {error}") from None


def _layout_of(nbytes: int) -> ImageLayout:
    return ImageLayout.of([TensorSpec("parameters", "uint8", (nbytes,), 1)])
