"""An image: the bytes of a safetensors file with tensors, with the same layout on every node.

    8 bytes     length of the header, little-endian
    header      JSON, padded with spaces: dtype, shape and place of each tensor
    tensors     larger elements first, then by name, without gaps

The header depends only on names, dtypes and shapes, so pieces of the images of several nodes can be
combined. Source of the format: safetensors (Hugging Face), version 0.4 and later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.segments import ByteArray

_LENGTH_BYTES = 8
_ALIGNED_TO = 8

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def can_be_stored(dtype: str) -> bool:
    """Return whether the format supports a dtype, by its name in torch and numpy."""
    return dtype in _NAMES


@dataclass(frozen=True)
class ImageLayout:
    """The place of each tensor in an image."""

    tensors: Layout  # the layout of the bytes after the header

    @classmethod
    def from_specs(cls, specs: Iterable[TensorSpec]) -> ImageLayout:
        return cls(Layout(tuple(sorted(specs, key=lambda spec: (-spec.item_bytes, spec.name)))))

    @cached_property
    def header(self) -> bytes:
        entries = {
            spec.name: {
                "dtype": _NAMES[spec.dtype],
                "shape": list(spec.shape),
                "data_offsets": [start, start + spec.nbytes],
            }
            for spec, start in zip(self.tensors.tensors, self.tensors.offsets, strict=True)
        }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNED_TO)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text

    @property
    def nbytes(self) -> int:
        return len(self.header) + (self.tensors.nbytes or 0)

    @property
    def fingerprint(self) -> bytes:
        return self.tensors.fingerprint

    def empty(self) -> ByteArray:
        """Return memory for an image, shape `(nbytes,)`, which starts with the header."""
        image = np.empty(self.nbytes, np.uint8)
        image[: len(self.header)] = np.frombuffer(self.header, np.uint8)
        return image

    def tensors_of(self, image: ByteArray) -> ByteArray | None:
        """Return the bytes after the header, or `None` if the image has a different layout."""
        start = len(self.header)
        if image.nbytes != self.nbytes or image[:start].tobytes() != self.header:
            return None
        return image[start:]


@dataclass(frozen=True)
class StatePart:
    """A part of a training state, such as the model or the optimizer."""

    kind: Layout  # must be equal to the kind of the part that it replaces
    layout: ImageLayout
    image: ByteArray  # shape `(layout.nbytes,)`
    numbers: bytes = b""  # values other than tensors, as msgpack; they may differ between nodes


@dataclass(frozen=True)
class State:
    """The state of a training at one moment."""

    clock: float  # the training clock
    updates: int
    parts: Mapping[str, StatePart]  # by name
