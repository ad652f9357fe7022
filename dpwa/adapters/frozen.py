"""FrozenParameters: what nodes that exchange only what trains must have in common."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from dpwa.data.layout import FINGERPRINT_BYTES

MOST_THREADS = 8  # memory has not the speed for more
PIECE_BYTES = 64 * 1024**2  # copied to the host at once


class FrozenParameters:
    """The frozen parameters of a module, and a digest of them, which is computed when they change.

    A change in place is noticed by the version that autograd keeps of a tensor: one by way of
    `.data` is not.

    Args:
        named: the parameters and their names as without wrappers, each once.
    """

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]] = ()) -> None:
        self._named = sorted(named, key=lambda item: item[0])
        self._state = self._find_state()

    def still_hold(self) -> bool:
        """Tell whether none was changed since."""
        return self._find_state() == self._state

    def is_same(self, other: FrozenParameters) -> bool:
        """Tell whether these were the same tensors with the same values, when they were found."""
        return self._names() == other._names() and self._state == other._state

    def described(self) -> str:
        """Return their number, size, and a digest of names, dtypes, shapes and bytes.

        Takes about a second for each GB and core.
        """
        digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
        for each in digests(self._named):
            digest.update(each)
        nbytes = sum(tensor.nbytes for _, tensor in self._named)
        return f"{len(self._named)} tensors, {nbytes} bytes, digest {digest.hexdigest()}"

    def _names(self) -> list[str]:
        return [name for name, _ in self._named]

    def _find_state(self) -> list[tuple[int, int]]:
        return [(tensor.data_ptr(), _version(tensor)) for _, tensor in self._named]


def digests(named: Sequence[tuple[str, torch.Tensor]]) -> list[bytes]:
    """Return a digest of the name, dtype, shape and bytes of each tensor.

    Takes about a second for each GB and core.
    """
    threads = min(MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "dpwa-digest") as pool:
        found = pool.map(_digest, [tensor for _, tensor in named])
        kinds = (f"{name} {tensor.dtype} {list(tensor.shape)}".encode() for name, tensor in named)
        return [
            hashlib.blake2b(kind).digest() + of_bytes
            for kind, of_bytes in zip(kinds, found, strict=True)
        ]


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # such a tensor has none


@torch.no_grad()
def _digest(tensor: torch.Tensor) -> bytes:
    """Digest the bytes of a tensor, row by row, from whatever device."""
    digest = hashlib.blake2b()
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    step = PIECE_BYTES // tensor.element_size()
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].contiguous()
        digest.update(piece.view(torch.uint8).cpu().numpy().data)
    return digest.digest()
