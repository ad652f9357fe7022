"""ViewDiscovery: who is not in the view of a group, and what it hears of them.

There are nodes that want to be let in, and other views, of which one may have to go on instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpwa.clock import Clock
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group_sender import GroupSender
from dpwa.policy.groups.views import GroupView, Member, ViewRank, has_precedence

JOIN_REQUEST_LASTS_S = 2.0  # after which a node that wanted to be let in has given up
SEEK_EVERY_S = 1.0


class ViewDiscovery:
    """The nodes around a view; belongs to its group, and is used under the lock of that.

    Args:
        contacts: of this node.
        sender: of the group.
        ranks: names of all nodes in the order of the configuration.
        clock: time source.
    """

    def __init__(
        self, contacts: Contacts, sender: GroupSender, ranks: Sequence[str], clock: Clock
    ) -> None:
        self._contacts = contacts
        self._sender = sender
        self._ranks = ranks
        self._clock = clock
        self._join_requests: dict[str, tuple[Member, float]] = {}
        self._views: dict[str, ViewRank] = {}  # by who has told of them
        self._sought_at: dict[str, float] = {}

    @property
    def others(self) -> tuple[str, ...]:
        """Names of all other nodes, members or not."""
        own = self._contacts.own.name
        return tuple(name for name in self._contacts.names if name != own)

    # Who wants to be let in

    def hear_join_request(self, member: Member) -> None:
        """Take note of a node that wants to be let in."""
        self._join_requests[member.name] = member, self._clock.now()

    def join_requests(self) -> tuple[Member, ...]:
        """Return who wants to be let in."""
        now = self._clock.now()
        self._join_requests = {
            n: k for n, k in self._join_requests.items() if now - k[1] < JOIN_REQUEST_LASTS_S
        }
        return tuple(sorted(member for member, _ in self._join_requests.values()))

    def have_asked_to_join(self) -> bool:
        """Tell whether all other nodes want to be let in."""
        return {member.name for member in self.join_requests()} >= set(self.others)

    def let_in(self, members: Iterable[Member]) -> None:
        """Take note of who does not have to ask any more."""
        for member in members:
            self._join_requests.pop(member.name, None)

    # Other views

    def hear_of_view(self, name: str, rank: ViewRank) -> None:
        """Take note of what a node has said of its view."""
        self._views[name] = rank

    def is_outranked(self, own: ViewRank) -> bool:
        """Tell whether another view that was heard of, and can be reached, goes on instead."""
        return any(
            has_precedence(rank, own, self._ranks) and self._contacts.is_up(name)
            for name, rank in self._views.items()
        )

    def forget_views(self) -> None:
        """Take what was heard for news of another time: who is of which view has changed."""
        self._views.clear()

    # Speaking to them

    def seek(self, view: GroupView, own: ViewRank, every_s: float = SEEK_EVERY_S) -> None:
        """Look for nodes that are in no view with this one, or in another one."""
        now, others = self._clock.now(), self.others
        self._views = {name: told for name, told in self._views.items() if name in others}
        self._sought_at = {name: at for name, at in self._sought_at.items() if name in others}
        for name in others:
            is_due = now - self._sought_at.get(name, -every_s) >= every_s
            if name not in view.names and is_due and self._contacts.is_up(name):
                self._sought_at[name] = now
                self._sender.ask_to_join(name, own)

    def ask_to_join(self) -> list[str]:
        """Ask all who can be reached to be let in; return whom."""
        reached = [name for name in self.others if self._contacts.is_up(name)]
        for name in reached:
            self._sender.ask_to_join(name)
        return reached
