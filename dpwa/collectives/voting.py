"""Voting: the ballot that a node holds on the collective under way, and what it tells of it."""

from __future__ import annotations

from collections.abc import Callable

from dpwa.clock import Clock
from dpwa.collectives.group_sender import GroupSender
from dpwa.collectives.phase_records import ENTERED, READY
from dpwa.collectives.view_progress import ViewProgress
from dpwa.policy.groups.ballots import Ballot, Stand
from dpwa.policy.groups.views import Member
from dpwa.wire.collecting import Vote

REPEAT_S = 0.1  # between two times that a vote is told


class Voting:
    """At most one ballot at a time; used under the lock of its group.

    Args:
        own_name: of this node.
        progress: of the members.
        sender: tells them of votes.
        join_requests: returns who wants to be let in.
        clock: time source.

    Attributes:
        ballot: the one under way; `None`: there is none.
        calls: number of the collective and the records of those who had entered it, by name, when
            the last ballot was opened; `None`: none was since this node has entered.
    """

    def __init__(
        self,
        own_name: str,
        progress: ViewProgress,
        sender: GroupSender,
        join_requests: Callable[[], tuple[Member, ...]],
        clock: Clock,
    ) -> None:
        self.ballot: Ballot | None = None
        self.calls: tuple[int, dict[str, bytes]] | None = None
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
        """Take in a vote in the ballot under way."""
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
        has_changed = ballot.pass_time(now, progress.gone(), progress.records(ENTERED))
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
