"""Ballots, by which survivors agree on the outcome of a collective, and on the survivors.

A collective has two moments that all members announce: *entered*, and *ready*, when this node has
done its part, and only the messages of the others are missing. A node that knows that all members
are ready has the result. If that knowledge is late, or a connection breaks, a ballot is held:

- A node that votes is frozen. If it was not ready, it will never be. Its `Stand` does not change.
- A member that is silent for too long is suspected, soon if its connection is gone, but only after
  `STALLED_S` if it is up, because a stopped process answers later. Suspicions are announced and
  adopted. A node that is itself suspected has been left behind.
- The ballot is over for a node once all members that it does not suspect have voted with the same
  suspicions. All that get so far among the same survivors have the same stands, so they decide
  alike: the collective holds if every member, lost ones included, is known to have been ready.

Survivors never differ. If one of them has ended the collective without a ballot, all members were
ready. It answers a vote with that outcome, and no node can decide without it. If one has decided by
a ballot, the others need its vote too, and get its decision instead. A node accepts neither a vote
nor an outcome from a member that it suspects.

A node that was suspected and lives may have ended the collective in either way. The others report
to it that it was left behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dpwa.policy.group_views import Member

STALLED_S = 5.0  # after which a member that is silent, though connected, is taken for lost
GONE_S = 0.25  # likewise, one whose connection is gone
LATE_S = 0.5  # likewise, one that has not entered in time, and is lost unless it has
LONGEST_LOOK_S = GONE_S / 4  # of the time between two looks at the clock, what counts at most


@dataclass(frozen=True)
class Silence:
    """The seconds of silence in a ballot after which a member is considered lost."""

    gone_s: float = GONE_S
    late_s: float = LATE_S
    stalled_s: float = field(default_factory=lambda: STALLED_S)


@dataclass(frozen=True)
class Stand:
    """The progress of a member when it voted."""

    entered: bool  # it had called the collective
    ready: bool  # it had done its part
    expired: bool = False  # its time was over
    seen: frozenset[str] = frozenset()  # members that it knew to be ready
    join_requests: tuple[Member, ...] = ()  # nodes that want to be let in


@dataclass(frozen=True)
class Decision:
    holds: bool  # it has its result
    lost: tuple[str, ...] = ()  # left behind, in order of rank; the node itself may be among them
    joiners: tuple[Member, ...] = ()  # who is let in


@dataclass
class Ballot:
    """One node's side of a ballot. `members` are in order of rank, its own `stand` is frozen."""

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
        """Note a vote. Return whether this node's own vote has changed, and must be sent again."""
        theirs = frozenset(suspects)
        if voter in self.suspects or voter not in self.members:
            return False
        if self.own in theirs:
            self.is_left_behind = True
            return False
        self._votes[voter] = theirs, stand
        return self._suspect(theirs, now)

    def pass_time(self, now: float, unreachable: Iterable[str], entered: Iterable[str]) -> bool:
        """Suspect silent members. Return whether that has changed this node's vote.

        Of the time between two calls at most `LONGEST_LOOK_S` counts, because a node that sleeps
        reads no votes, and would find its own silence on waking. Those `unreachable` are doubted
        soon, and all others may be silent for `STALLED_S`. When the time of this node is over,
        members not known to have `entered` are lost if they vote so, and get `late_s`.
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
        """Return the members that have not voted as this node does, except the suspected ones."""
        suspects = frozenset(self.suspects)
        return tuple(
            name
            for name in self.members
            if name != self.own
            and name not in self.suspects
            and (name not in self._votes or self._votes[name][0] != suspects)
        )

    def decision(self) -> Decision | None:
        """Return the decision, or `None` while there is no agreement yet."""
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
