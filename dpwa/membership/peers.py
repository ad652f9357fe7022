"""Keeps the peers of a node in line with the members."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress

from dpwa.errors import ClosedError, UnknownNameError
from dpwa.node.node import Node
from dpwa.policy.members.states import MemberEntry


class PeerKeeper:
    """Connects a node to members and lets go of those that are none any more; on one thread.

    Args:
        node: which it does not keep alive.
        dismiss: is told whose connection is about to end.
    """

    def __init__(self, node: Node, dismiss: Callable[[str], None]) -> None:
        self._node = weakref.ref(node)
        self._dismiss = dismiss
        self._endpoints: dict[str, str] = {}
        self._members: Iterable[MemberEntry] | None = None  # of the last time

    def __call__(self, members: Iterable[MemberEntry]) -> None:
        """Take these for all other members."""
        node = self._node()
        if node is None or node.closed or members is self._members:
            return
        # Whoever says that it is where this node is cannot be.
        wanted = {e.name: e.endpoint for e in members if e.endpoint != node.endpoint}
        for name, endpoint in list(self._endpoints.items()):
            if wanted.get(name) != endpoint:
                del self._endpoints[name]
                self._dismiss(name)
                with suppress(UnknownNameError, ClosedError):  # somebody else has removed it
                    node.remove_peer(name)
        for name in [name for name in wanted if name not in self._endpoints]:
            self._endpoints[name] = wanted[name]
            node.connect_peer(name, wanted[name])
        self._members = members  # now that all of it is done: else the rest is, the next time
