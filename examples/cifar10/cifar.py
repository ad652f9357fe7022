"""Read the "python version" of CIFAR-10, without trust in the files.

Python 2 wrote the pickled dicts in the folder `cifar-10-batches-py`. Their keys are bytes. Images
are a numpy array, uint8 of shape (images, 3072). Each row has 1024 red, 1024 green and 1024 blue
values. Labels are a list of integers. A pickle can call any function, so `RestrictedUnpickler`
accepts only the names that such an array needs. It replaces numpy's functions by the functions of
this module, which check the type and the size before they make an array.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpwa.errors import UserError

TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"
META_FILE = "batches.meta"
CLASSES = 10
VALUES_PER_IMAGE = 3 * 32 * 32

# Mean and standard deviation of red, green and blue in the training images, scaled to 0..1.
_MEAN = (0.4914, 0.4822, 0.4465)
_STANDARD_DEVIATION = (0.2470, 0.2435, 0.2616)


class CifarError(UserError):
    """The data folder or one of its files is invalid."""


@dataclass(frozen=True)
class Split:
    """Images with their labels.

    Attributes:
        images: uint8 of shape (N, 3, 32, 32).
        labels: int64 of shape (N,), each from 0 to 9.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Split:
        """Return a split with the same images and labels on the device."""
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Cifar10:
    """The whole data set of CIFAR-10."""

    train: Split
    test: Split
    class_names: tuple[str, ...]


def read_cifar10(data_dir: Path) -> Cifar10:
    """Read the seven files of a `cifar-10-batches-py` folder.

    Raises:
        CifarError: a file is missing or damaged, or contains more than plain arrays.
    """
    expected = (*TRAIN_FILES, TEST_FILE, META_FILE)
    missing = [name for name in expected if not (data_dir / name).is_file()]
    if missing:
        absent = f"no {', '.join(missing)}" if data_dir.is_dir() else "no such folder"
        raise CifarError(
            f"{data_dir}: {absent}. Expected the unpacked folder cifar-10-batches-py with "
            f"{', '.join(expected)} (nothing is downloaded)"
        )
    batches = [read_batch(data_dir / name) for name in TRAIN_FILES]
    train = Split(
        torch.cat([batch.images for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
    )
    test = read_batch(data_dir / TEST_FILE)
    return Cifar10(train, test, read_class_names(data_dir / META_FILE))


def read_batch(path: Path) -> Split:
    """Read the images and labels of one batch file.

    Raises:
        CifarError: the file is damaged, or has no images and labels of CIFAR-10.
    """
    content = _load(path)
    data, labels = content.get(b"data"), content.get(b"labels")
    pixels = data.values if isinstance(data, _Array) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != VALUES_PER_IMAGE:
        raise CifarError(f"{path}: expected b'data' to be uint8 of shape (N, {VALUES_PER_IMAGE})")
    if not _are_labels(labels, len(pixels)):
        raise CifarError(
            f"{path}: expected b'labels' to be {len(pixels)} integers from 0 to {CLASSES - 1}"
        )
    images = torch.from_numpy(pixels).view(-1, 3, 32, 32)
    return Split(images, torch.tensor(labels, dtype=torch.int64))


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read the names of the ten classes from `batches.meta`, in the order of the labels.

    Raises:
        CifarError: the file is damaged, or has no names.
    """
    names = _load(path).get(b"label_names")
    if (
        not isinstance(names, list)
        or len(names) != CLASSES
        or not all(isinstance(name, bytes) for name in names)
    ):
        raise CifarError(f"{path}: expected b'label_names' to be a list of {CLASSES} byte strings")
    return tuple(name.decode("latin1") for name in names)


def private_shard(split: Split, rank: int, world_size: int, seed: int) -> Split:
    """Return the shard of this rank. Shards are disjoint, and their sizes differ by at most one.

    All ranks shuffle with the same seed, so all ranks know the shards without communication.

    Raises:
        CifarError: there are fewer images than nodes.
    """
    if len(split) < world_size:
        raise CifarError(f"{len(split)} training images cannot be divided among {world_size} nodes")
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    mine = order[rank::world_size]
    return Split(split.images[mine], split.labels[mine])


def normalize(images: Tensor) -> Tensor:
    """Return uint8 images (N, 3, 32, 32) as float32, with a mean of about 0 and a variance of 1."""
    mean = torch.tensor(_MEAN, device=images.device).view(3, 1, 1)
    standard_deviation = torch.tensor(_STANDARD_DEVIATION, device=images.device).view(3, 1, 1)
    return (images.float() / 255.0 - mean) / standard_deviation


class _Dtype:
    """A replacement for `numpy.dtype`. The files need only unsigned bytes."""

    def __init__(self, code: object, *_flags: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"expected arrays of unsigned bytes (u1), got {code!r}")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, because they do not matter for single bytes."""


class _Array:
    """A replacement for `numpy.ndarray`. After the checks, `values` is the numpy array."""

    values: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Dtype, bool, bytes]) -> None:
        _version, shape, dtype, is_fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("expected an array of unsigned bytes (u1)")
        flat = np.frombuffer(data, dtype=np.uint8)
        # The result of frombuffer is read-only. The copy is writable, and its rows are contiguous.
        self.values = flat.reshape(shape, order="F" if is_fortran else "C").copy(order="C")


def _reconstruct(*_arguments: object) -> _Array:
    """Return an empty array, in place of numpy's function with this name."""
    return _Array()


def _latin1_bytes(text: str, encoding: str) -> bytes:
    """Return text as bytes, as `_codecs.encode` does for the old pickles of Python 3."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"expected bytes encoded as latin1, got {encoding!r}")
    return text.encode("latin1")


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler of dicts, lists, numbers, strings and byte arrays, which refuses other types."""

    ALLOWED: dict[tuple[str, str], Callable[..., object]] = {  # noqa: RUF012 - never written to
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # since numpy 2
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): _latin1_bytes,
    }

    def find_class(self, module_name: str, global_name: str) -> Callable[..., object]:
        """Return the replacement for a name in the file, without an import.

        Raises:
            pickle.UnpicklingError: the file uses any other name.
        """
        try:
            return self.ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it uses {module_name}.{global_name}, which no CIFAR-10 file needs"
            ) from None


def _load(path: Path) -> dict[Any, Any]:
    try:
        with path.open("rb") as file:
            # Python 2 does not distinguish text from bytes, so all strings stay bytes.
            content = RestrictedUnpickler(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly any exception
        reason = str(error) or type(error).__name__
        raise CifarError(f"{path}: the file is not a CIFAR-10 python batch: {reason}") from error
    if not isinstance(content, dict):
        raise CifarError(f"{path}: the file is not a CIFAR-10 python batch: it has no dict")
    return content


def _are_labels(labels: object, count: int) -> bool:
    return (
        isinstance(labels, list)
        and len(labels) == count
        and all(type(label) is int and 0 <= label < CLASSES for label in labels)
    )
