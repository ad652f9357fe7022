"""A node's knowledge of the others, and its choice of those to ask, to notify, to try again.

Dead nodes are remembered for `remember_s`, and tried again, at first after 1 s, then twice as long
each time, up to 2.5 s, or 30 s if there are 16 or more (`Trials`). When they are forgotten, their
last entry is kept for `tombstone_s` (`Forgotten`), and only newer news of such a node counts. So
old news revives no node, unless a node passes it on that has not listened for that long. Then it
lasts until the dead node does not answer. Gone nodes that this one never knew are forgotten at
once. Each passes on only the deaths of nodes that it knew alive, so that news of them dies out.

The failure detector of one node, without sockets, is that of SWIM (A. Das, I. Gupta, A. Motivala,
2002), with the local health of Lifeguard (A. Dadgar, J. Phillips, J. Currey, 2017):

- A member that was asked and has not been heard from for `ask_others_after_s` is uncertain. A few
  others are asked once to ask it. If one of them hears from it, only the link to it is broken.
- If no node has heard from it `suspect_after_s` after the question, it is suspected.
- A member that refuted a suspicion of this node, without being heard from by it, is given twice as
  much time, then four and eight times.
- A node whose questions stay unanswered, or that is suspected itself, may be the slow one. It gives
  all others more time, at most `LocalHealth.most` times as much, until questions are answered.
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
    """This node's trust in its own questions, as a `factor` of time for all, from 1 to `most`."""

    factor: int = 1
    most: int = 2  # of more, a node that is cut off would hold on to the others for too long

    def worse(self) -> None:
        """Note a question without an answer, or a suspicion of this node."""
        self.factor = min(self.most, self.factor + 1)

    def better(self) -> None:
        self.factor = max(1, self.factor - 1)


@dataclass(eq=False)
class Probe:
    """The question to one member, and its answers. Seconds are of any monotonic clock."""

    heard_at: float = -math.inf  # last; -inf: never
    asked_at: float | None = None  # first since then; `None`: it was not
    helpers: frozenset[str] = frozenset()  # names of those who were asked to ask it since then
    patience: int = 1  # by how much more time it is given than others
    is_accused: bool = False  # this node itself suspects it

    def asked(self, now: float) -> None:
        """Note a question, after which the member should be heard from."""
        if self.asked_at is None:
            self.asked_at = now

    def note_message(self, now: float) -> bool:
        """Note a message of the member. Return whether it was expected."""
        was_awaited = self.asked_at is not None
        self.answered()
        self.heard_at, self.patience, self.is_accused = now, 1, False
        return was_awaited

    def answered(self) -> None:
        self.asked_at, self.helpers = None, frozenset()

    def helped(self, helper: str) -> None:
        """Note that a helper has heard from it, so that a lost connection is no evidence either."""
        if helper in self.helpers:
            self.answered()
            self.patience = max(2, self.patience)

    def contradicted(self) -> None:
        """Note that the member refutes, though this node does not hear from it."""
        self.answered()
        self.is_accused = False
        self.patience = min(MAX_PATIENCE, 2 * self.patience)

    def is_silent(self, now: float, limit_s: float, health: LocalHealth) -> bool:
        """Return whether it has not answered for this long. Some members are given more time."""
        if self.asked_at is None:
            return False
        return now - self.asked_at >= limit_s * max(self.patience, health.factor)


DIGEST_BYTES = 8
MAX_REPEATED = 3  # questions, at once
OTHERS_ASKED = 3  # about a member that is uncertain


@dataclass(eq=False)
class MemberRecord:
    """A node's knowledge of one other node. It is mutable."""

    entry: MemberEntry
    since: float  # when it got its status, or was given fresh time
    tells: int = 0  # how often that is still to be passed on before others
    probe: Probe = field(default_factory=Probe)
    pause_s: float = 0.0  # until the trial after the next, of a dead one
    retry_at: float = 0.0  # when it is tried next

    def check_timeouts(self, now: float, times: Times, health: LocalHealth) -> Event | None:
        """Return the event that is due for it by now, if any."""
        status = self.entry.status
        if status is MemberStatus.ALIVE:
            has_failed = self.probe.is_silent(now, times.suspect_after_s, health)
            return Event.NO_ANSWER if has_failed else None
        event = Event.SUSPICION_TIMED_OUT if status.is_member else Event.TIME_TO_FORGET
        limit_s = times.dead_after_s if status.is_member else times.remember_s
        return event if now - self.since >= limit_s else None

    def give_fresh_time(self, now: float) -> None:
        """Expect no answer to earlier questions, and start the time of a suspect again."""
        self.probe.answered()
        self.stays_suspect(now)

    def stays_suspect(self, now: float) -> None:
        """Give it fresh time to contradict, if it is suspected."""
        if self.entry.status is MemberStatus.SUSPECT:
            self.since = now


def digest_of(entries: Iterable[MemberEntry]) -> bytes:
    """Return a digest of the members, without gone ones, which nodes forget at different times."""
    packed = msgpack.packb(sorted(entry for entry in entries if entry.status.is_member))
    return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


def to_pass_on(
    records: Iterable[MemberRecord], first: list[MemberEntry], most: int, rng: random.Random
) -> tuple[MemberEntry, ...]:
    """Choose at most `most` entries to pass on, and note that they were.

    After the entries that go `first` come changes that were not sent often yet, then random
    members, then nodes that are gone.
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
    """Pick members at random, mostly connected ones, see `policy.near_peers`."""
    connected = [record for record in members if record.entry.name in near]
    drawn = members if is_among_all(rng) or len(connected) < most else connected
    return rng.sample(drawn, min(most, len(drawn)))


def to_ask(
    records: Iterable[MemberRecord], now: float, rng: random.Random, near: Collection[str] = ()
) -> list[MemberEntry]:
    """Choose a member at random and a few that have not answered, and note the question."""
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
    """Choose members that are uncertain, each with others that are not, and note the question."""
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
TRIED_EVERY_S = 0.15  # dead nodes, one after the other: a view of hundreds costs no more


class Trials:
    """The pauses between trials of one node grow, and trials of all of them have a rate."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._next_at = -math.inf

    def pick_due(
        self, records: Iterable[MemberRecord], now: float, rng: random.Random
    ) -> list[MemberEntry]:
        """Choose the dead node that is due and has waited longest, if any, and note that it was
        tried.
        """
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
        # The jitter keeps nodes that died together from being tried together.
        chosen.retry_at = now + rng.uniform(0.5, 1.0) * chosen.pause_s
        return [chosen.entry]


class _Kept(NamedTuple):
    entry: MemberEntry
    until: float


class Forgotten:
    """The last entries of forgotten nodes, for `lasts_s`. It is mutable, without a lock."""

    def __init__(self, lasts_s: float, most: int) -> None:
        self._lasts_s = lasts_s
        self._most = most
        self._entries: dict[str, _Kept] = {}  # the newest last

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
