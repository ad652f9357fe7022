"""A node's records of other nodes, and the choice of nodes to ask, to notify and to retry.

Dead nodes are remembered for `remember_s`, and tried again (`Trials`). The first attempt is after
1 s. Each pause is twice as long as the pause before, up to 2.5 s, or up to 30 s if there are 16 or
more dead nodes. The last entry of a forgotten node is kept for `tombstone_s` (`Forgotten`), and
only newer news of such a node counts. Old news can revive a dead node only if it comes from a
node that received no news for all this time. Then the dead node does not answer, and counts as dead
again. Nodes that
left or died before this node knew them are forgotten at once. Each node forwards only the deaths of
nodes that it knew alive, so that news of deaths dies out.

The failure detector of one node, without sockets, is that of SWIM (A. Das, I. Gupta, A. Motivala,
2002), with the local health of Lifeguard (A. Dadgar, J. Phillips, J. Currey, 2017):

- A member that does not answer a question for `ask_others_after_s` is uncertain. Then a few other
  members, the helpers, are asked once to ask it. If a helper hears from it, only the link between
  this node and the member is broken.
- If no node has heard from the member `suspect_after_s` after the question, it is suspected.
- A member that refuted a suspicion of this node, but sent nothing to this node, gets twice as much
  time, then four and eight times as much.
- A node whose questions stay unanswered, or that is suspected itself, may be the slow node. It
  gives all others up to `LocalHealth.most` times as much time, until its questions are answered.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgpack

from dpwa.policy.flow_control import is_among_all
from dpwa.policy.members.states import Event, MemberEntry, MemberStatus, Times

MAX_PATIENCE = 8


@dataclass(eq=False)
class LocalHealth:
    """A factor from 1 to `most`, by which a node that may be slow extends its time limits."""

    factor: int = 1
    most: int = 2  # with more, a node that is cut off would wait for other nodes for too long

    def worse(self) -> None:
        """Raise the factor after an unanswered question, or because a peer suspects this node."""
        self.factor = min(self.most, self.factor + 1)

    def better(self) -> None:
        self.factor = max(1, self.factor - 1)


@dataclass(eq=False)
class Probe:
    """A node's question to one member, and the answers. Times are seconds of a monotonic clock."""

    heard_at: float = -math.inf  # time of the last message; -inf: never
    asked_at: float | None = None  # time of the first question since then; `None`: not asked
    helpers: frozenset[str] = frozenset()  # names of members that were asked to ask it since then
    patience: int = 1  # factor by which this member gets more time
    is_accused: bool = False  # whether this node itself suspects the member

    def asked(self, now: float) -> None:
        """Record the time of a question to the member, unless an earlier question is unanswered."""
        if self.asked_at is None:
            self.asked_at = now

    def note_message(self, now: float) -> bool:
        """Record a message from the member. Return whether a question was unanswered."""
        was_awaited = self.asked_at is not None
        self.answered()
        self.heard_at, self.patience, self.is_accused = now, 1, False
        return was_awaited

    def answered(self) -> None:
        self.asked_at, self.helpers = None, frozenset()

    def helped(self, helper: str) -> None:
        """Record that a helper has reached the member, so at most this node's link is broken."""
        if helper in self.helpers:
            self.answered()
            self.patience = max(2, self.patience)

    def contradicted(self) -> None:
        """Record that the member refuted a suspicion, without a direct message to this node."""
        self.answered()
        self.is_accused = False
        self.patience = min(MAX_PATIENCE, 2 * self.patience)

    def is_silent(self, now: float, limit_s: float, health: LocalHealth) -> bool:
        """Return whether the member has not answered for `limit_s`. Some members get more time."""
        if self.asked_at is None:
            return False
        return now - self.asked_at >= limit_s * max(self.patience, health.factor)


DIGEST_BYTES = 8
MAX_REPEATED = 3  # questions that are repeated at once
OTHERS_ASKED = 3  # helpers for one uncertain member


@dataclass(eq=False)
class MemberRecord:
    """A node's knowledge of one other node. It is mutable."""

    entry: MemberEntry
    since: float  # time when it got its status, or fresh time
    tells: int = 0  # how often this entry is still forwarded before other entries
    probe: Probe = field(default_factory=Probe)
    pause_s: float = 0.0  # of a dead node: pause after the next attempt to reach it
    retry_at: float = 0.0  # time of the next attempt

    def check_timeouts(self, now: float, times: Times, health: LocalHealth) -> Event | None:
        """Return the event that an expired time limit of the recorded node causes, or `None`."""
        status = self.entry.status
        if status is MemberStatus.ALIVE:
            has_failed = self.probe.is_silent(now, times.suspect_after_s, health)
            return Event.NO_ANSWER if has_failed else None
        event = Event.SUSPICION_TIMED_OUT if status.is_member else Event.TIME_TO_FORGET
        limit_s = times.dead_after_s if status.is_member else times.remember_s
        return event if now - self.since >= limit_s else None

    def give_fresh_time(self, now: float) -> None:
        """Drop unanswered questions, and give a suspected node the full time to refute again."""
        self.probe.answered()
        self.stays_suspect(now)

    def stays_suspect(self, now: float) -> None:
        """Restart the time in which the node may refute, if the node is suspected."""
        if self.entry.status is MemberStatus.SUSPECT:
            self.since = now


def digest_of(entries: Iterable[MemberEntry]) -> bytes:
    """Return a digest of live and suspected nodes. Nodes forget ended nodes at different times."""
    packed = msgpack.packb(sorted(entry for entry in entries if entry.status.is_member))
    return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


def to_pass_on(
    records: Iterable[MemberRecord], first: list[MemberEntry], most: int, rng: random.Random
) -> tuple[MemberEntry, ...]:
    """Choose at most `most` entries for a message to a peer, and count them as forwarded.

    The entries in `first` come first. Then come changes that were not forwarded often, random
    members, and nodes that are gone.
    """
    rest = [record for record in records if record.entry not in first]
    rng.shuffle(rest)
    rest.sort(key=lambda r: (-r.tells, not r.entry.status.is_member))
    chosen = rest[: max(0, most - len(first))]
    for record in chosen:
        record.tells = max(0, record.tells - 1)
    return (*first, *(record.entry for record in chosen))[:most]


def drawn_from(
    members: Sequence[MemberRecord], near: Collection[str], most: int, rng: random.Random
) -> list[MemberRecord]:
    """Pick random members, mostly among connected members. See `flow_control.is_among_all`."""
    connected = [record for record in members if record.entry.name in near]
    drawn = members if is_among_all(rng) or len(connected) < most else connected
    return rng.sample(drawn, min(most, len(drawn)))


def to_ask(
    records: Iterable[MemberRecord], now: float, rng: random.Random, near: Collection[str] = ()
) -> list[MemberEntry]:
    """Pick a random member and a few with unanswered questions, and record that they are asked."""
    members = [record for record in records if record.entry.status.is_member]
    silent = [record for record in members if record.probe.asked_at is not None]
    chosen = rng.sample(silent, min(MAX_REPEATED, len(silent)))
    chosen += [each for each in drawn_from(members, near, 1, rng) if each not in chosen]
    for record in chosen:
        record.probe.asked(now)
    return [record.entry for record in chosen]


def to_ask_others(
    records: Iterable[MemberRecord],
    now: float,
    rng: random.Random,
    times: Times,
    health: LocalHealth,
    near: Collection[str] = (),
) -> list[tuple[MemberEntry, str]]:
    """Return pairs of a silent member and a helper to ask that member. Record the helpers."""
    silent, certain = [], []
    for record in records:
        if record.entry.status is not MemberStatus.ALIVE:
            continue
        if not record.probe.is_silent(now, times.ask_others_after_s, health):
            certain.append(record)
        elif not record.probe.helpers:
            silent.append(record)
    if not certain:
        return []
    asked = []
    for record in rng.sample(silent, min(MAX_REPEATED, len(silent))):
        helpers = [other.entry.name for other in drawn_from(certain, near, OTHERS_ASKED, rng)]
        record.probe.helpers = frozenset(helpers)
        asked += [(record.entry, helper) for helper in helpers]
    return asked


FEW_REMEMBERED = 16
TRIED_EVERY_S = 0.15  # one dead node at a time, so that hundreds of dead nodes cost no more


class Trials:
    """Schedule of attempts to reach dead nodes. Pauses grow, and the total rate is limited."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._next_at = -math.inf

    def pick_due(
        self, records: Iterable[MemberRecord], now: float, rng: random.Random
    ) -> list[MemberEntry]:
        """Return the dead node with the most overdue attempt, if any. Schedule the next attempt."""
        if now < self._next_at:
            return []
        dead = [record for record in records if record.entry.status is MemberStatus.DEAD]
        due = [record for record in dead if now >= record.retry_at]
        if not due:
            return []
        self._next_at = now + TRIED_EVERY_S
        chosen = min(due, key=lambda record: record.retry_at)
        times = self._times
        longest_s = times.retry_few_s if len(dead) < FEW_REMEMBERED else times.retry_many_s
        chosen.pause_s = min(longest_s, max(2 * chosen.pause_s, times.retry_first_s))
        # Random pauses, so that nodes that died together are not tried together.
        chosen.retry_at = now + rng.uniform(0.5, 1.0) * chosen.pause_s
        return [chosen.entry]


class _Kept(NamedTuple):
    entry: MemberEntry
    until: float


class Forgotten:
    """The last entries of forgotten nodes, kept for `lasts_s` seconds. Not thread-safe."""

    def __init__(self, lasts_s: float, most: int) -> None:
        self._lasts_s = lasts_s
        self._most = most
        self._entries: dict[str, _Kept] = {}  # the newest is last

    def entry(self, name: str) -> MemberEntry | None:
        kept = self._entries.get(name)
        return None if kept is None else kept.entry

    def keep_entry(self, entry: MemberEntry, now: float) -> None:
        """Keep the last entry of a node."""
        self._entries.pop(entry.name, None)
        if len(self._entries) >= self._most:
            del self._entries[next(iter(self._entries))]
        self._entries[entry.name] = _Kept(entry, now + self._lasts_s)

    def drop(self, name: str) -> None:
        self._entries.pop(name, None)

    def tick(self, now: float) -> None:
        self._entries = {name: kept for name, kept in self._entries.items() if now < kept.until}
