"""Tensor kernels that merge values in place, compute distances, and check for NaN.

The caller passes blocks that fit the cache (see `dpwa/adapters/tensor_merging.py`), because a
temporary tensor as large as the model would cost more time than the transfer. All arguments of a
kernel have the same device and dtype. Tensors that a kernel combines have the same shape.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable, Sequence

import torch

from dpwa.data.segments import ByteArray

WIDE_ELEMENTS = 64 * 1024  # size of the blocks of a narrow dtype that are converted to float32
ROUNDED_ELEMENTS = 256 * 1024  # larger for rounding, because its calls cost more than cache misses
_LEVELS = 64 * 1024  # number of random levels between two neighbouring values

Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]


class Rounding:
    """Rounds values to a narrow dtype without losing small changes on average.

    Many optimizer steps are less than half a unit of a narrow dtype, so rounding to nearest would
    lose them. Therefore a value is rounded up or down at random, with probabilities that keep the
    mean. A value that the dtype represents exactly does not change. Between the calls of
    `keep_rests` and `forget_rests`, values are rounded to nearest instead, and the next rounding
    adds the rounding error. Source: stochastic rounding of Gupta et al., "Deep Learning with
    Limited Numerical Precision" (2015).
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = random.Random(0) if rng is None else rng
        self._rests: dict[torch.device, torch.Tensor] = {}
        self._start = 0

    def keep_rests(self, start: int, stop: int, devices: Iterable[torch.device]) -> None:
        """Start to keep the rounding errors of values in bytes `start` to `stop` of a snapshot.

        The rounding errors need as much memory as the values. If a device has too little memory,
        values on this device are still rounded at random.
        """
        known, self._rests, self._start = self._rests, {}, start
        for device in devices:
            rest = known.get(device)
            if rest is None or rest.numel() != stop - start:
                try:
                    rest = torch.empty(stop - start, dtype=torch.uint8, device=device)
                except RuntimeError:  # the device or the host has too little memory
                    continue
            self._rests[device] = rest.zero_()

    def forget_rests(self) -> None:
        """Stop keeping rounding errors, and round all values at random."""
        self._rests = {}

    def rest_of(self, values: torch.Tensor, start: int) -> torch.Tensor | None:
        """Return the kept rounding errors of values from byte `start` on, or `None`."""
        rest = self._rests.get(values.device)
        if rest is None or start < self._start:
            return None
        return rest[start - self._start :][: values.nbytes].view(values.dtype)

    def into(self, own: torch.Tensor, wide: torch.Tensor, rest: torch.Tensor | None) -> None:
        """Round `wide` into `own`, shape `(elements,)`. `wide` is float32 and is overwritten."""
        if rest is not None:
            own.copy_(wide)
            rest.copy_(wide.sub_(own.to(torch.float32)))
            return
        info, lift = torch.finfo(own.dtype), None
        if info.tiny > torch.finfo(torch.float32).tiny:
            # Below the smallest normal number, neighbouring values are as far apart as just above
            # it. So smaller values are moved above it for the rounding, and then moved back.
            # (Boolean masks would take five times as long.)
            lift = wide - torch.nn.functional.hardshrink(wide, info.tiny)
            wide.add_(lift.mul_(1e30).clamp_(-info.tiny, info.tiny))
        amounts, mask = _noise(own.dtype, own.device)
        start = self._rng.randrange(_LEVELS)
        wide.view(torch.int32).add_(amounts[start : start + wide.numel()]).bitwise_and_(mask)
        if lift is not None:  # undo the move, and do not exceed the largest finite number
            wide.sub_(lift).clamp_(-info.max, info.max)
        own.copy_(wide)


@functools.cache
def _noise(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return noise amounts for random rounding, and a mask of the float32 bits that a dtype keeps.

    The caller adds up to `ROUNDED_ELEMENTS` successive amounts, from one of `_LEVELS` random
    starts. So each amount is distributed uniformly from 0 to one unit of the dtype.
    """
    host = torch.device("cpu")  # the default device may be a different one
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
    """Set own = (1 - f) * own + f * peer, elementwise.

    For f from 0 to 1, the result lies between `own` and `peer`, unless their difference overflows
    the dtype. f = 0 changes nothing. f = 1 copies the peer's values, even over values that are not
    finite. `rest` holds the rounding errors of `own` that `rounding` has kept. If `rest` is given,
    `own` must be a single tensor.
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
    """Set own = own + f * delta. `delta` may have a wider dtype. f = 0 changes nothing."""
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
    """Apply a change in float32, block by block, and round the results to the narrow dtype."""
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
    """Return minuend - subtrahend. It is a new float32 tensor for narrow dtypes, otherwise `room`.

    `room` may be the subtrahend itself.
    """
    if is_narrow(minuend):
        return _wide(minuend).sub_(_wide(subtrahend))
    return torch.sub(minuend, subtrahend, out=room)


def norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm of all elements, shape `()`, in float32 or a wider dtype."""
    dtype = torch.float32 if tensor.element_size() <= 2 else None
    values = _wide(tensor) if tensor.element_size() == 1 else tensor
    result: torch.Tensor = torch.linalg.vector_norm(values, dtype=dtype)
    return result


def squared_distance(one: torch.Tensor, two: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Return the sum of |one - two|^2, shape `()`, in float32 or a wider dtype.

    The sum is not finite if it overflows. `room` is a buffer of the same shape and dtype as `two`,
    and may be `two` itself.
    """
    if one.element_size() > 2:
        return squared_norm(torch.sub(one, two, out=room))
    # The difference might overflow float16. It takes more memory in float32, so blocks are smaller.
    blocks = zip(*(_in_blocks(values) for values in (one, two)), strict=True)
    squares = [squared_norm(_wide(mine).sub_(_wide(theirs))) for mine, theirs in blocks]
    return torch.stack(squares).sum()


def squared_norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squares of all elements, shape `()`. Their dtype must not be narrow."""
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    return torch.dot(flat, flat)  # several times as fast as a norm, which sums in float64


def _in_blocks(tensor: torch.Tensor) -> Tensors:
    flat = tensor.reshape(-1)
    return torch.split(flat, WIDE_ELEMENTS) if flat.is_cpu else (flat,)


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all elements are finite. Check each element only if `total` is not finite."""
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
    """Return whether all values of a snapshot outside the `spared` byte ranges are finite.

    `data` are the snapshot's bytes from byte `start`. A range in `spared` is a first byte and the
    byte after the last.
    """
    data = data if data.flags.writeable else data.copy()  # because torch warns of read-only arrays
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
    """Convert the values of `source` to the dtype of `target`, and write them to `target`.

    Values are rounded to nearest. If `rounding` is given, it rounds the values instead, and the
    values in `source` must be float32.
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
    """Return the sum of all elements, shape `()`. It is finite only if all elements are finite."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    elif tensor.element_size() == 1:
        tensor = _wide(tensor)
    # A sum in float16 would overflow. bfloat16 has the range of float32, and is faster to sum.
    return tensor.sum(dtype=torch.float32 if tensor.dtype is torch.float16 else None)


def is_narrow(tensor: torch.Tensor) -> bool:
    return tensor.element_size() <= 2


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32)
