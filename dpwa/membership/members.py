"""Members: the membership of a node, from its admission until it leaves."""

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
from dpwa.membership.service import FOUND_OUT_WITHIN_S, RosterService
from dpwa.node.node import Node
from dpwa.node.report import MembershipReport
from dpwa.policy.members.states import MemberEntry, Times
from dpwa.transport.addresses import all_resolved
from dpwa.transport.link import LinkState

log = logging.getLogger("dpwa.members")

FIRST_ANSWER_S = 3.0  # time for which the constructor waits for admission
DECISION_S = FOUND_OUT_WITHIN_S + 2.0  # the same, if a node answered that it is undecided
REMEMBERED_S = 10.0  # time in which remembered members can answer, before the node begins alone
STOP_TIMEOUT_S = 2.0
LOOK_EVERY_S = 0.05
LOOK_AGAIN_S = 0.2
GOODBYE_S = 1.0
FOUND_S = Times().retry_few_s + 0.5  # after this time, nodes that remember this one have tried it


class Members(Closeable):
    """Makes a node a member of a cluster, from the node's creation until the node is closed.

    The constructor waits for at most `join_timeout_s` until a node admits this one. A node that may
    begin a cluster (`join: []`, or `alone: true`) waits only for a few seconds. It waits longer if
    it remembers members, or if others check whether its name is free. Then it begins a cluster.

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
        # Of the wall clock, because the number must be higher after a restart of this node.
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
        asking = self._asking = Asking(self._member_list, node.config, context, PeerKeeper(node))
        service = RosterService(self._member_list, node.config.algorithm, context, asking)
        node.attach(service, asking)
        node.describe("membership", self.report)
        node.are_known, node.have_come = self.are_known, self.have_come
        finalize(node, self.close)
        try:
            self._await_outcome()
        except BaseException:
            self.close()
            raise

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Wait until this node can reach `count` peers. Return whether it can reach them."""
        deadline = Deadline(self._clock, timeout_s)
        with self._changed:
            while self._reached() < count and not deadline.expired():
                self._changed.wait(min(LOOK_EVERY_S, deadline.remaining_s()))
        return self._reached() >= count

    def _reached(self) -> int:
        return sum(map(self._tx.reaches, self._names()[1:]))

    def are_known(self) -> bool:
        """Return whether all members that this node learned of at its admission are its peers.

        Also true if no node admits this one, because then there is no node to wait for.
        """
        members = {entry.name for entry in self._member_list.peers}
        is_clear = self._asking.outcome.is_clear
        return is_clear and self._asking.has_looked and members <= set(self._names())

    def have_come(self) -> bool:
        """Return whether the node knows all peers that it can expect at its start.

        They include the nodes that were named at the admission. Other nodes may remember this node
        from before its restart, and find it although it does not know them.
        """
        is_alone = not self._member_list.peers
        is_too_early = self._clock.now() < self._started + FOUND_S
        return self.are_known() and not (is_alone and is_too_early)

    def report(self) -> MembershipReport:
        """Describe the members, for `dpwa status`."""
        return self._member_list.report()

    def close(self) -> None:
        """Tell the members that this node leaves, and stop. It runs before the node is closed."""
        if os.getpid() != self._owner or self._is_closed:
            return
        self._is_closed = True
        is_replaced, own = self._member_list.is_replaced, self._member_list.own.name
        self._member_list.announce_leave()
        if not self._asking.stop(STOP_TIMEOUT_S):
            log.error(
                "%s: the thread that asks members did not stop in %g s [DPWA-W016]",
                own,
                STOP_TIMEOUT_S,
            )
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
        """Connect to a member. A node that leaves soon after its start may have no connection."""
        self._tx.connect()
        deadline = Deadline(self._clock, GOODBYE_S)
        with self._changed:
            while not self._is_connected and not deadline.expired():
                self._changed.wait(min(LOOK_EVERY_S, deadline.remaining_s()))

    @property
    def _is_connected(self) -> bool:
        return any(self._tx.state_of(e.name) is LinkState.UP for e in self._member_list.peers)

    def _await_outcome(self) -> None:
        """Wait for admission, for as long as the settings allow."""
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
            raise NameTakenError(f"{outcome.refused}. Give this process its own name [DPWA-E055]")
        log.info("%s: %s", name, "was admitted" if outcome.is_in else "begins a cluster")

    def _wait(self, timeout_s: float, *, gives_up: bool) -> None:
        """Wait until another node has admitted this node, and log problems from time to time."""
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
        """Return whether `join` has no address other than this node's own."""
        places = [seed.endpoint for seed in self._config.seeds]
        return bool(places) and all(map(self._asking.outcome.is_own, places))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._asking.members_changed()


class PeerKeeper:
    """Connects a node to members, and disconnects it from former members, on one thread.

    It does not keep the node alive.
    """

    def __init__(self, node: Node) -> None:
        self._node = weakref.ref(node)
        self._endpoints: dict[str, str] = {}
        self._members: Iterable[MemberEntry] | None = None  # of the last call

    def __call__(self, members: Iterable[MemberEntry]) -> None:
        node = self._node()
        if node is None or node.closed or members is self._members:
            return
        # A member cannot be at the endpoint of this node.
        named = {e.name: e.endpoint for e in members if e.endpoint != node.endpoint}
        for name, endpoint in list(self._endpoints.items()):
            if named.get(name) != endpoint:
                del self._endpoints[name]
                with suppress(UnknownNameError, ClosedError):  # the user may have removed the peer
                    node.remove_peer(name)
        for name in [name for name in named if name not in self._endpoints]:
            self._endpoints[name] = named[name]
            node.connect_peers({name: named[name]})
        self._members = members  # at the end: after an error, the next call does the rest
