"""The records of a group's members, and the nodes outside its view."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict

from dpwa.clock import Clock
from dpwa.collectives.contacts import Contacts
from dpwa.data.shared_records import BoardReader, BoardWriter, Posted
from dpwa.lifecycle import uninterrupted
from dpwa.policy.group_views import VIEW_ID_BYTES, GroupView, Member, ViewRank, has_precedence
from dpwa.wire.collecting import AskToJoinView, CollectiveOutcome, Evicted, Post, Vote

GroupMessage = Post | Vote | CollectiveOutcome | Evicted | AskToJoinView
Key = tuple[bytes, int]  # identity of a view, number of a collective
NOWHERE: Key = bytes(VIEW_ID_BYTES), 0
NO_VIEW = ViewRank(0, 0, "")


ENTERED, READY = 0, 1  # phases of a collective of which a node tells the others


class PhaseRecords:
    """The members' last records by phase, from messages and from boards in shared memory."""

    def __init__(self, tag: str, contacts: Contacts) -> None:
        self._tag = tag
        self._contacts = contacts
        self._heard: dict[tuple[str, int], Posted] = {}
        self._boards: dict[str, tuple[bytes, BoardReader]] = {}
        self._board: BoardWriter | None = None

    @property
    def has_boards(self) -> bool:
        """Whether this node has a board in shared memory, or reads the board of a member."""
        return self._board is not None or bool(self._boards)

    def open(self) -> None:
        if self._contacts.offer_memory() and self._board is None:
            with uninterrupted():
                self._board = self._contacts.board(self._tag)

    def post(self, members: Iterable[str], key: Key, phase: int, record: bytes) -> None:
        if self._board is not None:
            self._board.post(phase, Posted(key[1], key[0], record))
        self.repeat(members, key, phase, record)

    def repeat(self, members: Iterable[str], key: Key, phase: int, record: bytes) -> None:
        """Send a record to members that do not read it on the board."""
        reads = self._contacts.reads_us
        told = [name for name in members if self._board is None or not reads(name)]
        self.send_record(told, key, phase, record)

    def send_record(self, members: Iterable[str], key: Key, phase: int, record: bytes) -> None:
        """Send a record to these members, even if they read this node's board."""
        fields = {"view": key[0], "number": key[1], "phase": phase, "record": record}
        self._contacts.send(members, Post, tag=self._tag, **fields)

    def clear(self) -> None:
        """Clear this node's READY record, because members of other views could misread it."""
        if self._board is not None:
            view, number = NOWHERE
            self._board.post(READY, Posted(number, view, b""))

    def keep_only(self, names: Collection[str]) -> None:
        """Forget the records of all nodes except `names`."""
        self._heard = {key: posted for key, posted in self._heard.items() if key[0] in names}
        self._boards = {name: known for name, known in self._boards.items() if name in names}

    def record_post(self, name: str, phase: int, posted: Posted) -> None:
        self._heard[name, phase] = posted

    def posted_by(self, name: str, phase: int) -> Posted | None:
        return self._heard.get((name, phase))

    def on_board(self, name: str, phase: int) -> Posted | None:
        life = self._contacts.incarnation(name)
        known = self._boards.get(name)
        if known is None or known[0] != life:
            known = self._contacts.board_of(name, self._tag)
            if known is None:
                return None
            self._boards[name] = known
        return known[1].read_slot(phase)

    def life_of_board(self, name: str) -> bytes:
        """Return the incarnation of node `name` whose board is mapped, or b"" without a board."""
        return self._boards[name][0] if name in self._boards else b""


JOIN_REQUEST_LASTS_S = 2.0  # after which a node that wanted to be let in has given up
SEEK_EVERY_S = 1.0


class ViewDiscovery:
    """Finds nodes outside a view, which either ask to be admitted or have a different view.

    One of these views may have to continue instead. Used under the lock of its group.
    """

    def __init__(self, tag: str, contacts: Contacts, ranks: Sequence[str], clock: Clock) -> None:
        self._tag = tag
        self._contacts = contacts
        self._ranks = ranks
        self._clock = clock
        self._join_requests: dict[str, tuple[Member, float]] = {}
        self._views: dict[str, ViewRank] = {}  # by who has told of them
        self._sought_at: dict[str, float] = {}

    @property
    def others(self) -> tuple[str, ...]:
        own = self._contacts.own.name
        return tuple(name for name in self._contacts.names if name != own)

    # Who wants to be let in

    def hear_join_request(self, member: Member) -> None:
        self._join_requests[member.name] = member, self._clock.now()

    def join_requests(self) -> tuple[Member, ...]:
        now, is_lost = self._clock.now(), self._contacts.is_lost
        self._join_requests = {
            name: (member, asked)
            for name, (member, asked) in self._join_requests.items()
            if now - asked < JOIN_REQUEST_LASTS_S and not is_lost(name, member.incarnation)
        }
        return tuple(sorted(member for member, _ in self._join_requests.values()))

    def have_asked_to_join(self) -> bool:
        return {member.name for member in self.join_requests()} >= set(self.others)

    def forget_members(self, members: Iterable[Member]) -> None:
        """Drop the join requests of `members`, which are nodes in certain incarnations."""
        for member in members:
            asked = self._join_requests.get(member.name)
            if asked is not None and asked[0] == member:
                del self._join_requests[member.name]

    # Other views

    def hear_of_view(self, name: str, rank: ViewRank) -> None:
        self._views[name] = rank

    @property
    def knows_views(self) -> bool:
        """Whether a peer has announced a different view since the last `forget_views`."""
        return bool(self._views)

    def is_outranked(self, own: ViewRank) -> bool:
        """Return whether a reachable peer's view takes precedence over this node's view, `own`."""
        return any(
            has_precedence(rank, own, self._ranks) and self._contacts.is_up(name)
            for name, rank in self._views.items()
        )

    def forget_views(self) -> None:
        """Forget all views that peers have announced, because they may be out of date."""
        self._views.clear()

    # Speaking to them

    def seek(self, view: GroupView, own: ViewRank, every_s: float = SEEK_EVERY_S) -> None:
        """Contact the reachable nodes outside `view`, each at most once in `every_s` seconds."""
        now, others = self._clock.now(), self.others
        self._views = {name: told for name, told in self._views.items() if name in others}
        self._sought_at = {name: at for name, at in self._sought_at.items() if name in others}
        for name in others:
            is_due = now - self._sought_at.get(name, -every_s) >= every_s
            if name not in view.names and is_due and self._contacts.is_up(name):
                self._sought_at[name] = now
                self._ask([name], own)

    def ask_to_join(self) -> list[str]:
        """Ask all reachable nodes for admission, and return their names."""
        reached = [name for name in self.others if self._contacts.is_up(name)]
        self._ask(reached, NO_VIEW)
        return reached

    def _ask(self, names: list[str], own: ViewRank) -> None:
        """Ask nodes for admission (`own` is `NO_VIEW`), or announce this node's view to them."""
        self._contacts.send(names, AskToJoinView, tag=self._tag, **asdict(own))
