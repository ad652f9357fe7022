"""A network of state machines around `Ballot`, in simulated time: kills, stops and slow messages.

Each machine goes through one collective, as the nodes do. A message arrives after a random delay,
those of one pair of nodes in order; what is sent to a stopped node waits for it, what a killed one
has sent last may be lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

from dpwa.policy.ballots import Ballot, Decision, Stand
from dpwa.policy.group_views import Member
from dpwa.virtual_network import VirtualNetwork

TICK_S = (0.01, 0.05)  # between two looks at the clock
VOTE_AGAIN_S = 0.1
MOMENTS = ("time", "enter", "ready", "send", "hear", "vote", "end")


@dataclass(frozen=True)
class Fault:
    """A node is killed (`stop_s` is None) or stopped, at a time or at its n-th event of a kind."""

    name: str
    moment: str
    at_s: float
    nth: int
    stop_s: float | None = None


@dataclass
class Schedule:
    """What happens in one run; seconds from its beginning. Nodes not in `enters_s` never enter."""

    names: tuple[str, ...]
    timeout_s: float
    enters_s: dict[str, float]
    works_s: dict[str, float]
    faults: tuple[Fault, ...] = ()
    delay_s: float = 0.05
    join_requests_s: dict[str, float] = field(default_factory=dict)
    leaves_s: dict[str, float] = field(default_factory=dict)
    has_boards: bool = False  # announcements overtake votes, and are overtaken
    awaits_the_ready: bool = False  # a ballot is held even if one who is gone was ready


class Node:
    def __init__(self, name, network):
        self.name = name
        self.network = network
        self.schedule = network.schedule
        self.entered: set[str] = set()
        self.ready: set[str] = set()
        self.down: set[str] = set()
        self.join_requests: tuple[Member, ...] = ()
        self.deadline = math.inf
        self.called_at: float | None = None
        self.voted_at: float | None = None
        self.ended_at: float | None = None
        self.ballot: Ballot | None = None
        self.decision: Decision | None = None
        self.is_left_behind = False
        self.has_left = False
        self._told = 0.0

    @property
    def is_over(self):
        return self.ended_at is not None

    def enter(self):
        self.called_at = self.network.now
        if self.is_over or self.ballot:
            return
        self.deadline = self.network.now + self.schedule.timeout_s
        self.network.happened(self.name, "enter")
        self._post("entered")
        self.take(self.name, "entered")

    def be_ready(self):
        if self.is_over or self.ballot:
            return
        self.network.happened(self.name, "ready")
        self._post("ready")
        self.take(self.name, "ready")

    def leave(self):
        """Take no part any more, and say so by a vote against oneself."""
        self.has_left = True
        if self.is_over:
            return
        if self.ballot is None:
            self._open()
        assert self.ballot is not None
        self.ballot.suspects.add(self.name)
        self._vote()
        self._end(None)

    def take(self, sender, message):
        """Hear an announcement, a vote (a tuple) or an outcome."""
        self.network.happened(self.name, "hear")
        if message == "entered":
            self._hear_entered(sender)
        elif message == "ready":
            self.ready.add(sender)
            self._end_if_all_are_ready()
        elif isinstance(message, Decision):
            self._hear_outcome(sender, message)
        else:
            self._hear_vote(sender, *message)

    def hear_join_request(self):
        self.join_requests = (Member("newcomer", b"1"),)

    def tick(self):
        if self.is_over:
            return
        if self.ballot is None:
            if self.name in self.entered and (self._is_expired() or self.down & self._awaited()):
                self._open()
                self._vote()
                self._settle()
            return
        now = self.network.now
        has_changed = self.ballot.pass_time(now, self.down, self.entered)
        if has_changed or now - self._told >= VOTE_AGAIN_S:
            self._vote()
        self._settle()

    def _is_expired(self):
        return self.network.now >= self.deadline

    def _awaited(self):
        return set(self.schedule.names) - (set() if self.schedule.awaits_the_ready else self.ready)

    def _hear_entered(self, sender):
        self.entered.add(sender)
        if len(self.entered) == len(self.schedule.names):
            self.network.after(self.schedule.works_s[self.name], self.name, self.be_ready)

    def _end_if_all_are_ready(self):
        if self.ballot is None and len(self.ready) == len(self.schedule.names):
            self._end(Decision(True))

    def _open(self):
        stand = Stand(
            self.name in self.entered,
            self.name in self.ready,
            self._is_expired(),
            frozenset(self.ready),
            self.join_requests,
        )
        self.voted_at = self.network.now
        self.ballot = Ballot(self.name, self.schedule.names, stand, self.network.now)

    def _vote(self):
        assert self.ballot is not None
        self._told = self.network.now
        self._post((frozenset(self.ballot.suspects), self.ballot.stand))
        self.network.happened(self.name, "vote")

    def _hear_vote(self, sender, suspects, stand):
        if self.is_over:
            if self.decision:
                self.network.send(self.name, sender, self.decision)
                self._learn_of_own_loss(sender, suspects)
            return
        is_new = self.ballot is None
        if is_new:
            self._open()
        assert self.ballot is not None
        if self.ballot.record_vote(sender, suspects, stand, self.network.now) or is_new:
            self._vote()
        self._settle()

    def _hear_outcome(self, sender, outcome):
        if self.is_over:
            self._learn_of_own_loss(sender, outcome.lost)
        elif self.ballot is None or sender not in self.ballot.suspects:
            self._end(outcome)

    def _learn_of_own_loss(self, sender, lost):
        own_lost = self.decision.lost if self.decision else ()
        if self.name in lost and sender not in own_lost:
            self.is_left_behind = True

    def _settle(self):
        assert self.ballot is not None
        if self.ballot.is_left_behind:
            self._end(None)
        elif decision := self.ballot.decision():
            self._end(decision)

    def _end(self, decision):
        self.decision = decision
        self.is_left_behind = decision is None or self.name in decision.lost
        self.ended_at = self.network.now
        self.network.happened(self.name, "end")

    def _post(self, message):
        for name in self.schedule.names:
            if name != self.name:
                self.network.send(self.name, name, message)


class Network(VirtualNetwork):
    def __init__(self, schedule, seed):
        super().__init__(seed)
        self.schedule = schedule
        self.nodes = {name: Node(name, self) for name in schedule.names}
        self.killed = {}
        self.silent = set()  # machines that are gone: no connection was closed
        self.stopped_s = {}  # for how long a node was stopped in all
        self._backlogs = {}
        self._happened = {}
        self._arrivals = {}
        self._cuts = {}
        self._plan()

    @property
    def now(self):
        return self.clock.now()

    def after(self, delay_s, name, act):
        """Let a node do something later: when it runs again if it is stopped, never if killed."""
        self.call_later(delay_s, partial(self._do, name, act))

    def send(self, sender, to, message):
        self._do(sender, partial(self._dispatch, sender, to, message))

    def happened(self, name, moment):
        """Count an event of a node, after which a fault may be due."""
        key = (name, moment)
        self._happened[key] = self._happened.get(key, 0) + 1
        for fault in self.schedule.faults:
            if (fault.name, fault.moment, fault.nth) == (*key, self._happened[key]):
                self._strike(fault)

    def _plan(self):
        schedule = self.schedule
        for name, node in self.nodes.items():
            self.call_later(self.rng.uniform(*TICK_S), partial(self._tick, name))
            for times, act in (
                (schedule.enters_s, node.enter),
                (schedule.leaves_s, node.leave),
                (schedule.join_requests_s, node.hear_join_request),
            ):
                if name in times:
                    self.after(times[name], name, act)
        for fault in schedule.faults:
            if fault.moment == "time":
                self.call_later(fault.at_s, partial(self._strike, fault))

    def _do(self, name, act):
        if name in self._backlogs:
            self._backlogs[name].append(act)
        elif name not in self.killed:
            act()

    def _tick(self, name):
        if name in self.killed or self.nodes[name].is_over:
            return
        if name not in self._backlogs:
            self.nodes[name].tick()
        self.call_later(self.rng.uniform(*TICK_S), partial(self._tick, name))

    def _dispatch(self, sender, to, message):
        is_apart = self.schedule.has_boards and isinstance(message, str)
        link = (sender, to, is_apart)
        arrival = self.now + self.rng.uniform(0.0, self.schedule.delay_s)
        self._arrivals[link] = arrival = max(arrival, self._arrivals.get(link, 0.0) + 1e-9)
        self.call_later(arrival - self.now, partial(self._deliver, sender, to, message))
        self.happened(sender, "send")

    def _deliver(self, sender, to, message):
        if self.now <= self._cuts.get(sender, math.inf):
            self._do(to, partial(self.nodes[to].take, sender, message))

    def _strike(self, fault):
        if fault.name in self.killed or fault.name in self._backlogs:
            return
        if fault.stop_s is None:
            self._kill(fault.name)
            return
        self.stopped_s[fault.name] = self.stopped_s.get(fault.name, 0.0) + fault.stop_s
        self._backlogs[fault.name] = []
        self.call_later(fault.stop_s, partial(self._resume, fault.name))

    def _kill(self, name):
        self.killed[name] = self.now
        self._cuts[name] = self.now + self.rng.choice([math.inf, self.rng.random() * 0.05])
        is_silent = self.rng.random() < 0.2
        self.silent |= {name} if is_silent else set()
        for other, node in self.nodes.items():
            last = max(
                self._arrivals.get((name, other, apart), self.now) for apart in (False, True)
            )
            noticed = max(self.now, last) + (60.0 if is_silent else self.rng.uniform(0.0, 0.2))
            self.after(noticed - self.now, other, partial(node.down.add, name))

    def _resume(self, name):
        backlog = self._backlogs.pop(name)
        looks_at_clock_first = self.rng.random() < 0.5
        if looks_at_clock_first:
            self._do(name, self.nodes[name].tick)
        for act in backlog:
            self._do(name, act)
