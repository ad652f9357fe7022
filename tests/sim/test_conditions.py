import itertools
import random

import numpy as np
import pytest
from support.simulations import run_spec

from dpwa.errors import ConfigError
from dpwa.sim.churn import NodeChangeKind
from dpwa.sim.conditions import Conditions


def conditions(nodes, **scenario):
    return Conditions(run_spec(nodes, **scenario))


def test_without_anything_said_all_nodes_are_alike_and_stay():
    calm = conditions(5)
    assert calm.is_calm
    assert {calm.step_s(node, update, 0.0) for node in range(5) for update in range(3)} == {0.1}
    assert calm.upload_bytes_per_s == 1e9 / 8
    assert [(c.time_s, c.node, c.kind) for c in calm.events()] == [
        (0.0, node, NodeChangeKind.START) for node in range(5)
    ]


def test_the_same_seed_draws_the_same_and_another_one_does_not():
    harsh = {
        "compute": {"spread": 0.5, "jitter": 0.2, "stragglers": [{"share": 0.2}]},
        "churn": {"start_spread_s": 5.0, "kill_every_s": 1.0, "return_after_s": 3.0},
        "network": {"unreachable": 0.3},
    }

    def drawn(seed):
        found = conditions(40, seed=seed, **harsh)
        steps = found.steps_s(np.arange(40), np.full(40, 7), 1.0)
        hidden = [found.is_behind_nat(node) for node in range(40)]
        return steps.tolist(), hidden, list(itertools.islice(found.events(), 200))

    assert drawn(1) == drawn(1)
    assert all(one != other for one, other in zip(drawn(1), drawn(2), strict=True))


def test_speeds_are_spread_and_steps_vary_as_said():
    found = conditions(1000, compute={"step_ms": 50, "spread": 0.3, "jitter": 0.4})
    nodes = np.arange(1000)
    logs = np.log([found.steps_s(nodes, np.full(1000, update), 0.0) for update in range(20)])
    assert logs.mean() == pytest.approx(np.log(0.05), abs=0.05)
    assert logs.mean(axis=0).std() == pytest.approx(np.hypot(0.3, 0.4 / 20**0.5), rel=0.1)
    assert (logs - logs.mean(axis=0)).std() == pytest.approx(0.4 * 0.95**0.5, rel=0.02)


def test_stragglers_are_slow_for_their_time():
    slow = {"nodes": 3, "slower": 4.0, "from_s": 10.0, "for_s": 5.0}
    found = conditions(12, compute={"stragglers": [slow]})
    for now, count in ((9.9, 0), (10.0, 3), (14.9, 3), (15.0, 0)):
        steps = [found.step_s(node, 1, now) for node in range(12)]
        assert sorted(steps) == pytest.approx([0.1] * (12 - count) + [0.4] * count)


def test_nodes_are_dealt_to_sites_by_their_shares():
    sites = [{"name": "east", "share": 3}, {"name": "west"}]
    found = conditions(8, network={"sites": sites, "between_sites_latency_ms": 30})
    assert [found.sites[found.site(node)] for node in range(8)] == ["east"] * 6 + ["west"] * 2
    assert found.latency_s(0, 5) == found.latency_s(7, 6) == 0.0005
    assert found.latency_s(0, 6) == 0.03


def test_lost_packets_take_a_round_trip_each():
    found = conditions(2, network={"latency_ms": 10, "jitter_ms": 4, "loss": 0.2})
    rng = random.Random(1)
    mean = sum(found.delay_s(0, 1, rng) for _ in range(5000)) / 5000
    assert mean == pytest.approx(0.01 + 0.002 + 0.02 * 0.25, rel=0.04)
    assert mean == pytest.approx(found.mean_delay_s(np.array([0.01]))[0], rel=0.04)


def test_a_partition_cuts_its_share_off_until_it_heals():
    part = {"at_s": 2.0, "for_s": 3.0, "share": 0.25}
    found = conditions(20, network={"partitions": [part]})
    pairs = list(itertools.permutations(range(20), 2))
    cut = {pair for pair in pairs if found.is_cut(*pair, 2.0)}
    assert len(cut) == 2 * 5 * 15
    assert all(found.is_cut(b, a, 4.9) for a, b in cut)
    assert not any(found.is_cut(*pair, now) for pair in pairs for now in (1.9, 5.0))
    begin, end = found.partition_changes()
    assert (begin[0], len(begin[1]), end[0], end[1]) == (2.0, 5, 5.0, None)


def test_nobody_connects_to_who_is_behind_nat():
    found = conditions(10, network={"unreachable": 0.4})
    hidden = [node for node in range(10) if found.is_behind_nat(node)]
    assert len(hidden) == 4


def test_changes_of_nodes_make_sense_at_any_time():
    churn = {
        "start_spread_s": 4.0,
        "kill_every_s": 0.5,
        "return_after_s": 2.0,
        "lost": [{"at_s": 6.0, "share": 0.5}],
    }
    living, last = set(), 0.0
    counts = dict.fromkeys(NodeChangeKind, 0)
    for change in itertools.islice(conditions(30, churn=churn).events(), 500):
        assert change.time_s >= last
        last = change.time_s
        starts = change.kind in (NodeChangeKind.START, NodeChangeKind.RETURN)
        assert (change.node in living) is not starts
        (living.add if starts else living.remove)(change.node)
        counts[change.kind] += 1
    assert counts[NodeChangeKind.START] == 30
    assert counts[NodeChangeKind.RETURN] > 100


def test_a_trace_says_who_comes_and_goes(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s, node, event\n3.5, 1, kill\n\n2, 2, start\n5, 1, start\n9,0,leave\n")
    changes = [tuple(c) for c in conditions(3, churn={"trace": str(trace)}).events()]
    assert [(time_s, node, kind.name.lower()) for time_s, node, kind in changes] == [
        (0.0, 0, "start"),
        (0.0, 1, "start"),
        (2.0, 2, "start"),
        (3.5, 1, "kill"),
        (5.0, 1, "return"),
        (9.0, 0, "leave"),
    ]


def test_all_mistakes_of_a_trace_are_told_with_their_lines(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("node,time_s,event\n7,1,kill\n1,-1,kill\n1,1,die\n1,x,start\n0,1,kill\n")
    with pytest.raises(ConfigError) as caught:
        conditions(3, churn={"trace": str(trace)}).events()
    assert caught.value.problems == (
        f"{trace}:2:1: node: expected a number from 0 to 2 (got 7)",
        f"{trace}:3:1: time_s: expected seconds from 0 on (got -1)",
        f"{trace}:4:1: event: expected one of start, kill, leave (got die)",
        f"{trace}:5:1: time_s: expected seconds from 0 on (got x)",
    )
    trace.write_text("when,who\n")
    with pytest.raises(ConfigError, match="1:1: expected the columns time_s, node, event"):
        conditions(3, churn={"trace": str(trace)}).events()


def test_one_step_takes_what_it_takes_among_others():
    slow = {"share": 0.5, "from_s": 2.0}
    found = conditions(9, compute={"spread": 0.3, "jitter": 0.4, "stragglers": [slow]})
    for update in (0, 3, 63, 64, 200):
        all_steps = found.steps_s(np.arange(9), np.full(9, update), 2.5)
        assert [found.step_s(node, update, 2.5) for node in range(9)] == all_steps.tolist()


def test_steps_of_each_node_begin_again_with_the_first_where_there_are_more_nodes():
    compute = {"step_ms": 1.0, "spread": 1.0, "steps_ms": [10.0, 20.0, 60.0]}
    conditions = Conditions(run_spec(5, rounds=1, compute=compute))
    taken = [conditions.step_s(node, 0, 0.0) for node in range(5)]
    assert taken == pytest.approx([0.01, 0.02, 0.06, 0.01, 0.02])
    assert conditions.usual_step_s == pytest.approx(0.02)
