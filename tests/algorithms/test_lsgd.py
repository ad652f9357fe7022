"""LSGD by its algorithm: who is pulled toward whom, when, and how far."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.swarms import LONG_S, Swarm, SwarmSettings

from dpwa.algorithms.lsgd import LSGD, LSGDOptions
from dpwa.policy.leaders import LossReports

SEED = 53
SIZE = 3
LOSSES = (3.0, 4.0, 1.0, 2.0)  # w2 is the best of all, and w0 of the first two


def starts(nodes, seed=SEED):
    return np.random.default_rng(seed).normal(size=(nodes, SIZE))


def swarm_of(losses=LOSSES, groups=(), **options):
    swarm = Swarm("lsgd", starts(len(losses)), SwarmSettings(SEED, groups=groups), **options)
    for worker, loss in zip(swarm.workers, losses, strict=True):
        worker.loss = loss
    return swarm


def run(swarm, rounds):
    for _ in range(rounds):
        swarm.round(lambda worker: worker.loss)


def asked(worker):
    return [ask.peer for ask in worker.asked]


# How far


@given(
    nodes=st.integers(2, 5),
    rounds_between=st.integers(1, 4),
    c=st.floats(0.0, 1.0),
    p=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30)
def test_it_is_the_formula_step_by_step_while_leaders_change(nodes, rounds_between, c, p, seed):
    """With steps at random, and losses at random: another leader in almost every round."""
    rng, period = np.random.default_rng(seed), nodes * rounds_between
    options = {"c2": c, "p2": p, "local_period": period, "global_period": period}
    swarm = Swarm("lsgd", starts(nodes, seed), SwarmSettings(seed), **options)
    x, losses = swarm.x, rng.random(nodes)
    for worker, loss in zip(swarm.workers, losses, strict=True):
        worker.loss = loss
    seen = [None] * nodes

    def train(worker):
        worker.model.array += steps[worker.number]
        return new_losses[worker.number]

    for rounds in range(1, 13):
        steps, new_losses = rng.normal(size=(nodes, SIZE)), rng.random(nodes)
        for i in range(nodes):
            if seen[i] is not None:
                x[i] += p / rounds_between * (seen[i] - x[i])
        published, leader = x.copy(), losses.argmin()
        swarm.round(train)
        is_due = rounds % rounds_between == 0
        for i in range(nodes):
            x[i] += steps[i]
            if is_due:
                seen[i] = published[leader]  # who leads goes on from its own
                x[i] += c * (seen[i] - x[i]) * (i != leader)
        losses = new_losses
        assert swarm.x == pytest.approx(x, rel=1e-11, abs=1e-11)


@given(
    l_comm=st.integers(1, 3),
    g_comm=st.integers(1, 4),
    options=st.fixed_dictionaries(dict.fromkeys(("c1", "c2", "p1", "p2"), st.floats(0.0, 1.0))),
    groups=st.sampled_from(["aabb", "aaaa"]),
    avg_size=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30)
def test_four_workers_go_where_the_program_of_the_paper_takes_them(
    l_comm, g_comm, options, groups, avg_size, seed
):
    """With its options as docs/migration.md hands them on; each loss is told after its step."""
    rng, rounds = np.random.default_rng(seed), 24
    steps, losses = rng.normal(size=(rounds, 4, SIZE)), rng.random((rounds, 4))
    periods = {"local_period": 4 * l_comm, "global_period": 4 * l_comm * g_comm}
    swarm_settings = SwarmSettings(seed, groups=groups, loss_window=avg_size)
    swarm = Swarm("lsgd", starts(4, seed), swarm_settings, **options, **periods)
    x, means, buffers = starts(4, seed), losses.copy(), rng.normal(size=4)
    for worker in swarm.workers:
        worker.buffers.array[...] = buffers[worker.number]
    old = _Program(groups, l_comm, l_comm * g_comm, options)
    for step in range(rounds):
        means[step] = losses[max(0, step + 1 - avg_size) : step + 1].mean(axis=0)
        for worker in swarm.workers:
            worker.model.array += steps[step, worker.number]
            worker.loss = losses[step, worker.number]
        run(swarm, 1)
        old.step(x, steps[step], means[step], buffers)
        assert swarm.x == pytest.approx(x, rel=1e-12, abs=1e-12)
        found = [float(worker.buffers.array[0]) for worker in swarm.workers]
        assert found == pytest.approx(buffers, rel=1e-12, abs=1e-12)


class _Program:
    """What that program does, one worker after the other; its periods are those of one worker."""

    def __init__(self, groups, l_comm, g_comm, options):
        self.groups = np.array(list(groups))
        self.has_local = len(set(groups)) > 1 and l_comm < g_comm
        self.l_comm, self.g_comm = l_comm if self.has_local else g_comm, g_comm
        self.c1, self.c2, self.p1, self.p2 = (options[key] for key in ("c1", "c2", "p1", "p2"))
        self.steps, self.of_all, self.of_group = 0, None, {}

    def step(self, x, steps, losses, buffers):
        self.steps += 1
        for worker, group in enumerate(self.groups):
            x[worker] += steps[worker]
            if self.of_all is not None:
                mix(x[worker], self.of_all, self.p2 / self.g_comm)
            if group in self.of_group:
                mix(x[worker], self.of_group[group], self.p1 / self.l_comm)
        if self.steps % self.l_comm == 0:
            self.communicate(x, losses)
            buffers[...] = buffers.mean()

    def communicate(self, x, losses):
        for group in set(self.groups) if self.has_local else ():
            members = np.flatnonzero(self.groups == group)
            self.of_group[group] = x[members[losses[members].argmin()]].copy()
            for worker in members:
                mix(x[worker], self.of_group[group], self.c1)
        if self.steps % self.g_comm == 0:
            self.of_all = x[losses.argmin()].copy()
            for own in x:
                mix(own, self.of_all, self.c2)


def mix(own, leader, weight):
    own[...] = (1 - weight) * own + weight * leader


def test_the_leader_itself_is_pulled_to_where_it_has_led_from_and_jumps_to_nobody():
    swarm = swarm_of(global_period=4, p2=0.5)
    leader = swarm.workers[2]
    before = leader.x.copy()

    def train(worker):
        worker.model.array += 1.0
        return worker.loss

    for _ in range(20):
        swarm.round(train)
    assert leader.x == pytest.approx(
        before + 0.5 * 19 + 1.0, abs=1e-12
    )  # half of each but the last
    assert leader.merged == []


# Whom, and when


def test_groups_follow_their_own_leaders_and_now_and_then_that_of_all():
    swarm = swarm_of(groups="aabb", local_period=4, global_period=16, c1=0.3, c2=0.7)
    run(swarm, 8)
    first, second, third, fourth = swarm.workers
    assert asked(first) == ["w2"] * 2
    assert asked(second) == ["w0", "w0", "w0", "w0", "w2"] * 2
    assert asked(third) == []
    assert asked(fourth) == ["w2"] * 8
    assert second.merged == [*[("w0", 0.3)] * 4, ("w2", 0.7)] * 2
    both = pytest.approx(1.0 - 0.7 * 0.3)  # of one snapshot
    assert [factor for _, factor in fourth.merged] == [0.3, 0.3, 0.3, both] * 2


@pytest.mark.parametrize(
    ("groups", "local_period", "global_period"), [("", 4, 16), ("aaaa", 4, 16), ("aabb", 16, 16)]
)
def test_with_one_group_or_equal_periods_there_is_the_global_leader_only(
    groups, local_period, global_period
):
    swarm = swarm_of(groups=groups, local_period=local_period, global_period=global_period)
    run(swarm, 8)  # 32 updates of all
    assert [asked(worker) for worker in swarm.workers] == [["w2"] * 2, ["w2"] * 2, [], ["w2"] * 2]


def test_of_equals_all_follow_the_same():
    swarm = swarm_of(losses=(1.0,) * 6, global_period=12)
    run(swarm, 10)
    assert [asked(worker) for worker in swarm.workers] == [[]] + [["w0"] * 5] * 5


@pytest.mark.parametrize(("window", "leader"), [(1, "w3"), (4, "w2")])
def test_one_lucky_loss_makes_a_leader_only_if_the_window_is_as_short(window, leader):
    settings = SwarmSettings(SEED, loss_window=window)
    swarm = Swarm("lsgd", starts(4), settings, local_period=1, global_period=4)
    losses = [[LOSSES[i]] * 3 + [0.5 if i == 3 else LOSSES[i]] for i in range(4)]
    for rounds in range(4):
        for worker in swarm.workers:
            worker.loss = losses[worker.number][rounds]
        run(swarm, 1)
    assert asked(swarm.workers[0]) == ["w2"] * 3 + [leader]


def test_without_a_loss_nobody_leads_and_nobody_is_asked():
    swarm = swarm_of(losses=(None,) * 4, global_period=4)
    run(swarm, 5)
    assert [asked(worker) for worker in swarm.workers] == [[]] * 4


def test_periods_count_the_updates_of_all_so_a_fast_worker_jumps_more_often():
    """One makes half of all updates, and a period is 4 of all.

    After a first round in lockstep, a turn of 6 updates passes one period and a half. The fast one
    sees them all, as it is there at every other update: 29 by its last one. The others make an
    update a turn, and a jump in each: only in its first has `one` to wait, at 6 updates of all.
    """
    swarm = swarm_of(losses=(2.0, 3.0, 4.0, 1.0), local_period=4, global_period=4)
    run(swarm, 1)
    fast, one, two, leader = swarm.workers
    for _ in range(20):
        for worker in (fast, one, fast, two, fast, leader):
            swarm.round(lambda w: w.loss, [worker])
    assert [len(worker.merged) for worker in swarm.workers] == [1 + 29, 1 + 19, 1 + 20, 0]


def test_a_leader_that_changes_is_followed_from_the_next_period_on_and_follows_itself():
    swarm = swarm_of(global_period=8)
    run(swarm, 4)
    swarm.workers[2].loss, swarm.workers[3].loss = 9.0, 0.5
    run(swarm, 4)
    assert [asked(worker) for worker in swarm.workers] == [
        ["w2", "w2", "w3", "w3"],
        ["w2", "w2", "w3", "w3"],
        ["w3", "w3"],
        ["w2", "w2"],
    ]


def leave(swarm, worker):
    swarm.workers.remove(worker)
    for other in swarm.workers:
        other.reports.forget_node(worker.name, swarm.now)


def restart(swarm, worker):
    worker.updates = 0
    worker.reports = LossReports(worker.name, worker.group, incarnation=2, forget_after_s=LONG_S)


@pytest.mark.parametrize("event", [leave, restart])
def test_jumps_go_on_when_a_node_leaves_or_begins_anew(event):
    """Its updates count no more, so the total falls: the next period must not wait for the old."""
    swarm = swarm_of(global_period=8)
    run(swarm, 40)
    event(swarm, swarm.workers[0])
    follower = swarm.workers[-1]
    jumps = len(follower.asked)
    run(swarm, 16)  # at least 5 periods of 8 updates, with three nodes or four
    assert len(follower.asked) >= jumps + 5


# How often, if nothing is set


@pytest.mark.parametrize(
    ("nodes", "periods"),
    [(1, (4, 16)), (4, (4, 16)), (5, (8, 32)), (16, (16, 64)), (64, (64, 256))],
)
def test_periods_that_are_not_set_grow_with_the_number_of_nodes(nodes, periods):
    assert LSGDOptions().periods(nodes) == periods
    assert LSGDOptions(global_period=32).periods(nodes) == (4, 32)
    assert LSGDOptions(local_period=2).periods(nodes) == (2, 16)


@pytest.mark.parametrize("nodes", [4, 16])
def test_by_default_every_node_jumps_every_four_updates_of_its_own(nodes):
    losses = tuple(float(number) for number in range(nodes))
    swarm = swarm_of(losses)
    run(swarm, 16)
    assert {len(asked(worker)) for worker in swarm.workers[1:]} == {4}


def test_nothing_is_due_just_because_there_are_more_or_fewer_nodes():
    class Changing:
        name, nodes, total = "w0", 16, 160.0

        @property
        def peers(self):
            return ["w"] * (self.nodes - 1)

        def total_updates(self):
            return self.total

        def has_groups(self):
            return False

    lsgd, view = LSGD(), Changing()
    assert lsgd._passed(view) == [True]  # two periods of 64
    for nodes in (4, 16, 17, 4):  # 160 updates are 10 periods of 16, or 2 of 80
        view.nodes = nodes
        assert lsgd._passed(view) == []
    view.total = 176.0
    assert lsgd._passed(view) == [True]
