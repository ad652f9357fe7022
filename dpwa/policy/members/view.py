"""The members of a cluster. All nodes know them without a coordinator, while nodes come and go.

Each node has a table of all others and forwards changes with every message, as in SWIM (A. Das, I.
Gupta, A. Motivala, 2002). A node that does not answer is first suspected, and the suspicion is
forwarded. Only if the node does not refute the suspicion in time, it is dead.
`policy/members/states.py` has the table with the effect of each event, and
`policy/members/records.py` decides when a node is suspected.

**News of a node is ordered** by (incarnation, version, status). Older news is ignored, so order,
duplicates and delays of messages make no difference. Only a node itself raises its version. It does
so when it learns that it is suspected, dead, or gone. So if two halves of a cluster consider each
other dead, they unite as soon as each half has received the entries of the other half. A restarted
node has a higher incarnation, and replaces its earlier process at once.

**A process that was stopped suspects no node.** When it continues (`woke`), all peers get fresh
time, and no earlier question counts as unanswered.

`now` is in seconds, on any clock that never goes back. Clocks of two nodes are never compared, so a
node whose clock is wrong can take part.

>>> a = Membership(MemberEntry("a", "host-a", incarnation=1))
>>> b = Membership(MemberEntry("b", "host-b", incarnation=1))
>>> [change.why for change in a.receive_entries(b.select_entries(random.Random(1)), now=0.0)]
['it says that it is alive']
>>> a.asked("b", now=1.0)
>>> [now for now in range(1, 10) if a.tick(now)]
[5, 8]
>>> a.remembered
(MemberEntry(name='b', endpoint='host-b', incarnation=1, version=0, status=<MemberStatus.DEAD: 2>),)
>>> said = a.select_entries(random.Random(1), to="b")
>>> [change.why for change in b.receive_entries(said, now=9.0)]
['it says that it is alive', 'it contradicts what is said of it']
>>> answer = b.select_entries(random.Random(1))
>>> [entry.version for entry in a.receive_entries(answer, now=9.0) and a.peers]
[1]

A claim is news, from a third node, that a member is now a different process or at a new endpoint.

Any node can claim this of any other node. So a node calls the claimed endpoint, and believes the
claim only if the process there answers with that name and incarnation. Each check
takes at most `CHECK_WITHIN_S`. Only a few claims, and only one of each name, are checked at the
same time. After a check, no claim of that name is checked for `PAUSE_S`. A true claim that was
dropped arrives again.

Only keys can exclude nodes that lie. But the effect of a lie is bounded. A node itself refutes
suspicions, deaths and departures. Invented nodes do not answer, so they are gone within seconds,
and never more than `most` nodes are kept. If there is no room, further nodes are called, and a node
that answers replaces a node that never did. Only a later process that answers gets this node's own
name (`replaced_by`), and this node does not defend the name. If no process answers, this node
refutes the claim with a higher incarnation. This is always possible, because an incarnation above
`HIGHEST_HEARSAY` is a claim about any node. So hearsay cannot raise an incarnation further, and
beyond that limit a node adds 1 for each refutation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from dpwa.policy.members.records import (
    Forgotten,
    LocalHealth,
    MemberRecord,
    Probe,
    Trials,
    digest_of,
    drawn_from,
    to_ask,
    to_ask_others,
    to_pass_on,
)
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

CHECK_WITHIN_S = 5.0
PAUSE_S = 1.0
MAX_CHECKS = 8  # claims that are checked at the same time
MAX_CLAIMS = 256


def is_claim(news: MemberEntry, known: MemberEntry | None) -> bool:
    """Return whether `news` may replace `known` only after a call to its endpoint confirms it."""
    if known is not None and (news.stamp <= known.stamp or _is_same_process(news, known)):
        return False
    is_member = known is not None and known.status.is_member
    return is_member or news.incarnation > HIGHEST_HEARSAY


def is_rival(news: MemberEntry, own: MemberEntry) -> bool:
    """Return whether `news` is about a later process with this node's name at another endpoint."""
    is_later = news.stamp > own.stamp and news.status.is_member
    return is_later and news.endpoint != own.endpoint


def _is_same_process(one: MemberEntry, other: MemberEntry) -> bool:
    return (one.incarnation, one.endpoint) == (other.incarnation, other.endpoint)


@dataclass
class _Claim:
    entry: MemberEntry
    until: float
    is_asked: bool = False


class Claims:
    """Unverified news (claims) that this node checks by calls, at most one for each node name."""

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}

    def add_claim(self, entry: MemberEntry, now: float) -> None:
        """Queue a claim, unless the queue has a claim for this name. If full, drop the oldest."""
        other = self._claims.get(entry.name)
        if other is not None and now < other.until:
            return
        if other is None and len(self._claims) >= MAX_CLAIMS:
            waiting = next((name for name, c in self._claims.items() if not c.is_asked), None)
            if waiting is None:
                return
            del self._claims[waiting]
        self._claims[entry.name] = _Claim(entry, now + CHECK_WITHIN_S)

    def to_check(self, now: float, rng: random.Random) -> list[MemberEntry]:
        """Return claims whose endpoints to call now, each once. Of many, pick some at random."""
        self._claims = {name: claim for name, claim in self._claims.items() if now < claim.until}
        asked = sum(claim.is_asked for claim in self._claims.values())
        waiting = [claim for claim in self._claims.values() if not claim.is_asked]
        room = max(0, MAX_CHECKS - asked)
        fresh = waiting if len(waiting) <= room else rng.sample(waiting, room)
        for claim in fresh:
            claim.is_asked = True
        return [claim.entry for claim in fresh]

    def settle(self, name: str, now: float) -> None:
        claim = self._claims.get(name)
        if claim is not None:
            claim.until, claim.is_asked = now + PAUSE_S, True

    def drop(self, name: str) -> None:
        self._claims.pop(name, None)


def contradiction(own: MemberEntry, news: MemberEntry) -> MemberEntry | None:
    """Return the entry that refutes `news` about this node, or `None` if no new entry is needed."""
    is_wild = news.incarnation > max(own.incarnation, HIGHEST_HEARSAY)  # no node believes it
    if is_wild or news.stamp < own.stamp or news == own:
        return None
    # Another process that started in the same millisecond would refute versions without end.
    if news.incarnation > own.incarnation or news.version == HIGHEST or is_rival(news, own):
        return own._replace(incarnation=news.incarnation + 1, version=0)
    return own._replace(version=news.version + 1)


def outlived(own: MemberEntry, news: Iterable[MemberEntry]) -> MemberEntry:
    """Return `own`, with its incarnation raised above any higher one of its name in `news`."""
    told = [e.incarnation for e in news if e.name == own.name and e.incarnation < HIGHEST]
    if max(told, default=-1) <= own.incarnation:
        return own
    return own._replace(incarnation=max(told) + 1, version=0)


TELLS = 3  # how often a change is forwarded, times log2 of the number of nodes


class Membership:
    """A node's knowledge of itself and of all other nodes. It is mutable, without a lock.

    At most `most` other nodes are stored, and as many forgotten ones. If there are more, dead nodes
    are forgotten first. Then a node that never answered is forgotten, to make room for a node that
    has answered. A node that is known only by hearsay gets no such room. `near` are the names of
    connected members, which are asked and notified before others. `replaced_by` is a different
    process with this node's name that started later. Once set, it stays.
    """

    def __init__(self, own: MemberEntry, times: Times | None = None, most: int = 4096) -> None:
        self.own = own
        self.near: Collection[str] = ()
        self.replaced_by: MemberEntry | None = None
        self._times = times or Times()
        self._most = most
        self._records: dict[str, MemberRecord] = {}
        self._forgotten = Forgotten(self._times.tombstone_s, most)
        self._health, self._claims, self._newcomers = LocalHealth(), Claims(), Claims()
        self._trials = Trials(self._times)
        self._digest: bytes | None = None
        self._peers: tuple[MemberEntry, ...] | None = None  # cached until a change

    @property
    def peers(self) -> tuple[MemberEntry, ...]:
        """All other members that are alive or suspected, sorted by name."""
        if self._peers is None:
            self._peers = self._known(lambda status: status.is_member)
        return self._peers

    @property
    def remembered(self) -> tuple[MemberEntry, ...]:
        """Entries of dead nodes that this node tries to reach again, sorted by name."""
        return self._known(lambda status: status is MemberStatus.DEAD)

    def entry(self, name: str) -> MemberEntry | None:
        record = self._records.get(name)
        return None if record is None else record.entry

    def digest(self) -> bytes:
        """Return the digest of the member list, equal on nodes that agree. See `digest_of`."""
        if self._digest is None:
            self._digest = digest_of((self.own, *self.peers))
        return self._digest

    # Events

    def receive_entries(self, news: Iterable[MemberEntry], now: float) -> list[Change]:
        """Store those entries from a peer that are newer than this node's records.

        News about this node itself is refuted by a change of its own entry. News of a different
        process or endpoint of a member is a claim, which changes nothing before it is checked, see
        `to_check`. The same holds for a new node if there is no room. At most `most` entries are
        read, and invalid entries are ignored.
        """
        changes: list[Change] = []
        is_crowded = self._is_crowded()
        for entry in islice(news, self._most):
            if not entry.is_sensible:
                continue
            if self._is_claim(entry):
                if entry.status.is_member:
                    self._claims.add_claim(entry, now)
            elif entry.name == self.own.name:
                changes += self._contradict(entry)
            elif is_crowded and entry.status.is_member and entry.name not in self._records:
                self._newcomers.add_claim(entry, now)
            else:
                changes += self._learn(entry, now, is_certain=False)
        return changes

    def checked(self, claim: MemberEntry, incarnation: int | None, now: float) -> list[Change]:
        """Process the answer to a call that checked a claim. `incarnation` `None`: no answer.

        If a later process has the name of this node, it becomes `replaced_by`, and the change has
        `None` as `after`. Otherwise the claim was about an earlier process, or false, and this node
        refutes it.
        """
        for claims in (self._claims, self._newcomers):
            claims.settle(claim.name, now)
        is_there = incarnation is not None and incarnation >= claim.incarnation
        if claim.name != self.own.name:
            return self.believe(claim, now) if is_there else []
        # This node may have called itself, at another of its addresses.
        if is_there and incarnation != self.own.incarnation and is_rival(claim, self.own):
            self.replaced_by = claim
            return [Change(claim, self.own.status, None, "another process has this node's name")]
        return self._contradict(claim)

    def unchecked(self, claim: MemberEntry) -> None:
        """Drop a claim that could not be checked, because this node could not make the call."""
        for claims in (self._claims, self._newcomers):
            claims.drop(claim.name)

    def believe(self, news: MemberEntry, now: float) -> list[Change]:
        """Store a verified entry about another node, for example after a successful call."""
        changes = self._learn(news, now, is_certain=True)
        record = self._records.get(news.name)
        if record is not None and record.entry.incarnation == news.incarnation:
            record.probe.note_message(now)
        return changes

    def _learn(self, news: MemberEntry, now: float, *, is_certain: bool) -> list[Change]:
        record = self._records.get(news.name)
        known = record.entry if record else self._forgotten.entry(news.name)
        event = news_event(news, known)
        if event is None:
            return []
        if record is not None:
            return self._take(record, event, now, news)
        return self._meet(news, event, now, is_certain=is_certain)

    def outlive(self, news: Iterable[MemberEntry]) -> None:
        """Raise this node's incarnation above any higher one of its name in `news`."""
        self.own = outlived(self.own, news)
        self._has_changed()

    def asked(self, name: str, now: float) -> None:
        """Record that this node has asked node `name`, and expects an answer."""
        record = self._records.get(name)
        if record is not None:
            record.probe.asked(now)

    def heard_from(self, name: str, incarnation: int, now: float) -> None:
        """Record a direct message from a node. A node considered dead must also refute that."""
        record = self._records.get(name)
        if record is None or record.entry.incarnation != incarnation:
            return
        self._take(record, Event.SIGN_OF_LIFE, now)
        if record.probe.note_message(now):
            self._health.better()
        record.stays_suspect(now)

    def others_heard_from(self, name: str, incarnation: int, helper: str) -> None:
        """Record a helper's report that this incarnation of node `name` has answered the helper."""
        record = self._records.get(name)
        if record is not None and record.entry.incarnation == incarnation:
            record.probe.helped(helper)

    def heard_at(self, name: str) -> float:
        """Return the time of the last message from a node's current process, or -inf."""
        record = self._records.get(name)
        return -math.inf if record is None else record.probe.heard_at

    def lost(self, name: str, now: float) -> list[Change]:
        """Record that a node is unreachable, for example because the connection was lost.

        The node is suspected at once. If it has refuted such a suspicion before, and was not heard
        from since, the loss counts only as a question without an answer.
        """
        record = self._records.get(name)
        if record is None:
            return []
        if record.probe.patience > 1:
            self.asked(name, now)
            return []
        return self._accuse(record, now)

    def doubt(self, name: str, now: float) -> list[Change]:
        """Suspect a node regardless of earlier refutations, to test whether it refutes again."""
        record = self._records.get(name)
        return [] if record is None else self._accuse(record, now)

    def tick(self, now: float) -> list[Change]:
        """Process the timeouts that are due. Call this several times a second."""
        self._forgotten.tick(now)
        changes: list[Change] = []
        # All are judged with the same local health, which changes only afterwards.
        due = [
            (r, r.check_timeouts(now, self._times, self._health)) for r in self._records.values()
        ]
        for record, event in due:
            if event is Event.NO_ANSWER:
                changes += self._accuse(record, now)
            elif event is not None:
                changes += self._take(record, event, now)
        if any(event is Event.NO_ANSWER for _, event in due):
            self._health.worse()
        return changes

    def woke(self, now: float) -> None:
        """Record that this process was suspended until now, and may have missed answers."""
        for record in self._records.values():
            record.give_fresh_time(now)

    def announce_leave(self) -> MemberEntry:
        """Leave. From now on, `select_entries` announces this, and this node refutes nothing."""
        self.own = self.own._replace(status=MemberStatus.LEFT)
        self._has_changed()
        return self.own

    # Choices

    def select_entries(
        self, rng: random.Random, most: int = 32, to: str | None = None
    ) -> tuple[MemberEntry, ...]:
        """Choose at most `most` entries to forward, at most one for each node.

        The order is this node itself, then the entry of the receiver (`to`) unless it is alive,
        then others, see `to_pass_on`.
        """
        first, said = [self.own], None
        if to is not None and to != self.own.name:
            said = self._forgotten.entry(to) or self.entry(to)
        if said is not None and said.status is not MemberStatus.ALIVE:
            first.append(said)
        return to_pass_on(self._records.values(), first, most, rng)

    def to_ask(self, now: float, rng: random.Random) -> list[MemberEntry]:
        """Choose members to ask now, and record the questions. Call this about twice a second."""
        return to_ask(self._records.values(), now, rng, self.near)

    def to_ask_others(self, now: float, rng: random.Random) -> list[tuple[MemberEntry, str]]:
        """Return pairs of a silent member and a helper to ask that member. Record the helpers."""
        records = self._records.values()
        return to_ask_others(records, now, rng, self._times, self._health, self.near)

    def to_tell(self, rng: random.Random, most: int) -> list[MemberEntry]:
        """Choose random members to notify immediately of changed entries."""
        members = [r for r in self._records.values() if r.entry.status.is_member]
        return [record.entry for record in drawn_from(members, self.near, most, rng)]

    def to_check(self, now: float, rng: random.Random) -> list[MemberEntry]:
        """Return the claims to check now by calls. Pass each result to `checked` or `unchecked`."""
        is_over = self.own.status is MemberStatus.LEFT or self.replaced_by is not None
        if is_over:
            return []
        return [*self._claims.to_check(now, rng), *self._newcomers.to_check(now, rng)]

    def to_retry(self, now: float, rng: random.Random) -> list[MemberEntry]:
        """Return the dead nodes to call again now, and schedule the next attempts."""
        return self._trials.pick_due(self._records.values(), now, rng)

    # Implementation

    def _is_claim(self, news: MemberEntry) -> bool:
        if news.name == self.own.name:
            return is_rival(news, self.own)
        return is_claim(news, self.entry(news.name))

    def _is_crowded(self) -> bool:
        """Return whether the records are full, so that an unknown node must first answer a call."""
        if len(self._records) < self._most:
            return False
        records = self._records.values()
        return all(r.entry.status.is_member for r in records) and self._never_heard() is not None

    def _meet(
        self, news: MemberEntry, event: Event, now: float, *, is_certain: bool
    ) -> list[Change]:
        """Add an unknown node to the records, or store its entry as forgotten if it has ended."""
        status = after(event, None)
        if status is None:
            if event in NEWER:  # otherwise, hearsay of an old death would keep its entry for ever
                self._forgotten.keep_entry(news, now)
            return []
        changes = self._make_room(now, is_certain=is_certain)
        if len(self._records) >= self._most:
            return changes
        self._forgotten.drop(news.name)
        entry = news._replace(status=status)
        self._records[news.name] = MemberRecord(entry, now, self._tells())
        self._has_changed()
        return [*changes, Change(entry, None, status, event.value)]

    def _take(
        self, record: MemberRecord, event: Event, now: float, news: MemberEntry | None = None
    ) -> list[Change]:
        """Apply an event to a known node, by the table of `states.py`."""
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

    def _renew(self, record: MemberRecord, entry: MemberEntry, now: float) -> None:
        known = record.entry
        record.entry = entry
        if entry.status is not known.status or entry.stamp != known.stamp:
            record.since = now
        record.tells = self._tells()
        self._has_changed()
        if entry.incarnation > known.incarnation:
            record.probe = Probe()
        elif entry.status is MemberStatus.ALIVE and record.probe.is_accused:
            record.probe.contradicted()
        if entry.status is MemberStatus.DEAD:
            record.pause_s, record.retry_at = 0.0, now + self._times.retry_first_s

    def _accuse(self, record: MemberRecord, now: float) -> list[Change]:
        changes = self._take(record, Event.NO_ANSWER, now)
        record.probe.is_accused |= bool(changes)
        return changes

    def _forget(self, record: MemberRecord, event: Event, now: float) -> Change:
        del self._records[record.entry.name]
        self._has_changed()
        self._forgotten.keep_entry(record.entry, now)
        return Change(record.entry, record.entry.status, None, event.value)

    def _make_room(self, now: float, *, is_certain: bool) -> list[Change]:
        """If the records are full, forget the node that ended the longest time ago.

        For a node that has answered, also forget a node that never did. It may become known again.
        """
        if len(self._records) < self._most:
            return []
        gone = [r for r in self._records.values() if not r.entry.status.is_member]
        oldest = min(gone, key=lambda r: r.since, default=None)
        if oldest is not None:
            return [self._forget(oldest, Event.TIME_TO_FORGET, now)]
        silent = self._never_heard() if is_certain else None
        if silent is None:
            return []
        del self._records[silent.entry.name]
        return [Change(silent.entry, silent.entry.status, None, "it never answered")]

    def _never_heard(self) -> MemberRecord | None:
        """Return a node that never sent this node a message, preferably a node that was asked."""
        never = [r for r in self._records.values() if r.probe.heard_at == -math.inf]
        return min(never, key=lambda r: (r.probe.asked_at is None, r.since), default=None)

    def _contradict(self, news: MemberEntry) -> list[Change]:
        own = self.own
        is_over = own.status is MemberStatus.LEFT or self.replaced_by is not None
        said = None if is_over else contradiction(own, news)
        if said is None:
            return []
        self.own = said
        self._has_changed()
        if news.status is MemberStatus.SUSPECT:
            self._health.worse()
        return [Change(self.own, own.status, self.own.status, "it contradicts what is said of it")]

    def _known(self, is_meant: Callable[[MemberStatus], bool]) -> tuple[MemberEntry, ...]:
        entries = (record.entry for record in self._records.values())
        return tuple(sorted(entry for entry in entries if is_meant(entry.status)))

    def _has_changed(self) -> None:
        self._digest = self._peers = None

    def _tells(self) -> int:
        return TELLS * (len(self._records) + 1).bit_length()
