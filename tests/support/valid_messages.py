"""A valid message of any type, made from its fields: a type that is new is covered by itself."""

import re
import types
import typing

import annotated_types
from pydantic.fields import FieldInfo

TEXTS = ("w1", "tcp://127.0.0.1:45000", "0")


def valid_message(kind, rng):
    values = {
        name: _valid(field.annotation, field.metadata, rng)
        for name, field in kind.model_fields.items()
        if name != "type"
    }
    return kind(**values)


def _valid(annotation, metadata, rng):
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        return _valid(inner, [*metadata, *_flat(more)], rng)
    if origin is typing.Literal:
        return rng.choice(typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        options = [each for each in typing.get_args(annotation) if each is not type(None)]
        return _valid(options[0], metadata, rng)
    if origin is tuple:
        inner = typing.get_args(annotation)
        if inner[-1] is Ellipsis:
            return tuple(_valid(inner[0], [], rng) for _ in range(2))
        return tuple(_valid(each, [], rng) for each in inner)
    return _simple(annotation, _bounds(metadata), rng)


def _flat(metadata):
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _bounds(metadata):
    bounds = {}
    for item in _flat(metadata):
        for name in ("ge", "min_length", "max_length", "multiple_of", "pattern"):
            if hasattr(item, name) and not isinstance(item, annotated_types.Len):
                bounds[name] = getattr(item, name)
    return bounds


def _simple(kind, bounds, rng):
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        step = bounds.get("multiple_of") or 1
        least = max(bounds.get("ge", 0), 1)
        return -(-least // step) * step
    if kind is float:
        return 0.5
    if kind is str:
        least, pattern = bounds.get("min_length", 0), bounds.get("pattern") or ""
        texts = [text * max(1, -(-least // len(text))) for text in TEXTS]
        return next(text for text in texts if re.search(pattern, text))
    if kind is bytes:
        return rng.randbytes(max(bounds.get("min_length", 0), min(3, bounds.get("max_length", 3))))
    raise TypeError(f"no value of {kind}")
