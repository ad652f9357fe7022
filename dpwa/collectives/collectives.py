"""The collectives of a node, and the service that receives its peers' messages about them."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import get_args

from dpwa.collectives.call import Call
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import Group
from dpwa.collectives.operations import Operation
from dpwa.collectives.pulling import PullListener, PullSource
from dpwa.collectives.views import GroupMessage
from dpwa.errors import ClosedError, UserError
from dpwa.lifecycle import Closeable, finalize, require_own_process
from dpwa.node.node import Node
from dpwa.node.serving.service import Reply, Service
from dpwa.policy.group_views import Member
from dpwa.policy.wait_budgets import RoundLimits
from dpwa.types import JsonObject
from dpwa.wire import limits
from dpwa.wire.collecting import Hello, Pull

MAX_TAGS = 64


class Collectives(Closeable, Service):
    """The collectives of one node. The object answers peers' messages from its creation on."""

    handles = Hello, Pull, *get_args(GroupMessage)

    def __init__(self, node: Node) -> None:
        # The node's threads hold this object. If this object held the node, Python could not
        # collect a node that no variable holds.
        self.name = node.name
        self._timeout_s = node.config.collective_timeout_s
        self.runtime = node.runtime
        self._are_known = node.are_known
        ranks = tuple(listed.name for listed in node.config.nodes)
        # If nodes can come and go, each node begins alone, and nodes are in order of their names.
        self._ranks = () if node.config.is_open else ranks
        names = node.names if node.config.is_open else lambda: ranks
        own = Member(node.name, node.traffic.own_process[0])
        may_map = node.config.transport != "tcp"
        self._lock = threading.RLock()
        self._groups: dict[str, Group] = {}
        self._called: set[str] = set()  # tags, by this node
        self.contacts = Contacts(
            own,
            names,
            node.tx.send_message,
            self._contact_changed,
            may_map=may_map,
            count=node.traffic.exchanged,
            process_of=node.traffic.connected_process,
        )
        self.listener = PullListener(self.contacts)
        self.pull_source = PullSource(node.rx.wake, node.traffic.sent)
        self._unthrottled, self._lull_s = node.rx.unthrottled, node.rx.admission.lull_s
        self._connect = node.tx.connect
        self._upload = node.upload
        self._is_closed = node.closed
        self._owner = os.getpid()
        if not self._is_closed:  # else only calls that work on a closed node work
            node.attach(self, self.listener)
            finalize(node, self.close)

    def give_way(self, tag: str) -> None:
        """From now on, leave the group of `tag` if its members wait in vain for this thread.

        The thread is the one that calls this method. It may wait for peers in a different call.
        """
        self.group(tag).lull_s = partial(self._lull_s, self.runtime.current_thread())

    def members(self, tag: str = "") -> tuple[str, ...]:
        """Return the names of the members. After `close`, return the last members."""
        if not self._is_closed:
            return self.group(tag).view.names
        group = self._groups.get(tag)
        return (self._ranks or (self.name,)) if group is None else group.view.names

    def run_operation(
        self,
        operation: Operation,
        timeout_s: float | None = None,
        tag: str = "",
        limits: RoundLimits | None = None,
    ) -> tuple[str, ...]:
        """Call a collective, and return the names of the nodes that contributed to it."""
        group = self.group(tag)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if not 0 < timeout_s < float("inf"):
            raise UserError(f"timeout_s must be above 0 and finite, not {timeout_s!r} [DPWA-E150]")
        with self._unthrottled():
            return Call(self, group, operation, timeout_s, limits).run()

    def report(self) -> JsonObject:
        groups = self.groups()
        return {
            "members": {group.tag: list(group.view.names) for group in groups},
            "bytes": sum(group.memory.nbytes for group in groups),
            "pulled_bytes": self.listener.received_bytes,
            "served_bytes": self.pull_source.served_bytes,
        }

    def close(self) -> None:
        """Notify the members, and free the shared memory. Call this before closing the node."""
        if os.getpid() != self._owner:
            return  # in a forked child, the thread that held a lock is missing
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = self.contacts.is_closed = True
        for group in self._groups.values():
            group.say_goodbye()
            group.memory.close()
        self.pull_source.clear()
        self.contacts.close()

    # Messages of peers, on the RxThread

    def handle(self, sender: bytes, message: Hello | Pull | GroupMessage, reply: Reply) -> None:  # noqa: ARG002
        if isinstance(message, Hello):
            self.contacts.receive_hello(message)
        elif isinstance(message, Pull):
            self.pull_source.serve(message, self._upload.shared(message.name, reply))
        elif self.contacts.knows(message.name):
            group = self._known_group(message.tag)
            if group is not None:
                group.receive_message(message)

    def tick(self, now: float) -> bool:
        """Continue the votes of all groups, and serve peers' pulls whose data are now available."""
        are_busy = [group.tick(now) for group in self.groups()]
        return self.pull_source.serve_waiting() or any(are_busy)

    def group(self, tag: str) -> Group:
        """Return the group for the tag of a collective that this node calls."""
        require_own_process(self._owner, self.name)  # first, because a fork may hold the lock
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"node {self.name!r} is closed [DPWA-E058]")
            if len(self._ranks) > limits.MAX_MEMBERS:
                raise UserError(
                    f"collectives have at most {limits.MAX_MEMBERS} nodes, not {len(self._ranks)}"
                    " [DPWA-E151]"
                )
            if tag not in self._called:
                if len(tag) > limits.MAX_NAME_CHARACTERS or len(self._called) >= MAX_TAGS:
                    raise UserError(
                        f"cannot use the tag {tag!r:.80}, because a tag may have at most "
                        f"{limits.MAX_NAME_CHARACTERS} characters, and a node may use at most "
                        f"{MAX_TAGS} tags [DPWA-E152]"
                    )
                self._called.add(tag)
            return self._groups.get(tag) or self._add(tag)

    def groups(self) -> list[Group]:
        """Return the groups of all tags, also of tags that only peers have used."""
        with self._lock:
            return list(self._groups.values())

    def _add(self, tag: str) -> Group:
        self._connect(needs_all=True)
        group = Group(tag, self._ranks, self.contacts, self.runtime, self._are_known)
        self._groups[tag] = group
        return group

    def _known_group(self, tag: str) -> Group | None:
        """Return the group for a peer's message, or `None` if this node has too many groups.

        A peer may be the first node to use a tag. Such tags cannot use up this node's own limit.
        """
        with self._lock:
            group = self._groups.get(tag)
            if group is None and not self._is_closed and len(self._groups) < 2 * MAX_TAGS:
                group = self._add(tag)
            return group

    def _contact_changed(self, peer: str) -> None:
        for group in self.groups():
            group.contact_changed(peer)
