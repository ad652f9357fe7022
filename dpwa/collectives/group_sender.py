"""GroupSender: what a node says to the members of a group, in messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from dpwa.collectives.contacts import Contacts
from dpwa.policy.groups.ballots import Ballot, Decision
from dpwa.policy.groups.views import VIEW_ID_BYTES, GroupView, ViewRank
from dpwa.wire.collecting import AskToJoinView, CollectiveOutcome, Evicted, Post, Vote

Key = tuple[bytes, int]  # identity of a view, number of a collective
NOWHERE: Key = bytes(VIEW_ID_BYTES), 0
NO_VIEW = ViewRank(0, 0, "")


class GroupSender:
    """Signs messages and sends them; what is for this node itself is dropped.

    Args:
        tag: of the group.
        contacts: of the node.
    """

    def __init__(self, tag: str, contacts: Contacts) -> None:
        own = contacts.own
        self._own_name = own.name
        self._contacts = contacts
        self._signed: dict[str, Any] = {
            "request": 0,
            "tag": tag,
            "name": own.name,
            "incarnation": own.incarnation,
        }

    def post(self, peer: str, key: Key, phase: int, record: bytes) -> None:
        """Say that this node has entered a collective, or is ready."""
        fields = {"view": key[0], "number": key[1], "phase": phase, "record": record}
        self.tell(peer, Post(**{**self._signed, **fields}))

    def vote(self, members: Iterable[str], key: Key, ballot: Ballot) -> None:
        """Tell all members how this node votes."""
        stand = ballot.stand
        vote = Vote(
            **self._signed,
            view=key[0],
            number=key[1],
            suspects=tuple(sorted(ballot.suspects)),
            entered=stand.entered,
            ready=stand.ready,
            expired=stand.expired,
            seen=tuple(sorted(stand.seen)),
            join_requests=tuple(
                (ask_to_join.name, ask_to_join.incarnation) for ask_to_join in stand.join_requests
            ),
        )
        self.tell_all(members, vote)

    def evicted(self, peer: str, rank: ViewRank, key: Key = NOWHERE) -> None:
        """Tell a node that it is not of this view, in which it has spoken of a collective."""
        fields = {"view": key[0], "number": key[1]}
        self.tell(peer, Evicted(**{**self._signed, **fields, **asdict(rank)}))

    def ask_to_join(self, peer: str, rank: ViewRank = NO_VIEW) -> None:
        """Ask to be let in; or, from within a view, look for a node that is not."""
        self.tell(peer, AskToJoinView(**{**self._signed, **asdict(rank)}))

    def outcome(self, key: Key, decision: Decision, after: GroupView) -> CollectiveOutcome:
        """Return what tells how a collective has ended."""
        return CollectiveOutcome(
            **self._signed,
            view=key[0],
            number=key[1],
            holds=decision.holds,
            lost=decision.lost,
            members=tuple((member.name, member.incarnation) for member in after.members),
            since=after.since,
        )

    def in_own_name(self, outcome: CollectiveOutcome) -> CollectiveOutcome:
        """Return what another node has told, to be told by this one."""
        return outcome.model_copy(update=self._signed)

    def tell_all(self, members: Iterable[str], message: Vote | CollectiveOutcome) -> None:
        """Send a message to all of them."""
        for name in members:
            self.tell(name, message)

    def tell(
        self, peer: str, message: Post | Vote | CollectiveOutcome | Evicted | AskToJoinView
    ) -> None:
        """Send a message."""
        if peer != self._own_name:
            self._contacts.tell(peer, message)
