"""What is told about settings that work badly: when, with which numbers, and when not."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.algorithms import algorithm, algorithm_names
from dpwa.algorithms.lsgd import LSGDOptions
from dpwa.errors import without_codes
from dpwa.policy.advice import NEAR_LIMIT, Plan, advice, lsgd_kept
from dpwa.policy.interpolation import interpolation, interpolation_names
from dpwa.policy.outer import nesterov_limit, nesterov_radius, noloco_limit, noloco_radius
from dpwa.policy.topology import EdgeList, edges_topology, topology, topology_names

SEED = 17


def plan(nodes=8, *, rule="constant", edges=None, of_topology=None, options=None, **changes):
    """Return the plan of a run with defaults for all that is not given."""
    name, place = changes.pop("algorithm", "gossip"), changes.pop("topology", "random")
    groups = changes.pop("groups", 1)
    found = edges_topology(edges) if edges else topology(place)
    return Plan(
        algorithm=name,
        algorithm_options=algorithm(name).options_model(**(options or {})),
        interpolation=rule,
        interpolation_options=interpolation(rule).options(**changes.pop("of_rule", {})),
        topology=found,
        topology_options=topology("ring").options()
        if edges
        else found.options(**of_topology or {}),
        names=[f"w{number}" for number in range(1, nodes + 1)],
        group_of=changes.pop("group_of", [str(number % groups) for number in range(nodes)]),
        **changes,
    )


def only(found):
    (warning,) = found
    return without_codes(warning)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 64])
def test_defaults_need_no_advice(nodes):
    groups = 2 if nodes >= 4 else 1
    for name, rule in itertools.product(algorithm_names(), interpolation_names()):
        assert advice(plan(nodes, algorithm=name, rule=rule, groups=groups)) == [], (name, rule)


@pytest.mark.parametrize("name", ["gossip", "noloco", "local", "elastic"])
def test_even_topologies_need_no_advice(name):
    for place in sorted(set(topology_names()) - {"star", "file"}):
        assert advice(plan(8, algorithm=name, topology=place)) == [], place


class TestLeaders:
    def test_a_leader_that_nearly_all_is_taken_from_is_told(self):
        warning = only(advice(plan(rule="leader", of_rule={"strength": 0.8})))
        assert warning == (
            "leader.strength 0.8: a node keeps 20% of its distance to the leader from one update "
            "to the next, and so stays about 1 steps from it; recommended is 0.1, which keeps 90% "
            "and makes it 2.3 steps"
        )

    @pytest.mark.parametrize(
        "changes",
        [
            {"rule": "leader", "of_rule": {"strength": 0.5}},
            {"rule": "leader", "of_rule": {"strength": 0.8}, "fetch_probability": 0.5},
            {"rule": "constant", "of_rule": {"value": 1.0}},
            {"algorithm": "lsgd", "options": {"c2": 0.5}},
        ],
    )
    def test_pulls_that_leave_half_of_the_distance_are_not(self, changes):
        assert advice(plan(**changes)) == []

    def test_lsgd_that_copies_the_leader_is_told(self):
        o = {"c1": 0.9, "c2": 0.9, "local_period": 4, "global_period": 4}
        warning = only(advice(plan(4, algorithm="lsgd", options=o)))
        assert warning.startswith("lsgd with c1 0.9, c2 0.9, p1 0.1, p2 0.1: a node keeps 9% of")
        assert "recommended is 0.1, which keeps 81%" in warning

    @pytest.mark.parametrize("nodes", [16, 17])
    def test_periods_in_which_every_node_jumps_at_every_update_are_told(self, nodes):
        warning = only(advice(plan(nodes, algorithm="lsgd", options={"global_period": 16})))
        local, total = (16, 64) if nodes == 16 else (20, 80)
        assert warning == (
            f"lsgd.global_period 16 counts the updates of all {nodes} nodes together: every node "
            f"jumps to the leader at each of its own; recommended is local_period {local} and "
            f"global_period {total}, which is what you get if you set none"
        )
        assert advice(plan(15, algorithm="lsgd", options={"global_period": 16})) == []
        assert advice(plan(nodes, algorithm="lsgd")) == []

    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize(
        ("nodes", "local", "total"), [(2, 4, 16), (4, 4, 16), (16, 4, 16), (64, 4, 16), (1, 1, 5)]
    )
    def test_what_lsgd_keeps_is_what_a_simulation_keeps(self, nodes, local, total, groups):
        """One worker of N, all in turn, with both leaders at 0; over a whole number of periods."""
        o = LSGDOptions(c1=0.2, c2=0.3, p1=0.4, p2=0.5, local_period=local, global_period=total)
        kept, updates = 1.0, 64 * total
        done = {local: 0, total: 0}
        pulls = [1 - o.p2 / max(1, total / nodes), 1 - o.p1 / max(1, local / nodes)][:groups]
        for count in range(nodes, updates + 1, nodes):
            kept *= math.prod(pulls)
            due = [period for period in (local, total) if count // period > done[period]]
            done = {period: count // period for period in done}
            kept *= (1 - o.c2 * (total in due)) * (1 - o.c1 * (local in due and groups > 1))
        assert kept ** (nodes / updates) == pytest.approx(lsgd_kept(o, nodes, groups), rel=1e-9)

    @pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
    def test_the_distance_in_steps_is_that_of_a_simulation(self, kept):
        from dpwa.policy.advice import _reach

        rng, samples = np.random.default_rng(SEED), 20_000
        distance = np.zeros(samples)
        for _ in range(60):  # 0.9^60 = 0.002: as good as settled
            distance = kept * distance + rng.standard_normal(samples)
        deviation = _reach(kept) / np.sqrt(2 * samples)
        assert abs(distance.std() - _reach(kept)) < 5 * deviation + 0.002 * _reach(kept)

    @pytest.mark.parametrize("changes", [{"rule": "leader"}, {"algorithm": "lsgd"}])
    def test_a_leader_by_a_single_loss_is_told(self, changes):
        warning = only(advice(plan(loss_window=1, **changes)))
        assert warning.startswith("loss_window 1: the noise of a single batch decides")
        assert "recommended is 50, with a 7th of the noise" in warning
        assert advice(plan(loss_window=2, **changes)) == []

    def test_without_leaders_the_window_does_not_matter(self):
        assert advice(plan(loss_window=1)) == []


def test_push_sum_that_never_asks_is_told():
    warning = only(advice(plan(algorithm="push_sum", options={"probability": 0})))
    assert warning == (
        "push_sum.probability 0: nobody ever asks for anything, so each node trains alone; "
        "recommended is 0.4"
    )


class TestOuterSteps:
    def test_a_gamma_near_the_limit_is_told(self):
        warning = only(advice(plan(algorithm="noloco", options={"gamma": 1.45})))
        assert warning == (
            "noloco.gamma 1.45 is 97% of the limit 1.5 for alpha 0.5: an outer step leaves 98% of "
            "the disagreement of the nodes; recommended is 0.75, which leaves 71%"
        )
        assert advice(plan(algorithm="noloco", options={"gamma": 1.34})) == []

    def test_a_learning_rate_near_the_limit_is_told(self):
        warning = only(advice(plan(algorithm="local", options={"lr": 0.8, "momentum": 0.9})))
        assert warning.startswith("local.lr 0.8 is 94% of the limit 0.848 for momentum 0.9: an ")
        assert "recommended is 0.42, which leaves 85%" in warning
        assert advice(plan(algorithm="local", options={"lr": 0.7, "momentum": 0.9})) == []

    @given(momentum=st.floats(0.0, 0.99), near=st.floats(NEAR_LIMIT, 1.0))
    def test_half_of_the_limit_is_better_than_near_it(self, momentum, near):
        limit = noloco_limit(momentum)
        assert noloco_radius(momentum, limit / 2) < noloco_radius(momentum, near * limit)
        limit = nesterov_limit(momentum)
        assert nesterov_radius(limit / 2, momentum) < nesterov_radius(near * limit, momentum)


class TestTopologies:
    @pytest.mark.parametrize("name", ["gossip", "noloco", "local"])
    def test_a_star_counts_its_middle_for_half(self, name):
        found = advice(plan(8, algorithm=name, topology="star", of_topology={"center": 2}))
        assert only(found) == (
            "topology star: w3 counts for 50.0% of what all 8 nodes agree on, in place of 12.5%; "
            "recommended is algorithm push_sum or symmetric, which keep the plain mean"
        )

    @pytest.mark.parametrize("name", ["push_sum", "symmetric"])
    def test_what_keeps_the_mean_is_not_told_of_a_star(self, name):
        assert advice(plan(8, algorithm=name, topology="star")) == []

    def test_other_rules_have_no_weights(self):
        assert advice(plan(8, rule="loss", topology="star")) == []

    def test_the_weight_is_what_pulls_agree_on(self):
        """Pulls of one drawn neighbour: on average they end at the mean with these weights."""
        rng, trials = np.random.default_rng(SEED), 4000
        start = np.array([5.0, 1.0, 0.0, 0.0, -1.0])
        x = np.tile(start, (trials, 1))
        rows = np.arange(trials)
        for _ in range(60):
            leaves = x[rows, rng.integers(1, 5, trials)]
            old = x.copy()
            x[:, 0] += 0.3 * (leaves - old[:, 0])
            x[:, 1:] += 0.3 * (old[:, :1] - old[:, 1:])
        agreed = x.mean(axis=1)
        error = agreed.std() / np.sqrt(trials)
        told = only(advice(plan(5, topology="star")))
        percent = re.search(r"counts for (\S+)%", told)[1]
        weight = float(percent) / 100
        expected = weight * start[0] + (1 - weight) * start[1:].mean()
        assert abs(agreed.mean() - expected) < 5 * error

    def test_edges_of_the_users_own_are_judged_as_well(self):
        ways = [("w1", "w2"), ("w1", "w3"), ("w1", "w4"), ("w2", "w3")]
        both = [*ways, *((source, puller) for puller, source in ways)]
        edges = EdgeList.of(("w1", "w2", "w3", "w4"), both)  # weights as the degrees 3, 2, 2, 1
        warning = only(advice(plan(4, edges=edges)))
        assert "w1 counts for 37.5% of what all 4 nodes agree on, in place of 25.0%" in warning

    @pytest.mark.parametrize(("nodes", "rounds", "good"), [(6, 3, "4 or 8"), (9, 4, "8 or 16")])
    def test_one_peer_exponential_is_exact_for_powers_of_two(self, nodes, rounds, good):
        assert only(advice(plan(nodes, topology="one_peer_exponential"))) == (
            f"topology one_peer_exponential with {nodes} nodes: {rounds} rounds do not give the "
            f"exact mean; recommended are {good} nodes, with which they do at factor 0.5"
        )
        assert advice(plan(16, topology="one_peer_exponential")) == []


def test_all_that_is_wrong_is_told_at_once():
    found = advice(plan(8, rule="leader", of_rule={"strength": 1.0}, loss_window=1))
    assert len(found) == 2


def test_a_group_of_one_beside_larger_ones_is_told_of():
    found = advice(plan(4, algorithm="lsgd", group_of=["a", "a", "b", "bb"]))
    assert found == [
        "w3 is the only one of group b, and other groups have up to 2 nodes [DPWA-W055]",
        "w4 is the only one of group bb, and other groups have up to 2 nodes [DPWA-W055]",
    ]
    found = advice(plan(4, algorithm="lsgd", group_of=["a", "a", "a", ""]))
    assert found == [
        "w4 is the only one without a group, and other groups have up to 3 nodes [DPWA-W055]"
    ]
