"""DealFetches: what a fetch that is on a deal's terms says to the deal desk and to the partner."""

from __future__ import annotations

from dpwa.algorithms import Terms
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.snapshot import Lease
from dpwa.errors import ProtocolError
from dpwa.node.arrival import objection
from dpwa.node.fetch_order import FetchOrder, Found, SettledDeal
from dpwa.node.parts import Parts, most_nodes
from dpwa.node.peer_channel import PeerChannel
from dpwa.node.pursuit import Attempt
from dpwa.policy.health import Outcome
from dpwa.policy.push_sum import UNIT
from dpwa.wire.fetching import Ended
from dpwa.wire.messages import Prepared
from dpwa.wire.proposing import DealAgreed, DealTerms, Proposal, ProposeSession

_DECLINED = (Outcome.BUSY, Outcome.NOT_READY, Outcome.OTHER_ALGORITHM)


class DealFetches:
    """The deals of a Fetcher, which asks whom it likes and decides what follows.

    A fetch is part of a deal that this node has proposed, or it collects the snapshot of the peer
    for a deal that the peer has proposed.

    Args:
        parts: of the node.
    """

    def __init__(self, parts: Parts) -> None:
        self._book, self._desk, self._clock = parts.book, parts.desk, parts.clock
        self._most_units = UNIT * most_nodes(parts.config)
        self._greet = parts.greeting

    def propose(self, channel: PeerChannel, order: FetchOrder, request: int) -> Attempt | None:
        """Return an attempt that begins with a proposal; `None`: no deal can be made now."""
        wanted = order.wanted
        expires = self._clock.now() + order.deadline.remaining_s()
        deal = self._desk.propose(channel.peer, wanted.own_version, expires)
        if deal is None:
            return None
        terms: DealTerms = "exchange" if wanted.terms is Terms.EXCHANGE else "share"
        proposal = Proposal(deal, terms, wanted.own_version, wanted.layout, self._greet())
        attempt = Attempt(channel, ProposeSession(request, proposal))
        attempt.deal = deal
        return attempt

    def agreed(self, deal: bytes, agreed: DealAgreed) -> bool:
        """Take note that the peer has agreed; `False`: this node has agreed to another one.

        Raises:
            ProtocolError: the peer promises more mass than there is.
        """
        if agreed.units > max(self._most_units, UNIT * (len(self._book.names) + 1)):
            raise ProtocolError(f"{agreed.units} units of mass: more than there are")
        return self._desk.agreed(deal, agreed.units)

    def pin(self, order: FetchOrder, attempt: Attempt, memory: PeerMemory) -> Lease | Ended:
        """Hold on to the promised snapshot in shared memory, or say why it will not do."""
        lease = memory.pin(order.layout, attempt.version)
        if lease is None or lease.snapshot.version != attempt.version:
            if lease is not None:
                lease.release()
            return Ended(Outcome.LOST, "its snapshot is gone")
        why_not = objection(lease.snapshot, order)
        if why_not is not None:
            lease.release()
            return why_not
        return lease

    def bring(self, order: FetchOrder, attempt: Attempt, lease: Lease) -> bool:
        """Hand over the peer's snapshot, which stays; return whether nothing more is awaited."""
        if order.collects is not None:
            if self._desk.collected(order.collects, lease):
                self._say_prepared(attempt.channel, order.collects, is_there=True)
            return True
        if attempt.deal is None or not self._desk.complete(attempt.deal, lease):
            return False
        self.settle(order, attempt)
        return True

    def settle(self, order: FetchOrder, attempt: Attempt) -> None:
        """Tell the trainer that its deal holds."""
        order.offer(Found(attempt.channel.peer, SettledDeal()))

    def prepared(self, deal: bytes) -> bool | None:
        """Take note that the peer has this node's snapshot; see `DealDesk.prepared`."""
        return self._desk.prepared(deal)

    def leave(self, attempt: Attempt | None, outcome: Outcome) -> None:
        """Do without the deal of an attempt that has failed, if it is part of one."""
        if attempt is None or attempt.deal is None:
            return
        if outcome in _DECLINED:
            self._desk.refused(attempt.deal)
        else:
            self._desk.abort(attempt.deal)

    def collect_failed(self, order: FetchOrder, channel: PeerChannel | None) -> None:
        """Let a peer know that its snapshot is not to be had; the deal is off."""
        if order.collects is not None and self._desk.collect_failed(order.collects) and channel:
            self._say_prepared(channel, order.collects, is_there=False)

    def _say_prepared(self, channel: PeerChannel, deal: bytes, *, is_there: bool) -> None:
        message = Prepared(request=0, deal=deal, name=self._greet().name, is_there=is_there)
        channel.link.send(message)
