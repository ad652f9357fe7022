"""In-place merging of tensors, without temporaries of model size.

Each kernel works in blocks that fit the cache: a fresh temporary as large as the model costs more
than the transfer. It also returns the squared distance that the merge acted on, for the consensus
distance, while the block is hot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

BLOCK_ELEMENTS = 64 * 1024  # a few blocks of float32 fit the second-level cache


def interpolate_(own: torch.Tensor, peer: torch.Tensor, factor: float) -> float:
    """Set own = (1 - f) * own + f * peer; return |peer - own|^2 from before.

    Elementwise, the result stays between both, as long as their difference does not overflow the
    dtype. `own` may have any strides and device; `peer` has its shape and dtype. f = 0 changes
    nothing, f = 1 copies, even over values that are not finite.
    """
    squared, scratch = 0.0, _scratch_for(own)
    for mine, theirs in _blocks(own, peer):
        wide, other = _wide(mine), _wide(theirs)
        squared += _squared_norm(_difference(other, wide, scratch))
        if factor == 1.0:
            mine.copy_(theirs)
        elif factor > 0.0:
            _store(mine, wide.lerp_(other, factor))
    return squared


def add_delta_(
    own: torch.Tensor, peer: torch.Tensor, published: torch.Tensor, factor: float
) -> float:
    """Add f * (peer - published) to own; return |peer - published|^2.

    Shapes and dtypes as for `interpolate_`. f = 0 changes nothing; f = 1 copies a block in which
    this node had published values that are not finite, as no step away from them is worth keeping.
    """
    squared, scratch = 0.0, _scratch_for(own)
    for mine, theirs, mine_then in _blocks(own, peer, published):
        delta = _difference(_wide(theirs), _wide(mine_then), scratch)
        block_squared = _squared_norm(delta)
        squared += block_squared
        if factor == 1.0 and not math.isfinite(block_squared):
            mine.copy_(theirs)
        elif factor > 0.0:
            _store(mine, _wide(mine).add_(delta, alpha=factor))
    return squared


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether all elements are finite numbers, in one pass and without a temporary.

    A sum is finite only if all its terms are. That it overflows where no term does would take
    values beyond any use in training; they count as not finite.
    """
    values = _wide(tensor)
    total = values.sum(dtype=torch.promote_types(values.dtype, torch.float32))
    return bool(torch.isfinite(total))


def _blocks(own: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Walk through tensors of one shape in blocks, on the device of the first."""
    if not own.is_contiguous():
        yield own, *(other.to(own.device) for other in others)
        return
    flat = [tensor.view(-1) for tensor in (own, *others)]
    for start in range(0, own.numel(), BLOCK_ELEMENTS):
        mine, *theirs = (tensor[start : start + BLOCK_ELEMENTS] for tensor in flat)
        yield mine, *(block.to(own.device) for block in theirs)


def _wide(block: torch.Tensor) -> torch.Tensor:
    """Return the block itself, or a float32 copy of a dtype too narrow to compute in (float8)."""
    return block.float() if block.element_size() == 1 else block


def _store(block: torch.Tensor, result: torch.Tensor) -> None:
    """Write back a result that was computed in a copy."""
    if result is not block:
        block.copy_(result)


def _scratch_for(own: torch.Tensor) -> torch.Tensor:
    """Allocate room for one block of differences, used again and again."""
    elements = min(own.numel(), BLOCK_ELEMENTS) if own.is_contiguous() else own.numel()
    dtype = torch.float32 if own.element_size() == 1 else own.dtype
    return torch.empty(elements, dtype=dtype, device=own.device)


def _difference(
    minuend: torch.Tensor, subtrahend: torch.Tensor, scratch: torch.Tensor
) -> torch.Tensor:
    room = scratch[: minuend.numel()].view(minuend.shape)
    return torch.sub(minuend, subtrahend, out=room)


def _squared_norm(difference: torch.Tensor) -> float:
    wide = torch.promote_types(difference.dtype, torch.float32)
    return float(torch.linalg.vector_norm(difference, dtype=wide)) ** 2
