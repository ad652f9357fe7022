"""Snapshots on their way, until they are there or wanted no more, over links that they share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from dpwa.sim.conditions import Conditions
from dpwa.sim.rules.fleet import Fleet
from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.transport.sockets import HEARTBEAT_TIMEOUT_MS
from dpwa.virtual_network import Timer, VirtualNetwork
from dpwa.wire import limits

Later = Callable[[int, int, Callable[[], None]], None]
"""Sends a message from one node to another, and does something when it has come."""


@dataclass(eq=False)
class SnapshotStream:
    """A snapshot on its way; see `SnapshotStreams.begin`."""

    sender: int
    receiver: int
    began_at: float
    least_s: float
    done: Callable[[float], None]
    lost: Callable[[bool], None] | None
    transfer: SharedTransfer | None = None  # while bytes are sent
    is_over: bool = False


def _nothing(_: float) -> None:
    """Take the place of what is called no more, so that no cycle remains."""


class SnapshotStreams:
    """All snapshots that are on their way."""

    def __init__(
        self,
        conditions: Conditions,
        fleet: Fleet,
        sizes: WireSizes,
        network: VirtualNetwork,
        later: Later,
    ) -> None:
        self._conditions = conditions
        self._fleet = fleet
        self._sizes = sizes
        self._network = network
        self._later = later
        self._bandwidth = Bandwidth(conditions, network)
        self._turns = max(0, math.ceil(sizes.pieces / limits.CREDIT_CHUNKS) - 1)
        # Of each node, those that it sends and receives, in the order of their beginning.
        self._of: defaultdict[int, dict[SnapshotStream, None]] = defaultdict(dict)

    def begin(
        self,
        sender: int,
        receiver: int,
        done: Callable[[float], None],
        lost: Callable[[bool], None] | None = None,
    ) -> SnapshotStream:
        """Send a snapshot.

        `done` is told how many seconds it took after the first byte; `lost` is called if it will
        not come, with whether the sender has ended (else the connection has).
        """
        least_s = self._turns * 2 * self._conditions.latency_s(sender, receiver)
        now = self._network.clock.now()
        self._fleet.served[sender] += 1
        stream = SnapshotStream(sender, receiver, now, least_s, done, lost)
        for node in (sender, receiver):
            self._of[node][stream] = None
        stream.transfer = self._bandwidth.begin(
            sender, receiver, self._sizes.answer, lambda: self._sent(stream)
        )
        return stream

    def stop(self, stream: SnapshotStream | None) -> None:
        """Send no more of it, as nobody waits for it; nothing if it is over."""
        if stream is None or stream.is_over:
            return
        sent = self._sizes.answer
        if stream.transfer is not None:
            sent = self._bandwidth.stop(stream.transfer)
        self._end(stream, sent)

    def end_of(self, node: int) -> None:
        """Stop what a process that has ended was sending and receiving."""
        for stream in tuple(self._of.pop(node, ())):
            lost = stream.lost if stream.sender == node else None
            self.stop(stream)
            if lost is not None:
                self._later(node, stream.receiver, partial(lost, True))

    def cut(self) -> None:
        """Stop what goes between nodes that are cut off from each other now."""
        now = self._network.clock.now()
        between = [
            stream
            for node in list(self._of)
            for stream in self._of[node]
            if stream.sender == node and self._conditions.is_cut(node, stream.receiver, now)
        ]
        for stream in between:
            lost = stream.lost
            self.stop(stream)
            if lost is not None:
                self._network.call_later(HEARTBEAT_TIMEOUT_MS / 1000, partial(lost, False))

    def stop_all(self) -> None:
        """Stop everything, so that what was sent until now is counted."""
        for streams in list(self._of.values()):
            for stream in list(streams):
                self.stop(stream)

    def _sent(self, stream: SnapshotStream) -> None:
        """Let it arrive, now that its last byte would be sent if there was no wait for credit."""
        stream.transfer = None
        stream_s = self._network.clock.now() - stream.began_at
        if stream_s < stream.least_s:
            waits_s = stream.least_s - stream_s
            self._network.call_later(waits_s, lambda: self._leave(stream, stream.least_s))
        else:
            self._leave(stream, stream_s)

    def _leave(self, stream: SnapshotStream, stream_s: float) -> None:
        if not stream.is_over:
            done = stream.done
            self._end(stream, self._sizes.answer)
            self._later(stream.sender, stream.receiver, lambda: done(stream_s))

    def _end(self, stream: SnapshotStream, sent: float) -> None:
        stream.is_over, stream.transfer, stream.done, stream.lost = True, None, _nothing, None
        self._fleet.count(stream.sender, stream.receiver, sent)
        for node in (stream.sender, stream.receiver):
            self._of[node].pop(stream, None)


_Link = tuple[str, int]  # a kind of link, and whose it is


@dataclass(eq=False)
class SharedTransfer:
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
