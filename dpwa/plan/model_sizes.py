"""How large a model is: by its number of parameters, or by the sizes in a checkpoint."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from dpwa.data.codecs.arrays import FLOATS
from dpwa.data.layout import Layout, TensorSpec
from dpwa.errors import UserError
from dpwa.wire import limits

DTYPES = tuple(FLOATS)
# Of a checkpoint that has more than the model in it.
MODEL_KEYS = ("model_state_dict", "state_dict", "model")
MOST_BYTES = limits.CHUNK_BYTES * limits.MAX_PIECES
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KMBG]?)", re.IGNORECASE)
_SAFETENSORS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def parameter_count(text: str) -> int:
    """Return the number that a text such as `124M`, `7B` or `300000` stands for."""
    match = _COUNT.fullmatch(text.strip().replace("_", "").replace(",", ""))
    count = round(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if count < 1:
        raise UserError(
            f"--parameters: expected a number such as 300000, 124M or 7B (got {text:.40})"
            " [DPWA-E255]"
        )
    return count


def layout_of_count(count: int, dtype: str) -> Layout:
    return _layout([("parameters", dtype, (count,))])


def layout_of_checkpoint(path: Path) -> Layout:
    """Return the layout of the floating-point tensors in a checkpoint; no values are read.

    It is a file of safetensors, or one of `torch.save` with tensors in dicts and lists. If it has
    more than a model in it, the model is what stands under one of `MODEL_KEYS`.
    """
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}) [DPWA-E103]") from None
    found = _of_safetensors(path) if path.suffix == ".safetensors" else _of_torch(path)
    tensors = [tensor for tensor in found if tensor[1] in FLOATS]
    if not tensors:
        raise UserError(
            f"{path}: expected a checkpoint with tensors of floating-point numbers [DPWA-E268]"
        )
    return _layout(tensors)


_Named = tuple[str, str, tuple[int, ...]]


def _layout(tensors: Iterable[_Named]) -> Layout:
    """Return the layout, in the order of a module's: larger elements stand first."""
    specs = [TensorSpec(name, d, shape, FLOATS[d].itemsize) for name, d, shape in tensors]
    layout = Layout(tuple(sorted(specs, key=lambda spec: -spec.item_bytes)))
    nbytes = layout.nbytes or 0
    if nbytes > MOST_BYTES:
        raise UserError(
            f"a model of {nbytes / 1e9:.0f} GB: a node streams at most {MOST_BYTES / 1e9:.0f} GB"
            " [DPWA-E270]"
        )
    return layout


def _of_safetensors(path: Path) -> list[_Named]:
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return [
                (name, _SAFETENSORS.get(found.get_dtype(), ""), tuple(found.get_shape()))
                for name, found in slices.items()
            ]
    except SafetensorError as error:
        raise UserError(f"{path}: expected a file of safetensors ({error}) [DPWA-E269]") from None


def _of_torch(path: Path) -> list[_Named]:
    try:
        # Mapped, or put on no device: the values of either are not kept.
        is_mapped = zipfile.is_zipfile(path)
        device = "cpu" if is_mapped else "meta"
        loaded = torch.load(path, map_location=device, weights_only=True, mmap=is_mapped)
    except Exception:  # noqa: BLE001  (whatever the unpickler of torch makes of the file)
        raise UserError(
            f"{path}: expected a checkpoint of tensors, as safetensors or of torch.save (of a "
            "module, save the state_dict) [DPWA-E268]"
        ) from None
    for key in MODEL_KEYS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
            break
    return list(_tensors(loaded, "", set()))


def _tensors(value: object, path: str, seen: set[int]) -> Iterator[_Named]:
    """Yield the tensors of nested dicts and lists; one that has two names, once."""
    if isinstance(value, torch.Tensor):
        place = value.data_ptr() or id(value)
        if place not in seen:
            seen.add(place)
            yield path, str(value.dtype).removeprefix("torch."), tuple(value.shape)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{path}.{key}".lstrip("."), seen)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{path}[{index}]", seen)
