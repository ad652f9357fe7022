"""Views of a group: who is in them, how far each member has come, and the vote on who is not.

`ViewDiscovery` hears of nodes that want to be let in, and of other views, of which one may have to
go on instead. `ViewProgress` knows the members as they were let in. `Voting` holds the ballot on
the collective under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dpwa.clock import Clock
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.records import ENTERED, READY, GroupSender, Key, PhaseRecords
from dpwa.data.boards import Posted
from dpwa.policy.ballots import Ballot, Stand
from dpwa.policy.group_views import GroupView, Member, ViewRank, has_precedence
from dpwa.wire.collecting import Vote

JOIN_REQUEST_LASTS_S = 2.0  # after which a node that wanted to be let in has given up
SEEK_EVERY_S = 1.0


class ViewDiscovery:
    """Finds nodes outside a view; used under the lock of its group."""

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
        own = self._contacts.own.name
        return tuple(name for name in self._contacts.names if name != own)

    # Who wants to be let in

    def hear_join_request(self, member: Member) -> None:
        self._join_requests[member.name] = member, self._clock.now()

    def join_requests(self) -> tuple[Member, ...]:
        now = self._clock.now()
        self._join_requests = {
            n: k for n, k in self._join_requests.items() if now - k[1] < JOIN_REQUEST_LASTS_S
        }
        return tuple(sorted(member for member, _ in self._join_requests.values()))

    def have_asked_to_join(self) -> bool:
        return {member.name for member in self.join_requests()} >= set(self.others)

    def let_in(self, members: Iterable[Member]) -> None:
        """Take note of who does not have to ask any more."""
        for member in members:
            self._join_requests.pop(member.name, None)

    # Other views

    def hear_of_view(self, name: str, rank: ViewRank) -> None:
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


class ViewProgress:
    """The members of one view, and what they have posted; used under the lock of its group."""

    def __init__(self, view: GroupView, contacts: Contacts, records: PhaseRecords) -> None:
        self.view = view
        self.number = 0  # of the collective that comes next, or is under way
        self.has_entered = self.is_ready = False
        self.work = 0  # how much was done for what stands on views and calls no collectives
        self._own = contacts.own.name
        self._contacts = contacts
        self._records = records
        self._lives: dict[str, bytes] = {}  # of members whose life the view does not name
        self._posted: dict[int, bytes] = {}  # this node's records, by phase

    def begin(self, view: GroupView, number: int) -> None:
        """Go on to another collective, perhaps of another view."""
        if view != self.view:
            self._lives = {name: life for name, life in self._lives.items() if name in view.names}
            self._records.keep(view.names)
        self.view, self.number = view, number
        self.withdraw()

    def withdraw(self) -> None:
        """Take no part in the collective, as far as this node can."""
        self.has_entered = self.is_ready = False
        self._posted = {}

    @property
    def key(self) -> Key:
        return self.view.identity, self.number

    @property
    def rank(self) -> ViewRank:
        """What counts of the view when it meets another."""
        size = len(self.view.names)
        # Only who is alone counts its work: members would not count the same.
        ended = self.number + (self.work if size == 1 else 0)
        return ViewRank(size, ended, self.view.names[0])

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.view.names if name != self._own)

    # Lives

    def life_of(self, name: str) -> bytes:
        """Return which life of a node is a member; empty as long as it is not known."""
        return self.view.incarnation_of(name) or self._lives.get(name, b"")

    def lives(self) -> dict[str, bytes]:
        return {name: self.life_of(name) for name in self.view.names}

    def knows(self, name: str, incarnation: bytes) -> bool:
        """Tell whether this life of a node is a member; the first one that speaks is."""
        if name not in self.view.names:
            return False
        return (self.life_of(name) or self._lives.setdefault(name, incarnation)) == incarnation

    def lost(self) -> tuple[str, ...]:
        """Return which members were there, and are not any more."""
        return tuple(name for name in self.others if self._is_lost(name))

    # Records

    def post(self, phase: int, record: bytes) -> None:
        self._posted[phase] = record
        self._records.post(self.view.names, self.key, phase, record)

    def repeat(self, peer: str) -> None:
        if self.has_entered and peer in self.view.names:
            for phase, record in self._posted.items():
                self._records.repeat(peer, self.key, phase, record)

    def records(self, phase: int) -> dict[str, bytes]:
        """Return what members have posted of the collective, by name; this node's too."""
        own = self._posted.get(phase)
        found = {} if own is None else {self._own: own}
        for name in self.others:
            record = self._record(name, phase)
            if record is not None:
                found[name] = record
        return found

    def is_missing(self, name: str) -> bool:
        """Tell whether a member is gone, or in a collective that comes after this one.

        On its board, what it said of this one can be read for as long as it is not ready in that.
        If it has sent word, somebody else has stopped before its own was sent to this node, too.
        """
        if self._is_lost(name):
            return True
        heard = self._records.heard(name, ENTERED)
        if heard is not None and heard.view == self.view.identity and heard.number > self.number:
            return True
        posted = self._on_board(name, READY)
        return posted is not None and posted.number > self.number

    def _is_lost(self, name: str) -> bool:
        return self._contacts.is_lost(name, self.life_of(name))

    def _record(self, name: str, phase: int) -> bytes | None:
        for posted in (self._records.heard(name, phase), self._on_board(name, phase)):
            if posted and (posted.view, posted.number) == self.key:
                return posted.record
        return None

    def _on_board(self, name: str, phase: int) -> Posted | None:
        posted = self._records.on_board(name, phase)
        is_member = posted is not None and self.knows(name, self._records.life_of_board(name))
        return posted if is_member else None


REPEAT_S = 0.1  # between two times that a vote is told


class Voting:
    """At most one ballot at a time; used under the lock of its group."""

    def __init__(
        self,
        own_name: str,
        progress: ViewProgress,
        sender: GroupSender,
        join_requests: Callable[[], tuple[Member, ...]],
        clock: Clock,
    ) -> None:
        self.ballot: Ballot | None = None
        self.calls: tuple[int, dict[str, bytes]] | None = None  # see `Group.calls_at_ballot`
        self._own_name = own_name
        self._progress = progress
        self._sender = sender
        self._join_requests = join_requests
        self._clock = clock
        self._told_at = 0.0

    def open(self, *, expired: bool) -> None:
        """Hold a ballot; `expired`: as the time of this node is over."""
        self.ballot = self._new(expired=expired)
        self._tell(self.ballot)

    def close(self) -> None:
        """Hold none any more: it was decided, or this node has no part in it."""
        self.ballot = None

    def suspects(self, name: str) -> bool:
        """Tell whether a member is taken for lost: what it says of an outcome counts no more."""
        return self.ballot is not None and name in self.ballot.suspects

    def hear(self, vote: Vote) -> None:
        ballot = self.ballot
        if ballot is None:
            return
        join_requests = tuple(Member(name, life) for name, life in vote.join_requests)
        stand = Stand(vote.entered, vote.ready, vote.expired, frozenset(vote.seen), join_requests)
        if ballot.hear(vote.name, vote.suspects, stand, self._clock.now()):
            self._tell(ballot)

    def pass_time(self, now: float) -> None:
        """Suspect who is silent for too long, and tell the votes again."""
        ballot = self.ballot
        if ballot is None:
            return
        progress = self._progress
        has_changed = ballot.pass_time(now, progress.lost(), progress.records(ENTERED))
        if has_changed or now - self._told_at >= REPEAT_S:
            self._tell(ballot)

    def leave(self) -> None:
        """Vote against this node itself: it takes no part any more."""
        ballot = self.ballot or self._new(expired=False)
        ballot.suspects.add(self._own_name)
        self._tell(ballot)

    def stay_out(self, vote: Vote) -> None:
        """Tell a member that waits for this node's vote that it takes no part any more."""
        if self._own_name not in vote.suspects and vote.name not in vote.suspects:
            own, names, now = self._own_name, self._progress.view.names, self._clock.now()
            ballot = Ballot(own, names, Stand(entered=False, ready=False), now, {own})
            self._sender.vote([vote.name], (vote.view, vote.number), ballot)

    def _new(self, *, expired: bool) -> Ballot:
        progress = self._progress
        self.calls = progress.number, progress.records(ENTERED)
        seen = frozenset(progress.records(READY))
        requests = self._join_requests()
        stand = Stand(progress.has_entered, progress.is_ready, expired, seen, requests)
        return Ballot(self._own_name, progress.view.names, stand, self._clock.now())

    def _tell(self, ballot: Ballot) -> None:
        self._told_at = self._clock.now()
        self._sender.vote(self._progress.view.names, self._progress.key, ballot)
