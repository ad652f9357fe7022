"""SnapshotStreams: snapshots on their way, until they are there, or are sent or wanted no more."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dpwa.sim.conditions import Conditions
from dpwa.sim.rules.bandwidth import Bandwidth, SharedTransfer
from dpwa.sim.rules.fleet import Fleet
from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.transport.sockets import HEARTBEAT_TIMEOUT_MS
from dpwa.virtual_network import VirtualNetwork
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
    """All snapshots that are on their way.

    Args:
        conditions: of the run.
        fleet: its nodes.
        sizes: of what is sent.
        network: whose time passes.
        later: sends messages.
    """

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

        Args:
            sender: who sends it.
            receiver: who gets it.
            done: is told how many seconds it took after the first byte.
            lost: is called if it will not come; told whether the sender has ended, else the
                connection has.
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
