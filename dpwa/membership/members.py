"""The membership of a node, as users see it."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress

from dpwa.clock import Deadline
from dpwa.errors import ClosedError, JoinTimeoutError, NameTakenError, UnknownNameError
from dpwa.lifecycle import Closeable, finalize
from dpwa.membership.asking import Asking
from dpwa.membership.context import LookUp, MembershipContext
from dpwa.membership.joining import Wait
from dpwa.membership.member_list import MemberList
from dpwa.membership.remembered import remembered_by
from dpwa.membership.service import FOUND_OUT_WITHIN_S, RosterListener, RosterService
from dpwa.node.node import Node
from dpwa.node.report import MembershipReport
from dpwa.policy.members.states import MemberEntry, Times
from dpwa.transport.addresses import all_resolved
from dpwa.transport.link import LinkState

log = logging.getLogger("dpwa.members")

FIRST_ANSWER_S = 3.0  # for the constructor to wait for somebody who lets this node in
DECISION_S = FOUND_OUT_WITHIN_S + 2.0  # the same, if somebody has said that it is to ask again
REMEMBERED_S = 10.0  # for members from an earlier life to answer, before a node begins a cluster
STOP_TIMEOUT_S = 2.0
LOOK_EVERY_S = 0.05
LOOK_AGAIN_S = 0.2
GOODBYE_S = 1.0
FOUND_S = Times().retry_few_s + 0.5  # then whoever remembers this node has tried its address


class Members(Closeable):
    """Keeps a node among the members, from its creation until it is closed.

    The constructor waits until a node admits this one, at most `join_timeout_s`. A node that may
    begin a cluster (`join: []`, or `alone: true`) waits only a few seconds, somewhat longer if it
    remembers members or if others check whether its name is free, and then begins.

    Raises:
        NameTakenError: a different living node has this name.
        JoinTimeoutError: no node has admitted this one, and it may not begin a cluster.
    """

    def __init__(self, node: Node, look_up: LookUp = all_resolved) -> None:
        runtime = node.runtime
        self._clock = runtime
        self._started = runtime.now()
        self._owner = os.getpid()
        self._is_closed = False
        self._changed = runtime.condition()
        # The wall clock: the number must rise from one process of this node to the next.
        own = MemberEntry(node.name, node.endpoint, incarnation=int(runtime.wall_time() * 1000))
        self._member_list = MemberList(own, runtime, node.rng("members"), self._wake)
        self._tx = node.tx
        self._names = node.names
        self._config = node.config
        memory = remembered_by(node.config, node.name)
        self._remembered = () if memory is None else memory.read_members()
        self._member_list.waits = not node.config.begins(node.name)
        context = MembershipContext(
            node.tx,
            node.rx,
            node.keyring,
            runtime,
            node.rng("asking"),
            look_up,
            frozenset(seed.endpoint for seed in node.config.seeds),
            memory,
            self._remembered,
        )
        service = RosterService(
            self._member_list,
            node.config.algorithm,
            context,
            lambda command: self._asking.submit(command),
        )
        self._asking = Asking(
            self._member_list,
            node.config,
            context,
            PeerKeeper(node),
            service.called_back,
        )
        node.attach(service, RosterListener(self._member_list, context))
        node.describe("membership", self.report)
        node.are_known, node.have_come = self.are_known, self.have_come
        finalize(node, self.close)
        node.tx.attach(self._asking)
        try:
            self._await_outcome()
        except BaseException:
            self.close()
            raise

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Wait until `count` other nodes can be reached. Return whether they can."""
        deadline = Deadline(self._clock, timeout_s)
        with self._changed:
            while self._reached() < count and not deadline.expired():
                self._changed.wait(min(LOOK_EVERY_S, deadline.remaining_s()))
        return self._reached() >= count

    def _reached(self) -> int:
        return sum(map(self._tx.reaches, self._names()[1:]))

    def are_known(self) -> bool:
        """Return whether all nodes that were named at the admission are peers by now.

        Also true if no node admits this one, because then there is none to wait for.
        """
        members = {entry.name for entry in self._member_list.peers}
        is_clear = self._asking.outcome.is_clear
        return is_clear and self._asking.has_looked and members <= set(self._names())

    def have_come(self) -> bool:
        """Return whether all peers are in view that can be expected at the start of a node.

        Apart from the nodes that were named to it, others may remember it from its last
        incarnation, although it knows none of them, and find it.
        """
        is_alone = not self._member_list.peers
        is_too_early = self._clock.now() < self._started + FOUND_S
        return self.are_known() and not (is_alone and is_too_early)

    def report(self) -> MembershipReport:
        """Describe the members, for `dpwa status`."""
        return self._member_list.report()

    def close(self) -> None:
        """Notify the members that this node leaves, and stop, before the node is closed."""
        if os.getpid() != self._owner or self._is_closed:
            return
        self._is_closed = True
        is_replaced, own = self._member_list.is_replaced, self._member_list.own.name
        self._member_list.announce_leave()
        if not self._asking.stop(STOP_TIMEOUT_S):
            log.error("%s: asking members did not end within %g s [DPWA-W016]", own, STOP_TIMEOUT_S)
        if not is_replaced:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        peers = self._member_list.peers
        if peers and not self._is_connected:
            self._connect()
        for entry in peers:
            roster = self._member_list.roster(entry.name, asks=False)
            self._tx.send_message(entry.name, *roster, connects=False)

    def _connect(self) -> None:
        """Connect to a member, because a node that leaves at once may have no connection yet."""
        self._tx.connect()
        deadline = Deadline(self._clock, GOODBYE_S)
        with self._changed:
            while not self._is_connected and not deadline.expired():
                self._changed.wait(min(LOOK_EVERY_S, deadline.remaining_s()))

    @property
    def _is_connected(self) -> bool:
        return any(self._tx.state_of(e.name) is LinkState.UP for e in self._member_list.peers)

    def _await_outcome(self) -> None:
        """Wait for the first node that lets this one in, as long as that makes sense."""
        outcome, name = self._asking.outcome, self._member_list.own.name
        if self._member_list.waits:
            self._wait(self._config.join_timeout_s, gives_up=True)
        if not self._member_list.waits and self._remembered:
            self._wait(REMEMBERED_S, gives_up=False)
        with outcome.changed:
            outcome.changed.wait_for(lambda: outcome.is_clear, FIRST_ANSWER_S)
            if outcome.is_undecided:
                outcome.changed.wait_for(lambda: outcome.is_clear, DECISION_S)
        if outcome.refused:
            raise NameTakenError(
                f"{outcome.refused}. Give this process a name of its own [DPWA-E055]"
            )
        log.info("%s: %s", name, "let in" if outcome.is_in else "begins a cluster")

    def _wait(self, timeout_s: float, *, gives_up: bool) -> None:
        """Wait until a node has admitted this one, and log this from time to time."""
        outcome = self._asking.outcome
        wait = Wait(self._member_list.own.name, self._clock.now(), timeout_s, gives_up=gives_up)
        while not (outcome.is_in or outcome.refused):
            now = self._clock.now()
            if gives_up and self._is_first():
                self._member_list.waits = False
                return
            if wait.is_over(now) or (outcome.all_wait and not gives_up):
                break
            line = wait.line(now, outcome.problems, has_tried=outcome.has_tried)
            if line is not None:
                log.warning("%s", line)
            with outcome.changed:
                outcome.changed.wait(LOOK_AGAIN_S)
        else:
            return
        if gives_up and not outcome.is_in:
            text = wait.last_words(outcome.problems, someone_waits=outcome.someone_waits)
            log.error("%s", text)
            raise JoinTimeoutError(text)

    def _is_first(self) -> bool:
        """Return whether `join` has no address except this node's own."""
        places = [seed.endpoint for seed in self._config.seeds]
        return bool(places) and all(map(self._asking.outcome.is_own, places))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._tx.tick_listeners()


class PeerKeeper:
    """Connects a node to members and disconnects former ones, on one thread.

    It does not keep the node alive.
    """

    def __init__(self, node: Node) -> None:
        self._node = weakref.ref(node)
        self._endpoints: dict[str, str] = {}
        self._members: Iterable[MemberEntry] | None = None  # of the last time

    def __call__(self, members: Iterable[MemberEntry]) -> None:
        node = self._node()
        if node is None or node.closed or members is self._members:
            return
        # Whoever says that it is where this node is cannot be.
        named = {e.name: e.endpoint for e in members if e.endpoint != node.endpoint}
        for name, endpoint in list(self._endpoints.items()):
            if named.get(name) != endpoint:
                del self._endpoints[name]
                with suppress(UnknownNameError, ClosedError):  # somebody else has removed it
                    node.remove_peer(name)
        for name in [name for name in named if name not in self._endpoints]:
            self._endpoints[name] = named[name]
            node.connect_peers({name: named[name]})
        self._members = members  # now that all of it is done: else the rest is, the next time
