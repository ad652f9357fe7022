"""What one node knows of each other one, and the choice of whom to ask, tell about, and try again.

To be pure, the chance comes from the `rng` that is passed in.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgpack

from dpwa.policy.members.probing import LocalHealth, Probe
from dpwa.policy.members.states import Event, MemberEntry, MemberStatus, Times
from dpwa.policy.near_peers import is_among_all

DIGEST_BYTES = 8
MOST_REPEATED = 3  # questions, at once
OTHERS_ASKED = 3  # about a member that is uncertain


@dataclass(eq=False)
class MemberRecord:
    """What is known of one node; mutable.

    Attributes:
        entry: what is said of it.
        since: when it got its status, or was given fresh time.
        tells: how often that is still to be passed on before others.
        probe: whether it answers.
        pause_s: until the trial after the next, of a dead one.
        retry_at: when it is tried next.
    """

    entry: MemberEntry
    since: float
    tells: int = 0
    probe: Probe = field(default_factory=Probe)
    pause_s: float = 0.0
    retry_at: float = 0.0

    def due(self, now: float, times: Times, health: LocalHealth) -> Event | None:
        """Return what has happened to it as time went by, if anything."""
        status = self.entry.status
        if status is MemberStatus.ALIVE:
            return Event.NO_ANSWER if self.probe.has_failed(now, times, health) else None
        event = Event.SUSPICION_TIMED_OUT if status.is_member else Event.TIME_TO_FORGET
        limit_s = times.dead_after_s if status.is_member else times.remember_s
        return event if now - self.since >= limit_s else None

    def give_fresh_time(self, now: float) -> None:
        """Wait for no answer to what it was asked, and begin anew if it is suspected."""
        self.probe.answered()
        self.stays_suspect(now)

    def stays_suspect(self, now: float) -> None:
        """Give it fresh time to contradict, if it is suspected."""
        if self.entry.status is MemberStatus.SUSPECT:
            self.since = now


def digest_of(entries: Iterable[MemberEntry]) -> bytes:
    """Return a digest of those who are members, `DIGEST_BYTES` long.

    Whoever is gone does not count: it is not forgotten everywhere at once.
    """
    packed = msgpack.packb(sorted(entry for entry in entries if entry.status.is_member))
    return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


def to_pass_on(
    records: Iterable[MemberRecord], first: list[MemberEntry], most: int, rng: random.Random
) -> tuple[MemberEntry, ...]:
    """Choose what to pass on, at most so many entries, and note that it was.

    After those that go `first` comes what has changed and was not told often yet. What room is left
    goes to members drawn at random, and then to those who are gone.
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
    """Draw members at random, mostly those that are connected, see `policy.near_peers`."""
    connected = [record for record in members if record.entry.name in near]
    drawn = members if is_among_all(rng) or len(connected) < most else connected
    return rng.sample(drawn, min(most, len(drawn)))


def to_ask(
    records: Iterable[MemberRecord], now: float, rng: random.Random, near: Collection[str] = ()
) -> list[MemberEntry]:
    """Choose a member at random and a few that have not answered, and note the question.

    To ask those again is cheap, and one lost message is no evidence.
    """
    members = [record for record in records if record.entry.status.is_member]
    silent = [record for record in members if record.probe.asked_at is not None]
    chosen = rng.sample(silent, min(MOST_REPEATED, len(silent)))
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
        if not record.probe.is_uncertain(now, times, health):
            certain.append(record)
        elif not record.probe.helpers:
            silent.append(record)
    if not certain:
        return []
    asked = []
    for record in rng.sample(silent, min(MOST_REPEATED, len(silent))):
        helpers = [other.entry.name for other in drawn_from(certain, near, OTHERS_ASKED, rng)]
        record.probe.helpers = frozenset(helpers)
        asked += [(record.entry, helper) for helper in helpers]
    return asked
