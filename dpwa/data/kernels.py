"""What is computed on the values of tensors: merging in place, distances, the check for NaN.

The tensors are blocks that fit the cache (see `dpwa/adapters/tiles.py`): a fresh temporary as large
as the model costs more than the transfer. All arguments of a kernel have one device and dtype, and
tensors that go together have one shape.
"""

from __future__ import annotations

import math

import torch

from dpwa.data.segments import ByteArray

WIDE_ELEMENTS = 64 * 1024  # what is computed at once in float32, in place of a narrower dtype

Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]


def move_toward_(own: Tensors, peer: Tensors, factor: float) -> None:
    """Set own = (1 - f) * own + f * peer.

    Elementwise, for f from 0 to 1, the result stays between both, as long as their difference does
    not overflow the dtype. f = 0 changes nothing, f = 1 copies, even over values that are not
    finite.
    """
    if factor == 1.0:
        torch._foreach_copy_(own, peer)
    elif factor != 0.0 and is_narrow(own[0]):
        for mine, theirs in zip(own, peer, strict=True):
            mine.copy_(_wide(mine).lerp_(_wide(theirs), factor))
    elif factor != 0.0:
        torch._foreach_lerp_(own, peer, factor)


def add_(own: Tensors, delta: Tensors, factor: float) -> None:
    """Set own = own + f * delta, where delta may be of a wider dtype; f = 0 changes nothing."""
    if factor != 0.0 and is_narrow(own[0]):
        for mine, step in zip(own, delta, strict=True):
            mine.copy_(_wide(mine).add_(_wide(step), alpha=factor))
    elif factor != 0.0:
        torch._foreach_add_(own, delta, alpha=factor)


def scale_(own: Tensors, factor: float) -> None:
    """Set own = f * own; f = 0 clears even values that are not finite."""
    if factor == 0.0:
        torch._foreach_zero_(own)
    elif factor != 1.0 and is_narrow(own[0]):
        for mine in own:
            mine.copy_(_wide(mine).mul_(factor))
    elif factor != 1.0:
        torch._foreach_mul_(own, factor)


def difference(minuend: torch.Tensor, subtrahend: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Return minuend - subtrahend, in `room` unless their dtype is too narrow to compute in.

    `room` has their shape and dtype, and may be the subtrahend itself.
    """
    if is_narrow(minuend):
        return _wide(minuend).sub_(_wide(subtrahend))
    return torch.sub(minuend, subtrahend, out=room)


def norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm over all elements, shape `()`, in float32 or wider."""
    dtype = torch.float32 if tensor.element_size() <= 2 else None
    result: torch.Tensor = torch.linalg.vector_norm(tensor, dtype=dtype)
    return result


def squared_distance(one: torch.Tensor, two: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Return the sum of |one - two|^2 over all elements, shape `()`, in float32 or wider.

    It is NaN or infinite if an element is, or if its square overflows. `room` is scratch memory of
    their shape and dtype, and may be the second of them itself.
    """
    if one.element_size() > 2:
        return _squared_norm(torch.sub(one, two, out=room))
    # In float16 the difference might overflow. In float32 it is larger: smaller blocks fit caches.
    blocks = zip(*(_in_blocks(values) for values in (one, two)), strict=True)
    squares = [_squared_norm(_wide(mine).sub_(_wide(theirs))) for mine, theirs in blocks]
    return torch.stack(squares).sum()


def _squared_norm(tensor: torch.Tensor) -> torch.Tensor:
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    return torch.dot(flat, flat)  # several times as fast as a norm that adds up in float64


def _in_blocks(tensor: torch.Tensor) -> Tensors:
    flat = tensor.reshape(-1)
    return torch.split(flat, WIDE_ELEMENTS) if flat.is_cpu else (flat,)


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether all elements are finite numbers.

    Where their `total` is not finite, they are looked at one by one: it may have overflowed.
    """
    if math.isfinite(total(tensor).item()):
        return True
    return bool(torch.isfinite(_wide(tensor) if is_narrow(tensor) else tensor).all())


def are_finite(data: ByteArray, dtype: str) -> bool:
    """Tell whether all values are finite numbers, in the bytes of a snapshot of one dtype.

    Raises:
        AttributeError: torch has no such dtype.
    """
    return is_finite(torch.from_numpy(data).view(getattr(torch, dtype)))


def convert(source: ByteArray, dtype: str, target: ByteArray, target_dtype: str) -> None:
    """Set the values in the bytes of `target` to those in `source`, rounded to nearest."""
    values = torch.from_numpy(source if source.flags.writeable else source.copy())
    rounded = torch.from_numpy(target).view(getattr(torch, target_dtype))
    rounded.copy_(values.view(getattr(torch, dtype)))


def total(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of all elements, shape `()`, in float32 or wider; a single fast pass.

    It is finite only if all elements are. Real and imaginary parts are added up alike.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    elif is_narrow(tensor):
        tensor = _wide(tensor)
    return tensor.sum(dtype=torch.float32 if tensor.element_size() <= 2 else None)


def is_narrow(tensor: torch.Tensor) -> bool:
    """Tell whether a dtype is too narrow to compute in (float8)."""
    return tensor.element_size() == 1


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32)
