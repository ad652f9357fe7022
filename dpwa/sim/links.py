"""Network links with shared bandwidth, in the virtual time of a `VirtualNetwork`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpwa.virtual_network import Timer, VirtualNetwork

SharedLink = tuple[str, str | int]
"""The kind of a link, and the name of its owner."""


@dataclass(eq=False)
class Transfer:
    links: dict[SharedLink, float]  # links on its path, with their bytes per second
    left: float  # bytes that were not sent at that time
    done: Callable[[], None]  # called when the last byte has been sent
    is_held: bool = False  # nothing gets through
    rate: float = 0.0
    looked_at: float = 0.0
    timer: Timer | None = None


class FairLinks:
    """All transfers that are in progress, on all links.

    All transfers on a link have equal shares of the link at any time. A transfer is as fast as the
    smallest of its shares. Unused parts of shares are not given to others. A held transfer has no
    share.
    """

    def __init__(self, network: VirtualNetwork) -> None:
        self._network = network
        self._on: dict[SharedLink, dict[Transfer, None]] = {}  # in the order of their start

    def begin_transfer(self, transfer: Transfer) -> None:
        transfer.looked_at = self._network.clock.now()
        if not transfer.is_held:
            self._join(transfer)
        self._share(transfer)

    def end_transfer(self, transfer: Transfer) -> None:
        """End a transfer, and give its share to other transfers. Its `left` bytes were not sent."""
        self._leave(transfer)
        self._share(transfer)

    def hold(self, transfer: Transfer, *, is_held: bool) -> None:
        """Pause a transfer while the link is cut, or resume the transfer."""
        if transfer.is_held == is_held:
            return
        transfer.is_held = is_held
        if is_held:
            self._leave(transfer)
        else:
            self._join(transfer)
        self._share(transfer)

    def _join(self, transfer: Transfer) -> None:
        for link in transfer.links:
            self._on.setdefault(link, {})[transfer] = None

    def _leave(self, transfer: Transfer) -> None:
        for link in transfer.links:
            on = self._on.get(link, {})
            on.pop(transfer, None)
            if not on:
                self._on.pop(link, None)
        self._go_on(transfer, 0.0)

    def _share(self, changed: Transfer) -> None:
        """Update the rates of all transfers that use a link of the transfer `changed`."""
        affected = dict.fromkeys(t for link in changed.links for t in self._on.get(link, ()))
        for transfer in affected:
            rate = min(limit / len(self._on[link]) for link, limit in transfer.links.items())
            if rate != transfer.rate:
                self._go_on(transfer, rate)

    def _go_on(self, transfer: Transfer, rate: float) -> None:
        now = self._network.clock.now()
        transfer.left = max(0.0, transfer.left - transfer.rate * (now - transfer.looked_at))
        transfer.looked_at, transfer.rate = now, rate
        if transfer.timer is not None:
            transfer.timer.cancel()
        seconds = transfer.left / rate if rate > 0.0 else math.inf
        transfer.timer = None
        if seconds < math.inf:
            transfer.timer = self._network.call_later(seconds, lambda: self._over(transfer))

    def _over(self, transfer: Transfer) -> None:
        self.end_transfer(transfer)
        transfer.done()
