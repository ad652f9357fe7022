"""Nodes around `Membership` in a virtual network: they gossip, are killed, stopped and restarted.

They do what real nodes do: every half second an exchange with a random peer, news of a change told
at once to three peers, questions on behalf of others, join requests, and a lost connection noticed
within a second, if the host is there to say so.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpwa.clock import AwakeClock
from dpwa.policy.members.states import Event, MemberEntry, MemberStatus, Times
from dpwa.policy.members.view import Membership
from dpwa.virtual_network import Link, VirtualNetwork

TICK_S = 0.25
GOSSIP_S = 0.5
ASK_S = 2.0
AT_ONCE_S = 0.02
FAN_OUT = 3
NOTICE_S = 1.0  # a closed connection, or one that is refused
FULL = 256
CALL_S = 3.0
PROBE_S = 2.0
ASLEEP_S = 2.0


@dataclass(frozen=True)
class WhoIs:
    asker: str


@dataclass(frozen=True)
class Here:
    name: str
    incarnation: int
    endpoint: str


@dataclass(frozen=True)
class Probe:
    asker: str
    target: str
    incarnation: int


@dataclass(frozen=True)
class Heard:
    helper: str
    target: str
    incarnation: int


class Life:
    def __init__(self, cluster, own):
        self.cluster = cluster
        self.network = cluster.network
        self.members = Membership(own, cluster.times)
        self.name = own.name
        self.endpoint = own.endpoint
        self.is_over = False
        self.is_stopped = False
        self._clock = AwakeClock(self.network.clock, 2 * TICK_S, ASLEEP_S)
        self._inbox = []
        self._probes = []  # that others have asked this node for, and until when
        self._calls = {}  # what each claim is waiting for, by endpoint
        self._is_telling = False
        self.network.add(self.endpoint, self._arrive)
        self._repeat(TICK_S, self._tick)
        self._repeat(GOSSIP_S, self._gossip)
        self._repeat(ASK_S, self._ask_to_join)

    @property
    def now(self):
        return self._clock.now()

    def peers(self):
        return {entry.name for entry in self.members.peers}

    def resume(self):
        self.is_stopped = False
        if self.network.rng.random() < 0.5:
            self._tick()
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            self._take(message)

    def lose(self, name):
        self._do(lambda: self._note(self.members.lost(name, self.now)))

    def say(self, endpoint, to=None, most=32, wants_answer=False):
        news = self.members.news(self.network.rng, most, to)
        own = self.members.own
        message = (own, self.members.digest(), news, wants_answer)
        self.network.send(self.endpoint, endpoint, message)
        if to is not None and not self.cluster.is_inhabited(self.endpoint, endpoint):
            self.network.call_later(self.network.rng.uniform(0, NOTICE_S), lambda: self.lose(to))

    def _repeat(self, pause_s, act):
        def again():
            if not self.is_over:
                self._do(act)
                self.network.call_later(pause_s, again)

        self.network.call_later(self.network.rng.uniform(0, pause_s), again)

    def _do(self, act):
        if not self.is_over and not self.is_stopped:
            act()

    def _tick(self):
        if self._clock.look():
            self.members.woke(self.now)
        self._note(self.members.tick(self.now))
        for claim in self.members.to_check(self.now, self.network.rng):
            self._call(claim)
        for entry in self.members.to_retry(self.now, self.network.rng):
            self.say(entry.endpoint, entry.name, wants_answer=True)

    def _gossip(self):
        for peer in self.members.to_ask(self.now, self.network.rng):
            self.say(peer.endpoint, peer.name, wants_answer=True)
        for entry, other in self.members.to_ask_others(self.now, self.network.rng):
            probe = Probe(self.endpoint, entry.name, entry.incarnation)
            self.network.send(self.endpoint, self.members.entry(other).endpoint, probe)

    def _ask_to_join(self):
        known = {self.endpoint, *(entry.endpoint for entry in self.members.peers)}
        for endpoint in self.cluster.join:
            if endpoint not in known:
                self.say(endpoint, wants_answer=True)

    def _call(self, claim):
        if claim.endpoint in self._calls:
            self.members.unchecked(claim)
            return
        self._calls[claim.endpoint] = claim
        self.network.send(self.endpoint, claim.endpoint, WhoIs(self.endpoint))
        is_refused = not self.cluster.is_inhabited(self.endpoint, claim.endpoint)
        self.network.call_later(
            self.network.rng.uniform(0, NOTICE_S) if is_refused else CALL_S,
            lambda: self._give_up(claim),
        )

    def _give_up(self, claim):
        if self.is_stopped:
            self._calls.pop(claim.endpoint, None)
        elif not self.is_over:
            self._called(claim, None)

    def _called(self, claim, incarnation):
        if self._calls.get(claim.endpoint) is claim:
            del self._calls[claim.endpoint]
            self._note(self.members.checked(claim, incarnation, self.now))

    def _answered(self, here):
        claim = self._calls.get(here.endpoint)
        if claim is not None:
            self._called(claim, here.incarnation if here.name == claim.name else None)

    def _arrive(self, _, message):
        if self.is_stopped:
            self._inbox.append(message)
        elif not self.is_over:
            self._take(message)

    def _take(self, message):
        own = self.members.own
        match message:
            case WhoIs(asker):
                here = Here(own.name, own.incarnation, self.endpoint)
                self.network.send(self.endpoint, asker, here)
            case Here():
                self._answered(message)
            case Probe(target=target):
                entry = self.members.entry(target)
                if entry is not None and entry.status.is_member:
                    self._probes.append((message, self.now + PROBE_S))
                    self.say(entry.endpoint, target, wants_answer=True)
            case Heard(helper, target, incarnation):
                self.members.others_heard_from(target, incarnation, helper)
            case _:
                self._trade(*message)

    def _trade(self, sender, digest, news, wants_answer):
        self.members.heard_from(sender.name, sender.incarnation, self.now)
        self._note(self.members.hear(news, self.now))
        waiting, self._probes = self._probes, []
        for probe, until in waiting:
            if probe.target == sender.name:
                heard = Heard(self.name, sender.name, sender.incarnation)
                self.network.send(self.endpoint, probe.asker, heard)
            elif self.now < until:
                self._probes.append((probe, until))
        if wants_answer:
            most = 32 if digest == self.members.digest() else FULL
            self.say(sender.endpoint, sender.name, most)

    def _note(self, changes):
        if changes:
            self.cluster.note(self, changes)
        suspects = [c.entry for c in changes if self._tells(c)]
        if changes and not self._is_telling:
            self._is_telling = True
            self.network.call_later(AT_ONCE_S, lambda: self._do(self._tell))
        for entry in self.network.rng.sample(suspects, min(FAN_OUT, len(suspects))):
            self.say(entry.endpoint, entry.name)

    def _tells(self, change):
        """Whether this node is one of those who tell a suspect what is said of it."""
        is_own = change.why == Event.NO_ANSWER.value
        is_one_of_few = self.network.rng.random() * len(self.members.peers) < FAN_OUT
        return change.after is MemberStatus.SUSPECT and (is_own or is_one_of_few)

    def _tell(self):
        self._is_telling = False
        peers = self.members.peers
        for peer in self.network.rng.sample(peers, min(FAN_OUT, len(peers))):
            self.say(peer.endpoint, peer.name)


class Cluster:
    def __init__(self, seed, times=None, link=None):
        self.network = VirtualNetwork(seed, link or Link(0.001, 0.004))
        self.times = times or Times()
        self.lives = {}  # by name, the last life; it may be over
        self.said = {}  # the version that each life has given itself, by name and incarnation
        self.shown = {}  # what each life has shown last of each node: its stamp, and if it is gone
        self.join = ()
        self.changes = []  # (time, who noticed, change)

    def start(self, name, endpoint=None, incarnation=None):
        if incarnation is None:
            earlier = [i for n, i in self.said if n == name]
            incarnation = max(1 + int(1000 * self.network.clock.now()), *earlier, 0) + 1
        self.said[name, incarnation] = 0
        life = Life(self, MemberEntry(name, endpoint or f"at-{name}", incarnation))
        self.lives[name] = life
        return life

    def start_all(self, names):
        entries = [self.start(name).members.own for name in names]
        for life in self.lives.values():
            life.members.hear(entries, 0.0)
            life.members.news(self.network.rng, FULL)
        self.join = tuple(entry.endpoint for entry in entries[:2])
        for life in self.lives.values():
            for _ in range(64):
                life.members.news(self.network.rng, FULL)

    def living(self):
        return [life for life in self.lives.values() if not life.is_over]

    def kill(self, name):
        """End a process without a word; its host closes the connections."""
        life = self.lives[name]
        life.is_over = True
        for other in self.living():
            if self.network.is_open(other.endpoint, life.endpoint):
                delay_s = self.network.rng.uniform(0.0, NOTICE_S)
                self._notice_later(other, life, delay_s)

    def leave(self, name):
        life = self.lives[name]
        life.members.leave()
        for peer in life.members.peers:
            life.say(peer.endpoint, peer.name)
        life.is_over = True

    def is_inhabited(self, sender, endpoint):
        """Whether a connection is not refused: it may be cut, but then nobody says so."""
        is_near = self.network.is_open(sender, endpoint)
        lives_there = any(life.endpoint == endpoint for life in self.living())
        return lives_there or not is_near

    def agree(self):
        """Whether all views are equal, and exactly the living ones."""
        living = self.living()
        names = {life.name for life in living}
        is_exact = all(life.peers() | {life.name} == names for life in living)
        return is_exact and len({life.members.digest() for life in living}) == 1

    def time_to(self, is_reached, limit_s, step_s=0.05):
        """Seconds until something holds; `inf` if it does not within the limit."""
        began = self.network.clock.now()
        while self.network.clock.now() - began <= limit_s:
            if is_reached():
                return self.network.clock.now() - began
            self.network.run_for(step_s)
        return float("inf")

    def note(self, life, changes):
        """Look at every change of every view: nobody comes back from the dead or speaks for others.

        A view never goes back to an older saying of a node, nor from its end to its life within one
        saying; and no saying is known that the node itself has not made.
        """
        own = life.members.own
        self.said[own.name, own.incarnation] = own.version
        for change in changes:
            self.changes.append((self.network.clock.now(), life.name, change))
            entry = change.entry
            assert entry.version <= self.said[entry.name, entry.incarnation], change
            shown = (entry.stamp, change.after is None or not change.after.is_member)
            assert shown >= self.shown.get((life, entry.name), shown), change
            self.shown[life, entry.name] = shown

    def _notice_later(self, other, life, delay_s):
        incarnation = life.members.own.incarnation

        def notice():
            known = other.members.entry(life.name)
            if known is not None and known.incarnation == incarnation:
                other.lose(life.name)

        self.network.call_later(delay_s, notice)
