"""Whole nodes in virtual time: the very objects of real ones, the same run for the same seed."""

import ast
import logging
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.inside import member_list_of, members_of, threads_of
from support.simulated_nodes import all_know_each_other, nodes_run, open_run, traced

import dpwa
from dpwa.connection import DpwaConnection
from dpwa.membership.members import Members
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.node import Node
from dpwa.node.serving.rx_thread import RxThread
from dpwa.policy.members.states import MemberEntry

PACKAGE = Path(dpwa.__file__).parent
HARSH = {
    "seconds": 10.0,
    "network": {"jitter_ms": 3.0, "loss": 0.05, "partitions": [{"at_s": 2.0, "for_s": 6.5}]},
    "compute": {"step_ms": 200.0, "jitter": 0.3},
    "churn": {"start_spread_s": 1.0, "kill_every_s": 3.0, "return_after_s": 2.0},
}


def test_nodes_agree_and_what_they_do_is_told():
    outcome = nodes_run(4, rounds=30).simulate()
    first, last = outcome.samples[0], outcome.samples[-1]
    assert (first.time_s, first.nodes) == (0.0, 4)
    assert first.variance_ratio == pytest.approx(1.0)
    assert last.round == 30.0
    assert last.variance_ratio < 1e-6
    assert last.time_s == pytest.approx(30 * 0.1, abs=0.05)
    assert [node.name for node in outcome.nodes] == ["n0", "n1", "n2", "n3"]
    for node in outcome.nodes:
        assert node.updates == 30
        assert node.merges >= 28
        assert node.trained_s == pytest.approx(3.0)
    served, merges = (sum(getattr(n, key) for n in outcome.nodes) for key in ("served", "merges"))
    assert served >= merges
    assert sum(n.bytes_sent for n in outcome.nodes) == sum(n.bytes_received for n in outcome.nodes)


def test_nodes_that_average_their_steps_stay_equal_and_who_is_slow_follows():
    compute = {"step_ms": 100.0, "stragglers": [{"nodes": 1, "slower": 10}]}
    run = nodes_run(4, {"algorithm": "together"}, task="quadratic", seconds=12.0, compute=compute)
    outcome = run.simulate()
    slow, *others = sorted(outcome.nodes, key=lambda node: node.updates)
    assert min(node.updates for node in others) > 60
    assert 8 < slow.updates < 16
    indices = [node.index for node in run.nodes if node.name != slow.name]
    assert np.ptp(run.parameters[indices], axis=0).max() == 0.0


@pytest.mark.parametrize(
    "algorithm", ["symmetric", "push_sum", "lsgd", "outer", "noloco", "elastic", "together"]
)
def test_every_algorithm_trains(algorithm):
    outcome = nodes_run(3, {"algorithm": algorithm}, rounds=30, task="quadratic").simulate()
    first, last = outcome.samples[1], outcome.samples[-1]
    assert last.loss < 0.5 * first.loss
    assert all(node.updates == 30 for node in outcome.nodes)


def test_the_same_seed_is_the_same_run_to_the_byte():
    one, again, other = (traced(open_run(4, seed=seed, **HARSH))[1] for seed in (7, 7, 8))
    assert one == again != other


@pytest.mark.slow
@pytest.mark.parametrize("make", ["nodes_run", "open_run"])
def test_the_same_seed_is_the_same_run_in_another_process(make):
    code = (
        f"from support.simulated_nodes import *\nprint(traced({make}(6, seed=7, **{HARSH!r}))[1])"
    )
    environment = {"PYTHONPATH": f"{PACKAGE.parent}:{PACKAGE.parent / 'tests'}"}
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1, found


def test_a_fetch_takes_what_its_bytes_take():
    links = {"upload_mbps": 100, "download_mbps": 100, "latency_ms": 20}
    run = nodes_run(
        2, {"timeout_ms": 60_000}, rounds=5, model_mb=10, network=links, compute={"step_ms": 1.0}
    )
    outcome = run.simulate()
    for node in outcome.nodes:
        # 0.8 s for 10 MB and 0.04 s for headers of packets, and 0.04 s to ask.
        assert node.waited_s / node.merges == pytest.approx(0.88, abs=0.02)
        assert node.bytes_sent == pytest.approx(5 * 10e6 * 1.046, rel=0.01)


def test_nodes_keep_to_their_upload_whatever_their_links_can():
    limit = {"max_upload_mbps": 80, "timeout_ms": 60_000}
    links = {"upload_mbps": 10_000, "download_mbps": 10_000}
    for megabytes in (2.0, 12.0):  # of the larger one, each byte that is sent stands for three
        run = nodes_run(
            2, limit, seconds=20, model_mb=megabytes, network=links, compute={"step_ms": 1.0}
        )
        for node in run.simulate().nodes:
            assert node.bytes_sent / 20 == pytest.approx(10e6 * 1.046, rel=0.15)


def test_what_nodes_do_themselves_takes_time_if_it_is_said_to():
    costs = {"round_ms": 500.0, "publish_ms_per_mb": 10.0, "merge_ms_per_mb": 20.0}
    links = {"upload_mbps": 1e5, "download_mbps": 1e5}
    outcome = nodes_run(
        2, rounds=10, model_mb=2.0, compute={"step_ms": 0.0}, costs=costs, network=links
    ).simulate()
    node = outcome.nodes[0]
    expected_s = 10 * (0.5 + 20e-3) + node.merges * 40e-3
    assert outcome.samples[-1].time_s == pytest.approx(expected_s, rel=0.05)
    assert node.trained_s == pytest.approx(expected_s, rel=0.05)


def test_in_lockstep_nobody_is_ahead_and_else_slow_ones_hold_up_nobody():
    slow = {"stragglers": [{"nodes": 1, "slower": 5.0}]}
    ahead = []

    def run(schedule):
        made = nodes_run(3, seconds=5.0, compute=slow, schedule=schedule, watch=lambda _: look())

        def look():
            updates = [node.updates for node in made.nodes]
            ahead.append(max(updates) - min(updates))
            return True

        return made.simulate()

    assert [node.updates for node in run("lockstep").nodes] == pytest.approx([10] * 3, abs=1)
    assert max(ahead) <= 1
    updates = sorted(node.updates for node in run("asynchronous").nodes)
    assert updates == pytest.approx([10, 49, 49], abs=2)


def test_a_node_that_is_killed_returns_with_what_the_others_have_come_to():
    run = nodes_run(4, seconds=20.0, task="quadratic", churn={"lost": [{"at_s": 5, "share": 0.25}]})
    run.plan_events()
    run.network.run_until(6.0)
    (lost,) = (node for node in run.nodes if not node.lives_now)
    others = [node.connection for node in run.nodes if node.lives_now]
    run.network.run_until(12.0)
    health = {p["name"]: p["health"] for p in others[0].node.report()["peers"]}
    assert health.pop(lost.name) == "unreachable"
    assert set(health.values()) == {"alive"}
    run.start(lost)
    run.network.run_until(14.0)
    assert lost.connection.updates > 100  # its own are 20, and those of its peers
    run.network.run_until(20.0)
    assert all(p["health"] == "alive" for p in others[0].node.report()["peers"])
    outcome = run.end_run()
    assert next(n for n in outcome.nodes if n.name == lost.name).updates < 130
    assert f"{lost.name} is killed" in [text for _, text in outcome.events]


@pytest.mark.parametrize(
    "after_s", [0.0, 0.0011, pytest.param(0.0025, marks=pytest.mark.slow), 0.2, 0.5]
)
def test_a_process_can_be_killed_at_any_moment_and_its_name_is_free_at_once(after_s):
    run = open_run(3, seconds=20.0, compute={"step_ms": 300.0})
    run.plan_events()
    run.network.run_until(1.0)
    for _ in range(2):
        run.start(run.nodes[1])
        run.network.run_for(after_s)
        run.kill(run.nodes[1])
    run.start(run.nodes[1])
    run.network.run_until(8.0)
    assert all_know_each_other(run)
    assert run.nodes[1].has_joined
    run.end_run()


def test_who_leaves_says_goodbye_and_nobody_waits_for_it(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,node,event\n3,1,leave\n")
    run = nodes_run(3, seconds=6.0, churn={"trace": str(trace)})
    run.plan_events()
    run.network.run_until(3.5)
    assert not run.nodes[1].lives_now  # it has not even waited for a second
    report = run.nodes[0].connection.node.report()
    assert {peer["name"]: peer["health"] for peer in report["peers"]}["n1"] == "left"
    run.end_run()


def test_nodes_of_many_start_at_once_and_do_not_all_connect_to_the_same():
    run, told = nodes_run(20, {"connections": 4}, seconds=9.0), Counter()
    run.tcp.tap = lambda time_s, sender, to, frames: told.update([to])
    run.plan_events()
    run.network.run_until(0.35)
    assert {node.updates for node in run.nodes} == {3}  # they waited for nobody
    assert max(told.values()) < 2.5 * sum(told.values()) / len(run.nodes)
    run.end_run()


def test_a_node_that_was_invented_is_gone_within_seconds_and_does_not_come_back():
    run = open_run(4, seconds=60.0, compute={"step_ms": 1000.0})
    run.plan_events()
    run.network.run_until(10.0)
    views = [member_list_of(node.connection) for node in run.nodes]
    for view in views:
        view.receive_entries([MemberEntry("ghost", "tcp://10.9.9.9:7000", 1)])
        assert "ghost" in [entry.name for entry in view.peers]
    run.network.run_until(10.0 + 8.0)
    for _ in range(40):
        assert all(len(view.peers) == 3 for view in views)
        run.network.run_for(1.0)
    run.end_run()


def test_nothing_reaches_out_of_the_simulation(tmp_path, monkeypatch):
    settings = {
        "run_log": str(tmp_path / "log"),
        "state_dir": str(tmp_path / "state"),
        "checkpoint": {"dir": str(tmp_path / "checkpoints"), "every_steps": 1},
        "metrics": {"port": 0},
        "transport": "auto",
    }
    threads = threading.active_count()
    run = open_run(2, settings, seconds=2.0)
    run.plan_events()
    run.network.run_until(2.0)
    assert threading.active_count() == threads
    run.end_run()
    assert list(tmp_path.iterdir()) == []


def test_a_simulation_leaves_the_logging_of_the_process_as_it_was():
    logger, levels = logging.getLogger("dpwa"), []
    before = logger.level
    nodes_run(2, rounds=3, watch=lambda _: levels.append(logger.level) is None).simulate()
    assert set(levels) == {logging.ERROR}
    assert logger.level == before


@pytest.mark.parametrize("settings", [{}, {"initial_state": "own"}])
def test_rounds_are_those_of_all_lives(settings, tmp_path):
    trace = tmp_path / "trace.csv"
    lives = [f"{s}.5,1,kill\n{s}.6,1,start\n" for s in range(2, 30, 2)]
    trace.write_text("".join(["time_s,node,event\n", *lives]))
    run = nodes_run(3, settings, rounds=50, churn={"trace": str(trace)})
    outcome = run.simulate()
    assert [node.updates for node in outcome.nodes] == [50] * 3
    assert run.nodes[1].lives > 2


def test_lives_that_are_shorter_than_all_rounds_come_to_an_end():
    churn = {"kill_every_s": 0.5, "return_after_s": 0.2}
    run = nodes_run(3, {"initial_state": "own"}, rounds=50, seconds=600.0, churn=churn)
    outcome = run.simulate()
    assert outcome.samples[-1].time_s < 60.0
    updates = sorted(node.updates for node in outcome.nodes)
    assert updates[0] > 30  # one that is dead by then is not waited for
    assert updates[-1] == 50


def test_that_nodes_are_there_from_the_beginning_is_no_event(tmp_path):
    assert nodes_run(2, rounds=3).simulate().events == ()
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,node,event\n1,1,start\n")
    outcome = nodes_run(2, seconds=2.0, churn={"trace": str(trace)}).simulate()
    assert [text for _, text in outcome.events] == ["n1 starts"]


# The same classes


def test_simulated_nodes_are_the_very_objects_of_real_ones():
    run = open_run(2, seconds=5.0)
    run.plan_events()
    run.network.run_until(3.0)
    connection = run.nodes[0].connection
    assert type(connection) is DpwaConnection
    node = connection.node
    assert type(node) is Node
    assert type(members_of(connection)) is Members
    assert type(threads_of(node).rx) is RxThread
    assert type(threads_of(node).tx) is TxThread
    assert node.runtime is run.nodes[0].runtime
    run.end_run()


def _classes(room):
    """Names of the classes of a room, and of what they are made of."""
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for item in ast.walk(ast.parse(path.read_text())):
            if isinstance(item, ast.ClassDef):
                yield item.name, {ast.unparse(base).split("[")[0] for base in item.bases}


def test_the_simulator_has_no_class_of_a_node_of_its_own():
    """None is named like one of a node, and none changes what one of a node does."""
    rooms = ("node", "membership", "policy", "algorithms", "transport", "wire")
    rooms += ("collectives", "tables", "sampling")
    real = {name for room in rooms for name, _ in _classes(room) if not name.startswith("_")}
    simulated = [found for found in _classes("sim") if found[0] != "RunOutcome"]  # of a whole run
    assert not real & {name for name, _ in simulated}
    assert not real & set().union(*(bases for _, bases in simulated))
