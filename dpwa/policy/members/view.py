"""Who is there, known to everybody without a coordinator: nodes come, go, die, and come back.

Each node has a table of all others and passes on what changed, with every message. It is the
membership of SWIM (A. Das, I. Gupta, A. Motivala, 2002): a node that does not answer is suspected
first, the suspicion is passed on, and only if the node does not contradict it in time is it dead.
`policy/members/states.py` has the one table that says what each event makes of an entry.

**News of a node is ordered** by (incarnation, version, status), and older news is ignored, so
order, duplicates and delays of messages make no difference. Only a node itself raises its version:
when it hears that it is suspected, dead, or gone. So two halves of a cluster that took each other
for dead are one again as soon as each has heard what the other says of it. A restarted node has a
higher incarnation and takes the place of the earlier one at once.

**Hearsay of a death is only a suspicion.** Every node waits `dead_after_s` itself before it drops
another one. That is no slower, as suspicions spread faster than that, and when a partition heals,
the news that one half takes the other for dead drops nobody: there is time to contradict it.

**Signs of life.** To hear from a suspect gives it fresh time here; what is passed on remains that
it is suspected, until it contradicts, or others could never agree. `news(to=...)` tells a node
first what is said of itself, so it will. Who contradicted a suspicion of this node without having
been heard from by it (only the link between the two is broken) is given twice as much time, then
four and eight times (as in Lifeguard: A. Dadgar, J. Phillips, J. Currey, 2017).

**A sleeper accuses nobody**: if `tick` comes later than `asleep_after_s` after the one before, this
process was stopped, all peers get fresh time, and no question is taken to be unanswered.

**Forgetting.** Dead nodes are remembered for `remember_s`, and tried again: at first after 1 s,
then twice as long each time, up to 2.5 s, or 30 s if there are 16 or more. When they are forgotten,
a grave remains for `grave_s`: of who lies there, only what is newer is listened to. So old news
brings nobody back, unless somebody passes it on who has not listened for as long as that, or never
did before; then it lasts until the dead node does not answer. Gone nodes that this one never knew
are buried at once: each passes on only the deaths of those whom it knew alive, so that news of them
dies out.

**Lies.** A member can say anything of anybody: keys keep liars out, this table does not. What a lie
can do is bounded. Suspicions, deaths and departures are contradicted by the node itself. Invented
nodes do not answer, so they are gone within seconds, and never more than `most` are kept; until
then they may keep out true ones. That a *member* is another process or elsewhere is a claim
(`policy/members/claims.py`): it is believed only if the process that is meant answers there. So is
what is said of this node itself: only a later process that answers takes its name (`replaced_by`),
and its owner does not fight over it; if none does, a higher incarnation contradicts. There is
always room for that: an incarnation above `HIGHEST_HEARSAY` is a claim whoever it is about, so
hearsay lifts nobody further, and beyond that a node climbs by one for each contradiction.

No clocks are compared, so a node whose clock is wrong can take part; if it was set back between two
lives of a node, the later one takes a higher incarnation than the earlier.

>>> a = Membership(MemberEntry("a", "host-a", incarnation=1))
>>> b = Membership(MemberEntry("b", "host-b", incarnation=1))
>>> [change.why for change in a.hear(b.news(random.Random(1)), now=0.0)]
['it says that it is alive']
>>> a.asked("b", now=1.0)
>>> [now for now in range(1, 10) if a.tick(now)]
[5, 8]
>>> a.remembered
(MemberEntry(name='b', endpoint='host-b', incarnation=1, version=0, status=<MemberStatus.DEAD: 2>),)
>>> [change.why for change in b.hear(a.news(random.Random(1), to="b"), now=9.0)]
['it says that it is alive', 'it contradicts what is said of it']
>>> [entry.version for entry in a.hear(b.news(random.Random(1)), now=9.0) and a.peers]
[1]
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import msgpack

from dpwa.policy.members.claims import Claims, is_claim, is_rival
from dpwa.policy.members.states import (
    HIGHEST,
    HIGHEST_HEARSAY,
    NEWER,
    Change,
    Event,
    MemberEntry,
    MemberStatus,
    Times,
    after,
    news_event,
)

DIGEST_BYTES = 8
MOST_PATIENCE = 8
TELLS = 3  # how often a change is passed on, times log2 of the number of nodes
FEW_REMEMBERED = 16
MOST_REPEATED = 3  # questions, at once


@dataclass(eq=False)
class _Record:
    entry: MemberEntry
    since: float  # when it got its status, or was given fresh time
    tells: int = 0  # how often it is still to be passed on before others
    heard_at: float = -math.inf
    asked_at: float | None = None  # the first question since it was heard from
    patience: int = 1
    is_accused: bool = False  # by this node itself
    pause_s: float = 0.0  # until the trial after the next
    retry_at: float = 0.0


class _Grave(NamedTuple):
    entry: MemberEntry
    until: float


class Membership:
    """What one node knows of itself and of all others.

    It is mutable and has no lock. `now` is in seconds, on any clock that never goes back.

    Args:
        own: this node, ALIVE.
        times: when what happens.
        most: how many other nodes to know, and how many graves to keep. If there are more, the dead
            are forgotten first, and newcomers are not taken in.

    Attributes:
        own: what this node says of itself. Its incarnation may be raised, see `hear`.
        replaced_by: another process that has this node's name and came later; there is no way back.
    """

    def __init__(self, own: MemberEntry, times: Times | None = None, most: int = 4096) -> None:
        self.own = own
        self.replaced_by: MemberEntry | None = None
        self._times = times or Times()
        self._most = most
        self._records: dict[str, _Record] = {}
        self._graves: dict[str, _Grave] = {}
        self._claims = Claims()
        self._ticked_at: float | None = None
        self._digest: bytes | None = None

    @property
    def peers(self) -> tuple[MemberEntry, ...]:
        """All other members, by name: who is alive, or only suspected."""
        return self._known(lambda status: status.is_member)

    @property
    def remembered(self) -> tuple[MemberEntry, ...]:
        """Dead nodes that may come back, by name."""
        return self._known(lambda status: status is MemberStatus.DEAD)

    @property
    def components(self) -> int:
        """How many parts of the cluster are known: 2 if dead nodes are remembered, else 1."""
        return 1 + bool(self.remembered)

    def entry(self, name: str) -> MemberEntry | None:
        """Return what is known of another node; `None` if nothing is."""
        record = self._records.get(name)
        return None if record is None else record.entry

    def digest(self) -> bytes:
        """Digest of the view, `DIGEST_BYTES` long: equal if nodes agree on all members.

        Whoever is gone does not count: it is not forgotten everywhere at once.
        """
        if self._digest is None:
            members = sorted(e for e in (self.own, *self.peers) if e.status.is_member)
            packed = msgpack.packb(members)
            self._digest = hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()
        return self._digest

    # What happens

    def hear(self, news: Iterable[MemberEntry], now: float) -> list[Change]:
        """Take in what a peer passed on, as far as it is news.

        What is said of this node itself is contradicted: a change of its own entry. That a member
        was restarted or is elsewhere is a claim; it changes nothing yet, see `to_check`.

        Args:
            news: foreign; no more than `most` entries are read, and nonsense is ignored.
            now: when it came.
        """
        changes: list[Change] = []
        for entry in islice(news, self._most):
            if not entry.is_sensible:
                continue
            if self._is_claim(entry):
                if entry.status.is_member:
                    self._claims.put(entry, now)
            elif entry.name == self.own.name:
                changes += self._contradict(entry)
            else:
                changes += self.believe(entry, now)
        return changes

    def checked(self, claim: MemberEntry, incarnation: int | None, now: float) -> list[Change]:
        """Take note of who has answered where a claim said that somebody is.

        If a later process has the name of this node, `replaced_by` says so, and the change leads to
        `None`. If not, the claim was of an earlier life of this node, or a lie; both are outlived.

        Args:
            claim: as `to_check` has returned it.
            incarnation: of the process of that name which answered; `None` if there was none.
            now: when it came.
        """
        self._claims.settle(claim.name, now)
        is_there = incarnation is not None and incarnation >= claim.incarnation
        if claim.name != self.own.name:
            return self.believe(claim, now) if is_there else []
        # It may have called itself, by another of its addresses.
        if is_there and incarnation != self.own.incarnation and is_rival(claim, self.own):
            self.replaced_by = claim
            return [Change(claim, self.own.status, None, "another process has this node's name")]
        return self._contradict(claim)

    def unchecked(self, claim: MemberEntry) -> None:
        """Take note that nobody could be called just now to check a claim."""
        self._claims.drop(claim.name)

    def believe(self, news: MemberEntry, now: float) -> list[Change]:
        """Take in news of another node that is certain, such as of one that was called."""
        record = self._records.get(news.name)
        grave = self._graves.get(news.name)
        known = record.entry if record else grave.entry if grave else None
        event = news_event(news, known)
        if event is None:
            return []
        if record is not None:
            return self._take(record, event, now, news)
        return self._meet(news, event, now)

    def outlive(self, news: Iterable[MemberEntry]) -> None:
        """Take a higher incarnation than any that is told of this name.

        For a node that has just been let in: its name was free, so these are earlier lives of it,
        on a host whose clock was ahead.
        """
        told = [e.incarnation for e in news if e.name == self.own.name and e.incarnation < HIGHEST]
        if max(told, default=-1) > self.own.incarnation:
            self.own = self.own._replace(incarnation=max(told) + 1, version=0)
            self._digest = None

    def asked(self, name: str, now: float) -> None:
        """Note that a node was asked something: from now on it should be heard from."""
        record = self._records.get(name)
        if record is not None and record.asked_at is None:
            record.asked_at = now

    def heard_from(self, name: str, incarnation: int, now: float) -> None:
        """Note a message of a node itself. One who is taken for dead must also contradict that."""
        record = self._records.get(name)
        if record is None or record.entry.incarnation != incarnation:
            return
        self._take(record, Event.SIGN_OF_LIFE, now)
        record.heard_at = now
        record.asked_at = None
        record.patience = 1
        record.is_accused = False
        if record.entry.status is MemberStatus.SUSPECT:
            record.since = now

    def heard_at(self, name: str) -> float:
        """Return when a node was last heard from, in this life of it; -inf: never."""
        record = self._records.get(name)
        return -math.inf if record is None else record.heard_at

    def lost(self, name: str, now: float) -> list[Change]:
        """Note that the connection to a node is gone, or that it cannot be reached.

        It is suspected at once; but if it was suspected so before, has contradicted, and was not
        heard from since, that is no more than a question without an answer.
        """
        record = self._records.get(name)
        if record is None:
            return []
        if record.patience > 1:
            self.asked(name, now)
            return []
        return self._accuse(record, now)

    def doubt(self, name: str, now: float) -> list[Change]:
        """Suspect a node whatever it contradicted before, to find out whether it still does."""
        record = self._records.get(name)
        return [] if record is None else self._accuse(record, now)

    def tick(self, now: float) -> list[Change]:
        """Let time pass; to be called at least twice within `asleep_after_s`."""
        if self._ticked_at is not None and now - self._ticked_at > self._times.asleep_after_s:
            self._give_fresh_time(now)
        self._ticked_at = now
        self._graves = {name: grave for name, grave in self._graves.items() if now < grave.until}
        changes: list[Change] = []
        for record in list(self._records.values()):
            changes += self._pass_time(record, now)
        return changes

    def leave(self) -> MemberEntry:
        """Say good-bye: `news` tells it from now on, and nothing is contradicted any more."""
        self.own = self.own._replace(status=MemberStatus.LEFT)
        self._digest = None
        return self.own

    # What to do

    def news(
        self, rng: random.Random, most: int = 32, to: str | None = None
    ) -> tuple[MemberEntry, ...]:
        """Choose what to pass on: each node at most once.

        First this node itself, then what is said of the receiver if that is not that it is alive,
        then what has changed and was not told often yet. What room is left goes to members drawn at
        random, and then to those who are gone.

        Args:
            rng: where the chance comes from.
            most: how many nodes there is room for.
            to: who will read it.
        """
        records = list(self._records.values())
        rng.shuffle(records)
        records.sort(key=lambda r: (-r.tells, not r.entry.status.is_member))
        first = [self.own, *self._to_contradict(to)]
        rest = [record for record in records if record.entry not in first]
        chosen = rest[: max(0, most - len(first))]
        for record in chosen:
            record.tells = max(0, record.tells - 1)
        return (*first, *(record.entry for record in chosen))[:most]

    def to_ask(self, now: float, rng: random.Random) -> list[MemberEntry]:
        """Choose whom to ask for news now, and note that they were asked.

        One peer drawn at random, and a few that have not answered yet: a lost message is no
        evidence. To be called about twice a second; to ask is `news` with a digest.
        """
        peers = [r for r in self._records.values() if r.entry.status.is_member]
        silent = [record for record in peers if record.asked_at is not None]
        chosen = rng.sample(silent, min(MOST_REPEATED, len(silent)))
        drawn = rng.choice(peers) if peers else None
        if drawn is not None and drawn not in chosen:
            chosen.append(drawn)
        for record in chosen:
            self.asked(record.entry.name, now)
        return [record.entry for record in chosen]

    def to_check(self, now: float) -> list[MemberEntry]:
        """Return the claims that are to be checked now: whoever they mean is to be called there.

        What came of each is for `checked`, or `unchecked`.
        """
        is_over = self.own.status is MemberStatus.LEFT or self.replaced_by is not None
        return [] if is_over else self._claims.to_check(now)

    def to_retry(self, now: float, rng: random.Random) -> list[MemberEntry]:
        """Return the dead nodes whose endpoints are to be tried now, and note that they were."""
        dead = [r for r in self._records.values() if r.entry.status is MemberStatus.DEAD]
        is_few = len(dead) < FEW_REMEMBERED
        longest_s = self._times.retry_few_s if is_few else self._times.retry_many_s
        due = [record for record in dead if now >= record.retry_at]
        for record in due:
            record.pause_s = min(longest_s, max(2 * record.pause_s, self._times.retry_first_s))
            # The jitter keeps nodes that died together from being tried together.
            record.retry_at = now + rng.uniform(0.5, 1.0) * record.pause_s
        return [record.entry for record in due]

    # How

    def _is_claim(self, news: MemberEntry) -> bool:
        if news.name == self.own.name:
            return is_rival(news, self.own)
        return is_claim(news, self.entry(news.name))

    def _meet(self, news: MemberEntry, event: Event, now: float) -> list[Change]:
        """Take in a node that is unknown, or bury it."""
        status = after(event, None)
        if status is None:
            if event in NEWER:  # or hearsay of the same death would keep its grave for ever
                self._bury(news, now)
            return []
        changes = self._make_room(now)
        if len(self._records) >= self._most:
            return changes
        self._graves.pop(news.name, None)
        entry = news._replace(status=status)
        self._records[news.name] = _Record(entry, now, self._tells())
        self._digest = None
        return [*changes, Change(entry, None, status, event.value)]

    def _take(
        self, record: _Record, event: Event, now: float, news: MemberEntry | None = None
    ) -> list[Change]:
        """Let the table say what becomes of a known node."""
        known = record.entry
        status = after(event, known.status)
        if status is None:
            return [self._forget(record, event, now)]
        entry = known if news is None or news.stamp == known.stamp else news
        entry = entry._replace(status=status)
        if entry == known:
            return []
        self._renew(record, entry, now)
        is_restarted = entry.incarnation > known.incarnation
        why = "it was restarted" if is_restarted else event.value
        return [Change(entry, known.status, status, why)]

    def _renew(self, record: _Record, entry: MemberEntry, now: float) -> None:
        known = record.entry
        record.entry = entry
        if entry.status is not known.status or entry.stamp != known.stamp:
            record.since = now
        record.tells = self._tells()
        self._digest = None
        if entry.incarnation > known.incarnation:
            record.asked_at, record.patience, record.is_accused = None, 1, False
        elif entry.status is MemberStatus.ALIVE and record.is_accused:
            record.asked_at, record.is_accused = None, False
            record.patience = min(MOST_PATIENCE, 2 * record.patience)
        if entry.status is MemberStatus.DEAD:
            record.pause_s, record.retry_at = 0.0, now + self._times.retry_first_s

    def _accuse(self, record: _Record, now: float) -> list[Change]:
        changes = self._take(record, Event.NO_ANSWER, now)
        record.is_accused = record.is_accused or bool(changes)
        return changes

    def _pass_time(self, record: _Record, now: float) -> list[Change]:
        times, status = self._times, record.entry.status
        if status is MemberStatus.ALIVE:
            limit_s = times.suspect_after_s * record.patience
            is_due = record.asked_at is not None and now - record.asked_at >= limit_s
            return self._accuse(record, now) if is_due else []
        event = Event.SUSPICION_TIMED_OUT if status.is_member else Event.TIME_TO_FORGET
        limit_s = times.dead_after_s if status.is_member else times.remember_s
        return self._take(record, event, now) if now - record.since >= limit_s else []

    def _give_fresh_time(self, now: float) -> None:
        for record in self._records.values():
            record.asked_at = None
            if record.entry.status is MemberStatus.SUSPECT:
                record.since = now

    def _forget(self, record: _Record, event: Event, now: float) -> Change:
        del self._records[record.entry.name]
        self._bury(record.entry, now)
        return Change(record.entry, record.entry.status, None, event.value)

    def _bury(self, entry: MemberEntry, now: float) -> None:
        """Keep of an unknown node what it was that is over; the newest grave stands last."""
        self._graves.pop(entry.name, None)
        if len(self._graves) >= self._most:
            del self._graves[next(iter(self._graves))]
        self._graves[entry.name] = _Grave(entry, now + self._times.grave_s)

    def _make_room(self, now: float) -> list[Change]:
        """If all places are taken, forget who has been gone for the longest time."""
        if len(self._records) < self._most:
            return []
        gone = [r for r in self._records.values() if not r.entry.status.is_member]
        oldest = min(gone, key=lambda r: r.since, default=None)
        return [] if oldest is None else [self._forget(oldest, Event.TIME_TO_FORGET, now)]

    def _contradict(self, news: MemberEntry) -> list[Change]:
        own = self.own
        is_over = own.status is MemberStatus.LEFT or self.replaced_by is not None
        is_wild = news.incarnation > max(own.incarnation, HIGHEST_HEARSAY)  # nobody believes it
        if is_over or is_wild or news.stamp < own.stamp or news == own:
            return []
        # Another process that began in the same millisecond would contradict versions for ever.
        if news.incarnation > own.incarnation or news.version == HIGHEST or is_rival(news, own):
            self.own = own._replace(incarnation=news.incarnation + 1, version=0)
        else:
            self.own = own._replace(version=news.version + 1)
        self._digest = None
        return [Change(self.own, own.status, self.own.status, "it contradicts what is said of it")]

    def _to_contradict(self, name: str | None) -> list[MemberEntry]:
        """What the reader of news has to hear first, if anything."""
        if name is None or name == self.own.name:
            return []
        if name in self._graves:
            return [self._graves[name].entry]
        entry = self.entry(name)
        return [] if entry is None or entry.status is MemberStatus.ALIVE else [entry]

    def _known(self, is_meant: Callable[[MemberStatus], bool]) -> tuple[MemberEntry, ...]:
        entries = (record.entry for record in self._records.values())
        return tuple(sorted(entry for entry in entries if is_meant(entry.status)))

    def _tells(self) -> int:
        return TELLS * (len(self._records) + 1).bit_length()
