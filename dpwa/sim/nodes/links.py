"""FairLinks: large transfers share the links of their ends, so each has a rate that changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from dpwa.virtual_network import Timer, VirtualNetwork


class LinkModel(Protocol):
    """What is known of the links of nodes, which go by their names."""

    def delay_s(self, sender: str, to: str) -> float:
        """Draw what one message takes, one way, beside the time for its bytes."""
        ...

    def may_connect(self, client: str, server: str) -> bool:
        """Tell whether a connection can be made that way round, if no partition is between."""
        ...

    def upload(self, node: str) -> float:
        """Return how many bytes a node sends in a second."""
        ...

    def download(self, node: str) -> float:
        """Return how many bytes a node receives in a second."""
        ...

    def shared_link(self, sender: str, to: str) -> tuple[str, float] | None:
        """Return a link that others use too, such as that of a site: its name, bytes a second."""
        ...


class Transfer:
    """One large message on its way."""

    __slots__ = ("_done", "is_held", "left", "looked_at", "rate", "sender", "shared", "timer", "to")

    def __init__(self, sender: str, to: str, nbytes: float, done: Callable[[], None]) -> None:
        self.sender = sender
        self.to = to
        self.left = nbytes
        self.rate = 0.0
        self.looked_at = 0.0
        self.timer: Timer | None = None
        self.is_held = False
        self.shared: tuple[str, float] | None = None
        self._done = done

    def end(self) -> None:
        """Say that all bytes have left."""
        self._done()


class FairLinks:
    """All transfers: each has min(upload / transfers of its sender, download / those of its end).

    Those that stand still have nothing, and take nothing from the others.

    Args:
        network: whose time it is.
        model: of the links.
    """

    def __init__(self, network: VirtualNetwork, model: LinkModel) -> None:
        self._network = network
        self._model = model
        self._on: dict[tuple[str, str], dict[Transfer, None]] = {}  # by link

    def begin(self, transfer: Transfer) -> None:
        """Let a transfer have its share."""
        transfer.shared = self._model.shared_link(transfer.sender, transfer.to)
        transfer.looked_at = self._network.clock.now()
        if not transfer.is_held:
            self._join(transfer)
        self._share(transfer)

    def end(self, transfer: Transfer) -> None:
        """Let the others have what one had that is over, or given up."""
        if transfer.timer is not None:
            transfer.timer.cancel()
        self._leave(transfer)
        self._share(transfer)

    def hold(self, transfer: Transfer, *, is_held: bool) -> None:
        """Let a transfer stand still, as nothing gets through; or go on."""
        if transfer.is_held == is_held:
            return
        transfer.is_held = is_held
        if is_held:
            self._leave(transfer)
            self._go_on(transfer, 0.0)
        else:
            self._join(transfer)
        self._share(transfer)

    def _join(self, transfer: Transfer) -> None:
        for link in _links(transfer):
            self._on.setdefault(link, {})[transfer] = None

    def _leave(self, transfer: Transfer) -> None:
        for link in _links(transfer):
            self._on.get(link, {}).pop(transfer, None)

    def _share(self, changed: Transfer) -> None:
        """Give all their shares that have a link in common with one."""
        affected: dict[Transfer, None] = {}
        for link in _links(changed):
            affected.update(self._on.get(link, {}))
        for transfer in affected:
            rate = self._rate(transfer)
            if rate != transfer.rate:
                self._go_on(transfer, rate)

    def _rate(self, transfer: Transfer) -> float:
        model = self._model
        limits = [model.upload(transfer.sender), model.download(transfer.to)]
        if transfer.shared is not None:
            limits.append(transfer.shared[1])
        sharing = (len(self._on[link]) for link in _links(transfer))
        return min(limit / count for limit, count in zip(limits, sharing, strict=True))

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
        transfer.timer = None
        self.end(transfer)
        transfer.end()


def _links(transfer: Transfer) -> list[tuple[str, str]]:
    links = [("up", transfer.sender), ("down", transfer.to)]
    if transfer.shared is not None:
        links.append(("shared", transfer.shared[0]))
    return links
