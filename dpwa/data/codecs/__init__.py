"""Codecs make the pieces of a snapshot smaller for the network.

    none    unchanged
    fp16    16-bit floats with 11 significant bits, up to 65504
    bf16    16-bit floats with 8 significant bits, in the range of float32
    int8    8-bit integers and one scale for every 256 values

docs/links.md compares them. You can register your own codec under a name, which configurations can
then use:

>>> from dpwa.data.codecs import Codec, register_codec
>>> @register_codec("mine")
... class Mine(Codec):
...     def encode(self, piece, dtype):
...         return piece
...     def decode(self, payload, dtype, room):
...         return exactly(payload, room.nbytes)  # from dpwa.data.codecs.sizes

The list of names does not need torch. Making the first codec imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dpwa.data.codecs.base import Codec
from dpwa.registry import Registry
from dpwa.types import Frame

__all__ = ["Codec", "Frame", "codec", "codec_names", "register_codec"]

MakeCodec = TypeVar("MakeCodec", bound=Callable[[], Codec])

_REGISTRY: Registry[Callable[[], Codec]] = Registry("codec")


def register_codec(name: str) -> Callable[[MakeCodec], MakeCodec]:
    """Return a decorator that registers a codec, so that configurations can set `codec: NAME`.

    The decorator is for a codec's class, or for a function that makes a codec.

    Raises:
        UserError: a different codec has this name.
    """

    def register(make: MakeCodec) -> MakeCodec:
        _REGISTRY.add_item(name, make, make)
        return make

    return register


def codec(name: str) -> Codec:
    """Create a codec by name, for use in one thread. Raises `UnknownNameError`."""
    made = _REGISTRY.get(name)()
    made.name = name
    return made


def codec_names() -> tuple[str, ...]:
    """Return the names of all registered codecs, in the order of registration."""
    return _REGISTRY.names()


@register_codec("none")
def _none() -> Codec:
    from dpwa.data.codecs.plain import Plain

    return Plain()


@register_codec("fp16")
def _fp16() -> Codec:
    from dpwa.data.codecs.half import Half

    return Half("float16")


@register_codec("bf16")
def _bf16() -> Codec:
    from dpwa.data.codecs.half import Half

    return Half("bfloat16")


@register_codec("int8")
def _int8() -> Codec:
    from dpwa.data.codecs.int8 import Int8

    return Int8()
