"""What members say of a collective, on boards or in messages: how far they are, how it ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from dpwa.collectives.contacts import Contacts
from dpwa.data.boards import BoardReader, BoardWriter, Posted
from dpwa.lifecycle import uninterrupted
from dpwa.policy.ballots import Ballot, Decision
from dpwa.policy.group_views import VIEW_ID_BYTES, GroupView, ViewRank
from dpwa.wire.collecting import AskToJoinView, CollectiveOutcome, Evicted, Post, Vote

Key = tuple[bytes, int]  # identity of a view, number of a collective
NOWHERE: Key = bytes(VIEW_ID_BYTES), 0
NO_VIEW = ViewRank(0, 0, "")


class GroupSender:
    """Signs messages and sends them; what is for this node itself is dropped."""

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
        for name in members:
            self.tell(name, message)

    def tell(
        self, peer: str, message: Post | Vote | CollectiveOutcome | Evicted | AskToJoinView
    ) -> None:
        if peer != self._own_name:
            self._contacts.tell(peer, message)


ENTERED, READY = 0, 1


class PhaseRecords:
    """What has been posted last, by each member and phase."""

    def __init__(self, tag: str, contacts: Contacts, sender: GroupSender) -> None:
        self._tag = tag
        self._contacts = contacts
        self._sender = sender
        self._heard: dict[tuple[str, int], Posted] = {}
        self._boards: dict[str, tuple[bytes, BoardReader]] = {}
        self._board: BoardWriter | None = None

    @property
    def has_boards(self) -> bool:
        """Whether others may post on boards: this node shares memory, or reads that of others."""
        return self._board is not None or bool(self._boards)

    def open(self) -> None:
        if self._contacts.share() and self._board is None:
            with uninterrupted():
                self._board = self._contacts.board(self._tag)

    def post(self, members: Iterable[str], key: Key, phase: int, record: bytes) -> None:
        if self._board is not None:
            self._board.post(phase, Posted(key[1], key[0], record))
        for name in members:
            self.repeat(name, key, phase, record)

    def repeat(self, peer: str, key: Key, phase: int, record: bytes) -> None:
        """Send a record to a peer, unless it reads it on the board."""
        if self._board is None or not self._contacts.reads_us(peer):
            self._sender.post(peer, key, phase, record)

    def clear(self) -> None:
        """Be ready in nothing any more, for who would compare numbers of other views."""
        if self._board is not None:
            view, number = NOWHERE
            self._board.post(READY, Posted(number, view, b""))

    def keep(self, names: Collection[str]) -> None:
        """Let go of what all others have posted."""
        self._heard = {key: posted for key, posted in self._heard.items() if key[0] in names}
        self._boards = {name: known for name, known in self._boards.items() if name in names}

    def hear(self, name: str, phase: int, posted: Posted) -> None:
        self._heard[name, phase] = posted

    def heard(self, name: str, phase: int) -> Posted | None:
        return self._heard.get((name, phase))

    def on_board(self, name: str, phase: int) -> Posted | None:
        life = self._contacts.incarnation(name)
        known = self._boards.get(name)
        if known is None or known[0] != life:
            known = self._contacts.board_of(name, self._tag)
            if known is None:
                return None
            self._boards[name] = known
        return known[1].read(phase)

    def life_of_board(self, name: str) -> bytes:
        """Return whose board `on_board` reads."""
        return self._boards[name][0] if name in self._boards else b""


REMEMBERED = 16  # collectives whose outcome is told to whoever asks


@dataclass(frozen=True)
class _Ended:
    outcome: CollectiveOutcome
    lives: dict[str, bytes]


class EndedCollectives:
    """The outcomes of the last collectives; used under the lock of its group."""

    def __init__(self, sender: GroupSender) -> None:
        self._sender = sender
        self._ended: OrderedDict[Key, _Ended] = OrderedDict()

    @property
    def last(self) -> CollectiveOutcome | None:
        return next(reversed(self._ended.values())).outcome if self._ended else None

    def add(self, outcome: CollectiveOutcome, lives: dict[str, bytes]) -> None:
        self._ended[outcome.view, outcome.number] = _Ended(outcome, lives)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def answer(self, name: str, incarnation: bytes, key: Key, rank: ViewRank) -> bool:
        """Tell a node how the collective has ended that it is in; return whether it has.

        A process that was not a member of it is told of this view, with its rank, instead.
        """
        ended = self._ended.get(key)
        if ended is None:
            return False
        if ended.lives.get(name) in (b"", incarnation):
            self._sender.tell(name, ended.outcome)
        else:
            self._sender.evicted(name, rank, key)
        return True
