"""Anything may happen to the members; views never go back, and are equal and true in the end."""

import random
from functools import partial
from unittest import mock

from support.inside import member_list_of

from cases.situation import FORMED_WITHIN_S, WatchedRun, drawn_network
from dpwa.membership.member_list import MemberList
from dpwa.policy.members.states import HIGHEST, MemberEntry, MemberStatus, Times
from dpwa.policy.members.view import Membership
from dpwa.sim.nodes.runtime import EPOCH_S

NODES = 5
STEPS = 12
LONGEST_STEP_S = 10.0
SHORT_STALL_S = 2.0  # in all: a node that has stalled for no longer is dropped by nobody
LONGEST_STALL_S = 12.0
GIVES_UP_AFTER_S = 10.0
CLOCK_IS_BACK_S = 1e6
AGREE_WITHIN_S = 60.0
QUIET_S = 20.0
NOWHERE = "tcp://10.9.9.9:7000"


class WatchedList(MemberList):
    """What a process knows of the members; a case sees every change of it."""

    def __init__(self, case, own, *args):
        super().__init__(own, *args)
        self.case, self.shown = case, {}
        self._members = Membership(own, case.times)
        case.views.append(self)

    def _tell(self, changes):
        self.case.look_at(self, changes)
        super()._tell(changes)


class AnyMembers(WatchedRun):
    """Nodes are killed, leave, stall, are cut off, lied to and started again, in any order.

    In half of the seeds the dead are forgotten soon, but all know all addresses. In the others a
    node that starts again is told one address, and may be at another one itself.

    Args:
        seed: of all chance.
    """

    def __init__(self, seed):
        self._rng = rng = random.Random(f"members {seed}")
        self._forgets = rng.random() < 0.5
        self.times = Times(remember_s=15.0) if self._forgets else Times()
        self._ports, self._told = [7000] * NODES, {}
        self._is_cut = self._was_cut = False
        self._stalled_s = {}  # by name and incarnation
        self.views = []
        self._said = {("ghost", 1): 0}  # the version that each life has given itself
        places = [self._at(index) for index in range(NODES)]
        settings = {"join": places if self._forgets else places[:1], "join_timeout_s": 300.0}
        network = drawn_network(rng)
        super().__init__(NODES, settings, seed=seed, membership="open", network=network)

    def play(self):
        """Let all of it happen; return what promises were broken."""
        with mock.patch("dpwa.membership.members.MemberList", partial(WatchedList, self)):
            self.plan_events()
            if self.must_come_to(lambda: self.all_see(self.names), FORMED_WITHIN_S, "all see all"):
                self._go_on()
            self.end_run()
        return self.broken

    def look_at(self, view, changes):
        """Look at changes of a view: nobody comes back from the dead, or speaks for others.

        A view never goes back to an older saying of a node, nor from its end to its life within one
        saying; no saying is known that the node itself has not made; nobody who is well is dropped.
        """
        for own in (each.own for each in self.views):
            self._said[own.name, own.incarnation] = own.version
        well = set() if self._was_cut else {view.own[0::2] for view in self._living_views()}
        for change in changes:
            entry, life = change.entry, (change.entry.name, change.entry.incarnation)
            if entry.name == view.own.name:  # of two lies at once, it contradicts one by the other
                self._said[life] = entry.version
            if entry.version > self._said.get(life, -1):
                self.breaks(f"{view.own.name} knows what was never said: {change}")
            shown = (entry.stamp, change.after is None or not change.after.is_member)
            if shown < view.shown.get(entry.name, shown):
                self.breaks(f"{view.own.name} goes back to {change}")
            view.shown[entry.name] = shown
            is_well = life in well and self._stalled_s.get(life, 0.0) <= SHORT_STALL_S
            if change.after is MemberStatus.DEAD and is_well:
                self.breaks(f"{view.own.name} drops who is well: {change}")

    def config_of(self, node):
        config = super().config_of(node)
        if node.index not in self._told:
            return config.model_copy(update={"alone": node.index == 0})
        own = config.nodes[0].model_copy(update={"port": self._ports[node.index]})
        told = {"nodes": (own,), "join_timeout_s": GIVES_UP_AFTER_S}
        if not self._forgets:
            told["join"] = (self._told[node.index],)
        return config.model_copy(update=told)

    def work(self, node, runtime, connection):
        """Be a member, and train nothing."""
        node.has_joined = True
        while True:
            runtime.sleep(60.0)

    def _go_on(self):
        acts = [self._end_one, self._start_one, self._stall, self._cut, self._lie, self._disconnect]
        for _ in range(STEPS):
            self._rng.choice(acts)()
            self.until(self.network.clock.now() + self._rng.uniform(0.05, LONGEST_STEP_S))
        self.network.heal()
        self.until(self.network.clock.now() + LONGEST_STALL_S)
        self.must_come_to(self._agree, AGREE_WITHIN_S, "all views are equal and true")
        self.until(self.network.clock.now() + QUIET_S)
        if not self._agree():
            self.breaks(f"they have parted: {[self.sees(node) for node in self.members]}")

    def _at(self, index):
        return f"tcp://10.0.0.{index}:{self._ports[index]}"

    def _living_views(self):
        return [member_list_of(node.connection) for node in self.members]

    def _agree(self):
        """Tell whether all views are equal, and of just those that live."""
        living = {node.name for node in self.nodes if node.lives_now}
        views = self._living_views()
        is_true = self.all_see(living) and not any(view.is_replaced for view in views)
        return is_true and len({view.digest() for view in views}) == 1

    def _end_one(self):
        if len(self.members) > 1:
            end = self._rng.choice([self.kill, self.kill, self.close_node])
            end(self._rng.choice(self.members))

    def _start_one(self):
        gone, members = [node for node in self.nodes if not node.lives_now], self.members
        if not gone or not members:
            return
        node, sender = self._rng.choice(gone), self._rng.choice(members)
        if not self._forgets and not self._is_cut:  # or all might move, on both sides
            self._ports[node.index] += self._rng.random() < 0.3
        self.tcp.hosts[self._at(node.index)] = node.name
        self._told[node.index] = self._at(sender.index)
        self.start(node)
        if self._rng.random() < 0.3:  # its clock was set back
            now = node.runtime.now
            node.runtime.wall_time = lambda: EPOCH_S - CLOCK_IS_BACK_S + now()

    def _stall(self):
        node = self._rng.choice(self.members)
        own = member_list_of(node.connection).own
        stalled_s = self._rng.uniform(0.5, self._rng.choice([SHORT_STALL_S, LONGEST_STALL_S]))
        life = own.name, own.incarnation
        self._stalled_s[life] = self._stalled_s.get(life, 0.0) + stalled_s
        node.runtime.stalled_until = self.network.clock.now() + stalled_s

    def _cut(self):
        if self._is_cut:
            self.network.heal()
        else:
            self.network.partition(self._rng.sample(self.names, self._rng.randint(1, NODES - 1)))
        self._is_cut, self._was_cut = not self._is_cut, True

    def _lie(self):
        """Tell one of them of a node that is not there, and of lives that members do not have."""
        lies = [MemberEntry("ghost", NOWHERE, 1)]
        if self._agree():  # of who is dead a later life is believed, until it does not answer
            for status in MemberStatus:
                name, incarnation = (
                    self._rng.choice(self.members).name,
                    self._rng.randrange(HIGHEST),
                )
                lies.append(MemberEntry(name, NOWHERE, incarnation, self._rng.randrange(9), status))
        self._rng.choice(self._living_views()).receive_entries(lies)

    def _disconnect(self):
        view, other = self._rng.choice(self._living_views()), self._rng.choice(self.names)
        view.lost(other)
