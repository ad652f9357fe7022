"""Bandwidth: what transfers take that share links fairly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dpwa.sim.conditions import Conditions
from dpwa.virtual_network import Timer, VirtualNetwork

_Link = tuple[str, int]  # a kind of link, and whose it is


@dataclass(eq=False)
class SharedTransfer:
    """Bytes on their way from one node to another."""

    links: tuple[_Link, ...]
    nbytes: float
    left: float
    done: Callable[[], None]
    rate: float = 0.0
    counted_at: float = 0.0
    timer: Timer | None = None


class Bandwidth:
    """The transfers under way on the links of all nodes.

    Each has the same share of every link on its way as the others there, at any time: as many of
    them as there are, and goes as fast as the thinnest of its shares. What others leave of theirs
    is not dealt out again.

    Args:
        conditions: of the run.
        network: whose time passes.
    """

    def __init__(self, conditions: Conditions, network: VirtualNetwork) -> None:
        self._conditions = conditions
        self._network = network
        self._rates = {
            "upload": conditions.upload_bytes_per_s,
            "download": conditions.download_bytes_per_s,
            "site": conditions.between_sites_bytes_per_s,
        }
        self._on: dict[_Link, dict[SharedTransfer, None]] = {}  # in the order of their beginning

    def begin(
        self, sender: int, receiver: int, nbytes: float, done: Callable[[], None]
    ) -> SharedTransfer:
        """Begin a transfer; `done` is called when the last byte is sent."""
        conditions = self._conditions
        links: tuple[_Link, ...] = ("upload", sender), ("download", receiver)
        site = conditions.site(sender)
        if conditions.between_sites_bytes_per_s < math.inf and site != conditions.site(receiver):
            links = (*links, ("site", site))
        now = self._network.clock.now()
        transfer = SharedTransfer(links, nbytes, nbytes, done, counted_at=now)
        for link in links:
            self._on.setdefault(link, {})[transfer] = None
        self._share(links)
        return transfer

    def stop(self, transfer: SharedTransfer) -> float:
        """Send no more of a transfer that is under way; return how many bytes were sent."""
        if transfer.timer is not None:
            transfer.timer.cancel()
        taken_s = self._network.clock.now() - transfer.counted_at
        left = max(0.0, transfer.left - transfer.rate * taken_s)
        self._leave(transfer)
        return transfer.nbytes - left

    def _share(self, links: Iterable[_Link]) -> None:
        """Deal out links anew, as there is one transfer more or less."""
        now = self._network.clock.now()
        affected = dict.fromkeys(t for link in links for t in self._on.get(link, ()))
        for transfer in affected:
            rate = min(self._rates[link[0]] / len(self._on[link]) for link in transfer.links)
            if rate != transfer.rate:
                transfer.left -= transfer.rate * (now - transfer.counted_at)
                transfer.rate, transfer.counted_at = rate, now
                self._wait(transfer)

    def _wait(self, transfer: SharedTransfer) -> None:
        if transfer.timer is not None:
            transfer.timer.cancel()
        left_s = max(0.0, transfer.left) / transfer.rate
        transfer.timer = self._network.call_later(left_s, lambda: self._end(transfer))

    def _end(self, transfer: SharedTransfer) -> None:
        self._leave(transfer)
        transfer.done()

    def _leave(self, transfer: SharedTransfer) -> None:
        for link in transfer.links:
            del self._on[link][transfer]
            if not self._on[link]:
                del self._on[link]
        self._share(transfer.links)
