"""Ballots: the members of a collective vote on its outcome and on the exclusion of lost members.

In a collective, each member announces two moments. It has *entered* when it calls the collective.
It is *ready* when it has done its part, and only needs messages of others. A node that knows that
all members are ready has the result. If it does not learn this in time, or if a connection breaks,
it opens a ballot:

- A node that votes makes no more progress. If it was not ready, it will never be ready.
- A member that is silent for too long is suspected. If its connection is lost, it is suspected
  soon. If its connection is up, it is suspected after `STALLED_S`, because a stopped process may
  answer later. Members announce suspicions, and adopt those of others. A node that is suspected
  itself is left behind.
- The ballot is over for a node when all members that it does not suspect have voted with the same
  suspicions. All nodes that get so far with the same survivors have the same stands, so they decide
  alike. The collective holds if every member, including lost ones, is known to have been ready.

All survivors decide alike. If one of them has ended the collective without a ballot, all members
were ready. It answers a vote with that outcome, and no node can decide without this answer. If one
has decided by a ballot, the others need its vote, too, and get its decision instead. A node accepts
neither a vote nor an outcome from a member that it suspects.

A node that was suspected, but is alive, may have ended the collective in either way. The others
report to it that it was left behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dpwa.policy.group_views import Member

STALLED_S = 5.0  # a silent member with a connection is lost after so long
GONE_S = 0.25  # a silent member without a connection is lost after so long
LATE_S = 0.5  # a member that has not entered in time is lost after so long, unless it has since
LONGEST_LOOK_S = GONE_S / 4  # the maximum time that counts between two calls of `pass_time`


@dataclass(frozen=True)
class Silence:
    """Time limits in seconds: a ballot suspects a member that is silent for so long."""

    gone_s: float = GONE_S
    late_s: float = LATE_S
    stalled_s: float = field(default_factory=lambda: STALLED_S)


@dataclass(frozen=True)
class Stand:
    """A member's progress in the collective at the time of its vote."""

    entered: bool  # whether it had called the collective
    ready: bool  # whether it had done its part
    expired: bool = False  # whether its time was over
    seen: tuple[str, ...] = ()  # the members that it knew to be ready
    join_requests: tuple[Member, ...] = ()  # the nodes that ask to be admitted


@dataclass(frozen=True)
class Decision:
    holds: bool  # whether the collective has its result
    lost: tuple[str, ...] = ()  # the members left behind, in order of rank; may include this node
    joiners: tuple[Member, ...] = ()  # the nodes that are admitted


@dataclass
class Ballot:
    """One node's state of a ballot. `members` are in order of rank. `stand` does not change."""

    own: str
    members: tuple[str, ...]
    stand: Stand
    opened: float
    suspects: set[str] = field(default_factory=set)
    silence: Silence = field(default_factory=Silence)
    is_left_behind: bool = False
    _votes: dict[str, tuple[frozenset[str], Stand]] = field(default_factory=dict)
    _waited_s: float = 0.0
    _looked: float = 0.0

    def __post_init__(self) -> None:
        self._looked = self.opened

    def record_vote(self, voter: str, suspects: Iterable[str], stand: Stand, now: float) -> bool:
        """Record a vote. Return whether this node's vote has changed, and must be sent again."""
        theirs = frozenset(suspects)
        if voter in self.suspects or voter not in self.members:
            return False
        if self.own in theirs:
            self.is_left_behind = True
            return False
        self._votes[voter] = theirs, stand
        return self._suspect(theirs, now)

    def pass_time(self, now: float, unreachable: Iterable[str], entered: Iterable[str]) -> bool:
        """Suspect members that are silent for too long. Return whether this node's vote changed.

        Of the time between two calls, at most `LONGEST_LOOK_S` counts. A process that was stopped
        has read no votes, and must not count that time as silence of others. `unreachable` members
        are suspected soon, and other members may be silent for `STALLED_S`. When the time of this
        node is over, members that have not `entered` become suspects after `late_s`.
        """
        self._waited_s += min(now - self._looked, LONGEST_LOOK_S)
        self._looked = now
        silent = set(self.silent())
        if self._waited_s < self.silence.stalled_s:
            due = set(unreachable) if self._waited_s >= self.silence.gone_s else set()
            if (
                self._waited_s >= self.silence.late_s
                and self.stand.expired
                and not self.stand.ready
            ):
                due |= silent - set(entered)
            silent &= due
        return self._suspect(silent, now)

    def silent(self) -> tuple[str, ...]:
        """Return unsuspected members that have not yet voted for the same suspects as this node."""
        suspects = frozenset(self.suspects)
        return tuple(
            name
            for name in self.members
            if name != self.own
            and name not in self.suspects
            and (name not in self._votes or self._votes[name][0] != suspects)
        )

    def decision(self) -> Decision | None:
        """Return the decision on the collective, or `None` while agreeing votes are missing."""
        if self.is_left_behind or self.silent():
            return None
        voters = [name for name in self.members if name not in self.suspects and name != self.own]
        stands = {self.own: self.stand, **{name: self._votes[name][1] for name in voters}}
        ready = {name for name, stand in stands.items() if stand.ready}
        known = ready.union(*(stand.seen for stand in stands.values()))
        holds = ready == stands.keys() and known >= set(self.members)
        lost = set(self.suspects)
        if not holds and any(stand.expired for stand in stands.values()):
            lost |= {name for name, stand in stands.items() if not stand.entered}
        join_requests = {request for stand in stands.values() for request in stand.join_requests}
        in_order = tuple(name for name in self.members if name in lost)
        return Decision(holds, in_order, tuple(sorted(join_requests)))

    def _suspect(self, names: Iterable[str], now: float) -> bool:
        fresh = set(names) - self.suspects
        if fresh:
            self.suspects |= fresh
            self._waited_s, self._looked = 0.0, now
        return bool(fresh)
