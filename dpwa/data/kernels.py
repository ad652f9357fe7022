"""Computations on the values of tensors: merging in place, distances, the check for NaN.

The tensors are blocks that fit the cache (see `dpwa/adapters/tensor_merging.py`), because a new
temporary as large as the model costs more than the transfer. All arguments of a kernel have one
device and dtype, and tensors that go together have one shape.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable, Sequence

import torch

from dpwa.data.segments import ByteArray

WIDE_ELEMENTS = 64 * 1024  # what is computed at once in float32, in place of a narrower dtype
ROUNDED_ELEMENTS = 256 * 1024  # and what is rounded at once: there each call costs more than caches
_LEVELS = 64 * 1024  # of chance, between two neighbours

Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]


class Rounding:
    """Rounds to narrow dtypes, half a unit of which is more than many steps, so that none is lost.

    A value goes to either neighbour, with the probabilities that keep the mean. A value that the
    dtype has is kept. Between `keep_rests` and `forget_rests` it goes to the nearest instead, and
    the rounding error is added the next time. Source: stochastic rounding of Gupta et al., "Deep
    Learning with Limited Numerical Precision" (2015).
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = random.Random(0) if rng is None else rng
        self._rests: dict[torch.device, torch.Tensor] = {}
        self._start = 0

    def keep_rests(self, start: int, stop: int, devices: Iterable[torch.device]) -> None:
        """Begin to keep the rounding errors of the values from `start` to `stop` of a snapshot.

        They need as much memory as the values. If a device has none left, rounding stays random
        there.
        """
        known, self._rests, self._start = self._rests, {}, start
        for device in devices:
            rest = known.get(device)
            if rest is None or rest.numel() != stop - start:
                try:
                    rest = torch.empty(stop - start, dtype=torch.uint8, device=device)
                except RuntimeError:  # what an allocator raises, on devices and on the host
                    continue
            self._rests[device] = rest.zero_()

    def forget_rests(self) -> None:
        """Round by chance from now on."""
        self._rests = {}

    def rest_of(self, values: torch.Tensor, start: int) -> torch.Tensor | None:
        """Return the rounding errors of values that begin there in a snapshot, or `None`."""
        rest = self._rests.get(values.device)
        if rest is None or start < self._start:
            return None
        return rest[start - self._start :][: values.nbytes].view(values.dtype)

    def into(self, own: torch.Tensor, wide: torch.Tensor, rest: torch.Tensor | None) -> None:
        """Set own = wide, shape `(elements,)`. `wide` is of float32, and is overwritten."""
        if rest is not None:
            own.copy_(wide)
            rest.copy_(wide.sub_(own.to(torch.float32)))
            return
        info, lift = torch.finfo(own.dtype), None
        if info.tiny > torch.finfo(torch.float32).tiny:
            # Below the smallest normal number neighbours are as far apart as right above it, where
            # these go meanwhile. (Masks of bool would take five times as long.)
            lift = wide - torch.nn.functional.hardshrink(wide, info.tiny)
            wide.add_(lift.mul_(1e30).clamp_(-info.tiny, info.tiny))
        amounts, mask = _noise(own.dtype, own.device)
        start = self._rng.randrange(_LEVELS)
        wide.view(torch.int32).add_(amounts[start : start + wide.numel()]).bitwise_and_(mask)
        if lift is not None:  # and beyond the largest one there is none
            wide.sub_(lift).clamp_(-info.max, info.max)
        own.copy_(wide)


@functools.cache
def _noise(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return noise amounts, and a mask for the bits of float32 that a dtype has.

    Of `ROUNDED_ELEMENTS` of the amounts, beginning at one of `_LEVELS` random starts, each is
    uniformly distributed below one unit of the dtype.
    """
    host = torch.device("cpu")  # whatever the default is
    one = torch.ones(1, device=host).to(dtype)
    next_one = (one.view(torch.int16 if dtype.itemsize == 2 else torch.int8) + 1).view(dtype)
    unit = round((next_one.float().item() - 1.0) * 2**23)
    step = max(1, unit // _LEVELS)
    order = torch.randperm(_LEVELS, generator=torch.Generator().manual_seed(0), device=host)
    amounts = (order * step + step // 2) % unit
    places = torch.arange(_LEVELS + ROUNDED_ELEMENTS, device=host) % _LEVELS
    return amounts[places].to(device, torch.int32), -unit


BY_CHANCE = Rounding()


def move_toward_(
    own: Tensors,
    peer: Tensors,
    factor: float,
    rounding: Rounding = BY_CHANCE,
    rest: torch.Tensor | None = None,
) -> None:
    """Set own = (1 - f) * own + f * peer, elementwise, which is between both for f from 0 to 1.

    That holds as long as their difference does not overflow the dtype. f = 0 changes nothing, f = 1
    copies, even over values that are not finite. `rest` are the errors of `own` that `rounding` has
    kept, and `own` is one tensor then.
    """
    if factor == 1.0:
        torch._foreach_copy_(own, peer)
        if rest is not None:
            rest.zero_()
    elif factor != 0.0 and is_narrow(own[0]):
        _in_float32(own, peer, lambda x, y: x.lerp_(_wide(y), factor), rounding, rest)
    elif factor != 0.0:
        torch._foreach_lerp_(own, peer, factor)


def add_(
    own: Tensors,
    delta: Tensors,
    factor: float,
    rounding: Rounding = BY_CHANCE,
    rest: torch.Tensor | None = None,
) -> None:
    """Set own = own + f * delta. `delta` may be of a wider dtype. f = 0 changes nothing."""
    if factor != 0.0 and is_narrow(own[0]):
        _in_float32(own, delta, lambda x, y: x.add_(_wide(y), alpha=factor), rounding, rest)
    elif factor != 0.0:
        torch._foreach_add_(own, delta, alpha=factor)


def scale_(own: Tensors, factor: float, rounding: Rounding = BY_CHANCE) -> None:
    """Set own = f * own. f = 0 clears even values that are not finite."""
    if factor == 0.0:
        torch._foreach_zero_(own)
    elif factor != 1.0 and is_narrow(own[0]):
        _in_float32(own, own, lambda x, _: x.mul_(factor), rounding, None)
    elif factor != 1.0:
        torch._foreach_mul_(own, factor)


def _in_float32(
    own: Tensors,
    others: Tensors,
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    rounding: Rounding,
    rest: torch.Tensor | None,
) -> None:
    """Change values, which are brought to float32 for it, by others, block by block."""
    for mine, theirs in zip(own, others, strict=True):
        flat, other = mine.reshape(-1), theirs.reshape(-1)
        for start in range(0, flat.numel(), ROUNDED_ELEMENTS):
            block = slice(start, start + ROUNDED_ELEMENTS)
            wide, kept = _wide(flat[block]), None if rest is None else rest[block]
            if kept is not None:
                wide.add_(_wide(kept))
            rounding.into(flat[block], change(wide, other[block]), kept)
        if not mine.is_contiguous():
            mine.copy_(flat.view(mine.shape))


def difference(minuend: torch.Tensor, subtrahend: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Return minuend - subtrahend, in `room` (it may be the subtrahend) or, if
    narrow, in float32.
    """
    if is_narrow(minuend):
        return _wide(minuend).sub_(_wide(subtrahend))
    return torch.sub(minuend, subtrahend, out=room)


def norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm over all elements, shape `()`, in float32 or wider."""
    dtype = torch.float32 if tensor.element_size() <= 2 else None
    values = _wide(tensor) if tensor.element_size() == 1 else tensor
    result: torch.Tensor = torch.linalg.vector_norm(values, dtype=dtype)
    return result


def squared_distance(one: torch.Tensor, two: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Return the sum of |one - two|^2, shape `()`, in float32 or wider, or not finite on overflow.

    `room` is scratch memory of their shape and dtype, and may be `two` itself.
    """
    if one.element_size() > 2:
        return squared_norm(torch.sub(one, two, out=room))
    # In float16 the difference might overflow. In float32 it is larger: smaller blocks fit caches.
    blocks = zip(*(_in_blocks(values) for values in (one, two)), strict=True)
    squares = [squared_norm(_wide(mine).sub_(_wide(theirs))) for mine, theirs in blocks]
    return torch.stack(squares).sum()


def squared_norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squares of all elements, of float32 or wider, shape `()`."""
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    return torch.dot(flat, flat)  # several times as fast as a norm that adds up in float64


def _in_blocks(tensor: torch.Tensor) -> Tensors:
    flat = tensor.reshape(-1)
    return torch.split(flat, WIDE_ELEMENTS) if flat.is_cpu else (flat,)


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all elements are finite. They are checked singly if `total` is not finite."""
    if math.isfinite(total(tensor).item()):
        return True
    return bool(finite(tensor).all())


def finite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(_wide(tensor) if tensor.element_size() == 1 else tensor)


def is_bit(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor == 0.0) | (tensor == 1.0)


def are_finite(
    data: ByteArray, dtype: str, start: int = 0, spared: Sequence[tuple[int, int]] = ()
) -> bool:
    """Tell whether all values of a snapshot's bytes are finite, but for the ranges `spared`."""
    data = data if data.flags.writeable else data.copy()  # or torch warns
    values = torch.from_numpy(data).view(getattr(torch, dtype))
    if is_finite(values):
        return True
    bad = ~finite(values)
    for places in spared:
        bad[slice(*(max(0, place - start) // values.element_size() for place in places))] = False
    return not bool(bad.any())


def convert(
    source: ByteArray,
    dtype: str,
    target: ByteArray,
    target_dtype: str,
    rounding: Rounding | None = None,
) -> None:
    """Set the values in the bytes of `target` to those in `source`, rounded to nearest.

    With `rounding`, they must be of float32, and `rounding` rounds them.
    """
    values = torch.from_numpy(source if source.flags.writeable else source.copy())
    rounded = torch.from_numpy(target).view(getattr(torch, target_dtype))
    if rounding is None:
        rounded.copy_(values.view(getattr(torch, dtype)))
        return
    wide = values.view(torch.float32)
    for start in range(0, wide.numel(), ROUNDED_ELEMENTS):
        block = slice(start, start + ROUNDED_ELEMENTS)
        rounding.into(rounded[block], wide[block].clone(), None)


def total(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of all elements, shape `()`, which is finite only if all are."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    elif tensor.element_size() == 1:
        tensor = _wide(tensor)
    # In float16 it would overflow; bfloat16 has the range of float32, and its own sum is faster.
    return tensor.sum(dtype=torch.float32 if tensor.dtype is torch.float16 else None)


def is_narrow(tensor: torch.Tensor) -> bool:
    return tensor.element_size() <= 2


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32)
