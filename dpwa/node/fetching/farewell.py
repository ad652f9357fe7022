"""A node that ends on purpose says goodbye, and stays until its peers have read it, or a second."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import zmq

from dpwa.clock import Deadline
from dpwa.errors import ProtocolError, VersionError
from dpwa.transport.link import LinkState, PeerLink
from dpwa.wire.messages import Goodbye, Refused, decode

FAREWELL_S = 1.0  # a peer that takes longer to answer does without
ANSWERS_PER_TURN = 16  # of one peer, before the others and the deadline are looked at


def say_goodbye(
    links: Iterable[PeerLink],
    name: str,
    ending: Collection[str],
    deadline: Deadline,
    poller: zmq.Poller,
) -> None:
    """Tell the peers that are connected, and wait for their answers, but not for ever.

    Whoever closes a connection without waiting may take back what it has sent last: with answers
    on it that were not read, TCP resets it, and a busy peer never sees the goodbye.

    Args:
        links: to peers; owned by the calling thread.
        name: of this node.
        ending: names of peers that have said goodbye themselves: nobody waits for their answers.
        deadline: after which this node goes, answered or not.
        poller: a new one.
    """
    waiting = [link for link in links if link.state is LinkState.UP]
    waiting = [link for link in waiting if link.send(Goodbye(request=1, name=name))]
    waiting = [link for link in waiting if link.peer not in ending]
    for link in waiting:
        poller.register(link.socket, zmq.POLLIN)
        poller.register(link.monitor, zmq.POLLIN)
    while waiting and not deadline.expired():
        if not poller.poll(int(deadline.remaining_s() * 1000) + 1):
            return
        for link in list(waiting):
            if _has_answered(link) or LinkState.DOWN in link.update():
                waiting.remove(link)
                poller.unregister(link.socket)
                poller.unregister(link.monitor)


def _has_answered(link: PeerLink) -> bool:
    """Read some of what a peer has sent, until its goodbye; the rest is of no use any more."""
    for _ in range(ANSWERS_PER_TURN):
        frames = link.receive()
        if frames is None:
            return False
        try:
            if isinstance(decode(frames)[0], Goodbye | Refused):
                return True
        except VersionError:  # it has read something, and there is nothing to wait for
            return True
        except ProtocolError:
            continue
    return False
