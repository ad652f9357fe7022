"""The membership of a node, as users see it."""

from __future__ import annotations

import logging
import os
import threading
import time

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.errors import NameTakenError
from dpwa.lifecycle import Closeable, finalize
from dpwa.membership.circle import Circle
from dpwa.membership.means import Means
from dpwa.membership.peers import PeerKeeper
from dpwa.membership.service import RosterListener, RosterService
from dpwa.membership.thread import MembersThread
from dpwa.node.node import Node
from dpwa.policy.member_states import Entry
from dpwa.types import JsonObject
from dpwa.wire.members import Roster

log = logging.getLogger("dpwa.members")

FIRST_ANSWER_S = 3.0  # for the constructor to wait for somebody who lets this node in
DECISION_S = 12.0  # the same, if somebody has said that it is to knock again
STOP_TIMEOUT_S = 2.0
LOOK_EVERY_S = 0.05
FOUND_S = 3.0  # in which whoever remembers this node has tried its address, see `Times`


class Members(Closeable):
    """Keeps a node among the members, from when it is made until it is closed.

    Making it waits for the first answer, a few seconds at the most: nobody there is no mistake, the
    node then begins alone and keeps knocking. It waits longer, but not for ever, if it is being
    found out whether its name is free.

    Args:
        node: whose peers the members become.
        clock: what time is taken from.

    Raises:
        NameTakenError: another living node has this name.
    """

    def __init__(self, node: Node, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._clock = clock
        self._started = clock.now()
        self._owner = os.getpid()
        self._is_closed = False
        self._changed = threading.Condition()
        # The wall clock: the number must rise from one process of this node to the next.
        own = Entry(node.name, node.endpoint, incarnation=int(time.time() * 1000))
        self._circle = Circle(own, clock, node.rng("members"), self._wake)
        self._courier = node.courier
        self._names = node.names
        self._knocked = {seed.endpoint for seed in node.config.seeds}
        listener = self._listener = RosterListener(self._circle)
        means = Means(node.courier, node.keyring, clock, node.rng("asking"))
        service = RosterService(
            self._circle,
            node.config.algorithm,
            means,
            lambda who: self._thread.call_back(who),
        )
        self._thread = MembersThread(
            self._circle,
            node.config,
            means,
            PeerKeeper(node, listener.dismiss),
            service.called_back,
        )
        node.attach(service, listener)
        node.describe("membership", self.report)
        finalize(node, self.close)
        self._thread.start()
        try:
            self._await_verdict()
        except BaseException:
            self.close()
            raise

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Wait until there are connections to so many others; return whether there are."""
        deadline = Deadline(self._clock, timeout_s)
        with self._changed:
            while self._listener.connections < count and not deadline.expired():
                self._changed.wait(min(LOOK_EVERY_S, deadline.remaining_s()))
        return self._listener.connections >= count

    def are_known(self) -> bool:
        """Tell whether all are peers by now of whom this node was told when it was let in.

        Also when nobody lets it in: then there is nobody to wait for.
        """
        members = {entry.name for entry in self._circle.peers}
        is_clear = self._thread.verdict.is_clear(self._knocked)
        return is_clear and self._thread.has_looked and members <= set(self._names())

    def have_come(self) -> bool:
        """Tell whether all peers are in view that can be expected at the start of a node.

        Beside those that it was told of, others may remember it from its last life, although it
        knows of none of them: they find it.
        """
        is_alone = not self._circle.peers
        is_too_early = self._clock.now() < self._started + FOUND_S
        return self.are_known() and not (is_alone and is_too_early)

    def report(self) -> JsonObject:
        """Describe the members in plain data, for `dpwa status`."""
        return self._circle.report()

    def close(self) -> None:
        """Tell the members that this node leaves, and stop; before the node is closed."""
        if os.getpid() != self._owner or self._is_closed:
            return
        self._is_closed = True
        is_replaced = self._circle.is_replaced
        self._circle.leave()
        if not self._thread.stop(STOP_TIMEOUT_S):
            log.error("thread %s did not stop within %g s", self._thread.name, STOP_TIMEOUT_S)
        if not is_replaced:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        own = self._circle.own
        for entry in self._circle.peers:
            roster = Roster(
                request=0,
                name=own.name,
                incarnation=own.incarnation,
                digest=self._circle.digest(),
                asks=False,
            )
            self._courier.tell(entry.name, roster, self._circle.news(entry.name))

    def _await_verdict(self) -> None:
        """Wait for the first node that lets this one in, unless none of those knocked at will."""
        verdict = self._thread.verdict
        with verdict.changed:
            verdict.changed.wait_for(lambda: verdict.is_clear(self._knocked), FIRST_ANSWER_S)
            if verdict.undecided:
                verdict.changed.wait_for(lambda: verdict.is_clear(self._knocked), DECISION_S)
            refused = verdict.refused
        if refused:
            raise NameTakenError(f"{refused}: give this process a name of its own")

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._thread.wake()
