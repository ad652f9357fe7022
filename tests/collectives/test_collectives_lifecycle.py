"""Nodes that start late or never, are closed, interrupted, restarted, or cut off from others."""

import threading
import time

import numpy as np
import pytest
from support.collective_nodes import collective_nodes, met_nodes, rank_of
from support.collective_processes import collective_processes
from support.nodes import at_once, config_of, eventually
from support.ports import free_ports
from support.times import HANGS_AFTER_S, at_most

from dpwa import DpwaConnection
from dpwa.collectives.admission import get_in
from dpwa.collectives.group import Phase
from dpwa.errors import ClosedError, CollectiveTimeoutError, LeftBehindError, PeerLost
from dpwa.policy.group_views import ViewRank

TIMEOUT_S = 0.5
GRACE_S = 1.0


def is_waiting(nodes, name, tag=""):
    """Whether a node has entered a collective, and waits."""
    return nodes[name].collectives.group(tag).phase >= Phase.ENTERED


def timed(call):
    """Return a task that returns how long a call took, and its outcome."""

    def task(node):
        start = time.monotonic()
        try:
            outcome = call(node)
        except Exception as error:  # noqa: BLE001
            outcome = error
        return time.monotonic() - start, outcome

    return task


def assert_lost(outcomes, names, within_s):
    for took_s, outcome in outcomes:
        assert type(outcome) is PeerLost, outcome
        assert outcome.names == tuple(sorted(names))
        assert took_s <= at_most(within_s)


def is_there_again(nodes, name):
    """Let all call until a node that was away takes part; return what all have got then."""

    def call(node):
        while True:
            try:
                value, contributors = node.all_reduce(1.0, timeout_s=5.0)
            except LeftBehindError:
                continue
            if contributors == len(nodes.names):
                return value

    return nodes.each(call) == dict.fromkeys(nodes.names, float(len(nodes.names)))


# Starting


def test_a_first_collective_waits_for_nodes_that_start_late():
    with collective_nodes(3, there=1) as nodes:
        futures = [nodes.begin("w1", lambda node: node.all_reduce(np.ones(5000))[1])]
        for name in ("w2", "w3"):
            eventually(lambda: is_waiting(nodes, nodes.names[-1]))
            nodes.start(name)
            futures.append(nodes.begin(name, lambda node: node.all_reduce(np.ones(5000))[1]))
        assert [future.result(60) for future in futures] == [3, 3, 3]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_node_that_never_starts_is_lost_and_let_in_when_it_does(transport):
    with collective_nodes(3, there=2, transport=transport) as nodes:
        outcomes = nodes.each(timed(lambda node: node.barrier(TIMEOUT_S))).values()
        assert_lost(outcomes, ("w3",), TIMEOUT_S + GRACE_S)
        assert min(took_s for took_s, _ in outcomes) >= TIMEOUT_S
        assert nodes.each(lambda node: node.all_reduce(np.ones(9000))[1]) == {"w1": 2, "w2": 2}
        assert {nodes[name].members for name in nodes.names} == {("w1", "w2")}
        nodes.start("w3")
        assert is_there_again(nodes, "w3")


def test_the_members_that_a_collective_waits_for_are_told(monkeypatch, caplog):
    monkeypatch.setattr("dpwa.collectives.call.SAID_AFTER_S", 0.2)
    with collective_nodes(3, there=2, log_level="warning") as nodes:
        eventually(lambda: nodes["w1"].collectives.contacts.is_up("w2"))
        assert_lost(
            nodes.each(timed(lambda node: node.barrier(TIMEOUT_S)), ["w1"]).values(),
            ("w2", "w3"),
            2.0,
        )
    (said,) = [text for text in caplog.messages if "DPWA-W099" in text]
    waits = "w1: a collective waits for w2, w3 (not connected), at most 0 s more [DPWA-W099]"
    assert said == waits


def test_a_member_that_only_one_side_can_reach_is_told_by_both(monkeypatch, caplog):
    monkeypatch.setattr("dpwa.collectives.call.SAID_AFTER_S", 0.3)
    right, (nobody,) = config_of(2), free_ports(1)
    wrong = {"nodes": [right["nodes"][0], {**right["nodes"][1], "port": nobody}]}

    def call(node):
        with pytest.raises((PeerLost, CollectiveTimeoutError)):
            node.barrier(timeout_s=TIMEOUT_S)

    with DpwaConnection("w1", wrong) as one, DpwaConnection("w2", right) as two:
        eventually(lambda: two.collectives.contacts.is_up("w1"))
        at_once([lambda: call(one), lambda: call(two)])
    said = sorted(text for text in caplog.messages if "DPWA-W099" in text)
    assert [text.partition(", at most")[0] for text in said] == [
        "w1: a collective waits for w2 (not connected)",
        "w2: a collective waits for w1",
    ]


def test_the_timeout_of_the_configuration_counts_unless_one_is_given():
    with collective_nodes(2, there=1, collective_timeout_s=TIMEOUT_S) as nodes:
        assert_lost(nodes.each(timed(lambda node: node.barrier())).values(), ("w2",), 1.5)


def test_a_node_that_is_alone_goes_on_alone():
    with collective_nodes(3, there=1) as nodes:
        node = nodes["w1"]
        with pytest.raises(PeerLost) as lost:
            node.all_reduce(1.0, timeout_s=TIMEOUT_S)
        assert lost.value.names == ("w2", "w3")
        text = "w1 waits in all_reduce sum #1, w2 (not connected), w3 (not connected) have called"
        assert text in str(lost.value)
        assert node.all_reduce(2.0, timeout_s=TIMEOUT_S) == (2.0, 1)
        assert (node.rank, node.world_size, node.members) == (0, 1, ("w1",))


def test_a_node_that_does_not_call_is_lost_although_it_is_there():
    """It did not enter in time: the others go on, and it is told."""
    with met_nodes(3, transport="tcp") as nodes:
        outcomes = nodes.each(timed(lambda node: node.barrier(TIMEOUT_S)), ["w1", "w2"])
        assert_lost(outcomes.values(), ("w3",), TIMEOUT_S + GRACE_S)
        with pytest.raises(LeftBehindError, match="the other nodes have continued without w3"):
            nodes["w3"].barrier(TIMEOUT_S)
        assert is_there_again(nodes, "w3")


def test_nobody_is_lost_if_all_call_within_the_timeout_of_the_first():
    with collective_nodes(2) as nodes:
        first = nodes.begin("w1", lambda node: node.all_reduce(1.0, timeout_s=20.0))
        eventually(lambda: is_waiting(nodes, "w1"))
        assert nodes["w2"].all_reduce(1.0, timeout_s=1e-3 * 20_000) == (2.0, 2)
        assert first.result(60) == (2.0, 2)


def test_who_is_waited_for_in_vain_is_told_of_with_the_call_it_waits_in():
    with met_nodes(3, transport="tcp") as nodes:
        called = {
            "w1": lambda node: node.all_reduce(1.0, timeout_s=TIMEOUT_S),
            "w2": lambda node: node.barrier(3 * TIMEOUT_S, tag="other"),
            "w3": lambda node: node.all_reduce(1.0, timeout_s=TIMEOUT_S),
        }
        waiting = nodes.begin("w2", called["w2"])
        eventually(lambda: "other" in nodes["w1"].collectives.report()["members"])
        outcomes = nodes.outcomes(called["w1"], ["w1", "w3"])
        for outcome in outcomes.values():
            assert type(outcome) is PeerLost
            assert str(outcome) == (
                "w1, w3 wait in all_reduce sum #2 with no tag, w2 waits in barrier #1 with the tag "
                "'other'. Calls with different tags never meet: lost w2 in a collective. The "
                "others continue [DPWA-E228]"
            )
        with pytest.raises(PeerLost, match="w2 waits in barrier #1 with the tag 'other'"):
            waiting.result(20)


def test_a_timeout_of_all_who_are_there_names_what_they_wait_in(monkeypatch):
    with met_nodes(2) as nodes:
        group = nodes["w2"].collectives.group("")
        monkeypatch.setattr(group, "post_ready", lambda record: None)  # it never gets done
        outcomes = nodes.outcomes(lambda node: node.all_reduce(1.0, timeout_s=TIMEOUT_S))
        for outcome in outcomes.values():
            assert type(outcome) is CollectiveTimeoutError
            assert str(outcome).endswith(
                "No node was excluded. w1, w2 wait in all_reduce sum #2 [DPWA-E229]"
            )


def test_a_node_that_can_reach_nobody_to_be_let_in_says_so(monkeypatch):
    with met_nodes(2) as nodes:
        collectives = nodes["w2"].collectives
        group = collectives.group("")
        group.leave_group()
        monkeypatch.setattr(collectives.contacts, "is_up", lambda peer: False)
        # Of somebody who is gone since.
        group.discovery.hear_of_view("w1", ViewRank(1, 1, "w1"))
        with pytest.raises(
            LeftBehindError, match=r"no node admitted w2 again .* cannot reach any other node"
        ):
            get_in(group, 0.1)


# Closing


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_node_that_is_closed_is_lost_at_once_and_let_in_after_its_restart(transport):
    with met_nodes(3, transport=transport) as nodes:
        nodes["w2"].close()
        outcomes = nodes.each(timed(lambda node: node.all_reduce(1)), ["w1", "w3"])
        assert_lost(outcomes.values(), ("w2",), GRACE_S)
        assert nodes.each(lambda node: node.all_reduce(1), ["w1", "w3"]) == {
            "w1": (2, 2),
            "w3": (2, 2),
        }
        nodes.start("w2")
        assert is_there_again(nodes, "w2")


def test_a_collective_in_which_the_node_is_closed_ends_at_once():
    with met_nodes(2) as nodes:
        waiting = nodes.begin("w1", timed(lambda node: node.barrier()))
        eventually(lambda: is_waiting(nodes, "w1"))
        nodes["w1"].close()
        took_s, outcome = waiting.result(60)
        assert type(outcome) is ClosedError, outcome
        assert took_s < at_most(GRACE_S)
        assert_lost(nodes.each(timed(lambda n: n.barrier()), ["w2"]).values(), ("w1",), GRACE_S)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("calls", [0, 4, 11])
def test_a_node_may_be_closed_at_any_moment_of_large_collectives(transport, calls):
    """Its memory is given back while it is read: that ends in `ClosedError`, and nothing else.

    The others get `PeerLost`; or all results, if it was ready in its last collective and they find
    it gone at the end of that.
    """
    done = []

    def call_on(node):
        while True:
            try:
                value, contributors = node.all_reduce(np.full(100_000, 2.0), "max")
            except (ClosedError, PeerLost) as error:
                return error
            if contributors < 3:
                return PeerLost(("w1",), "in a collective that holds")
            done.append(node.name)
            assert (value == 2.0).all()

    with met_nodes(3, transport=transport) as nodes:
        futures = {name: nodes.begin(name, call_on) for name in nodes.names}
        eventually(lambda: len(done) >= calls, every_s=0.0)
        nodes["w1"].close()
        ends = {name: future.result(60) for name, future in futures.items()}
    assert type(ends.pop("w1")) is ClosedError
    for lost in ends.values():
        assert (type(lost), lost.names) == (PeerLost, ("w1",))


def test_a_collective_holds_for_the_others_if_all_were_ready_and_one_is_gone(monkeypatch):
    """The next collective is theirs; or it tells both of them, if this one was decided before."""
    with met_nodes(3, transport="tcp") as nodes:
        survivors, both = {}, threading.Barrier(2, timeout=HANGS_AFTER_S)
        has_come, has_left = threading.Event(), threading.Event()  # what the first one does

        def hook(point):
            node = survivors.get(threading.get_ident())
            if node is None and point == "collective.exchanged":
                has_come.set()
            if node is not None and point == "collective.exchanged":
                assert has_left.wait(HANGS_AFTER_S)
                eventually(lambda: not node.collectives.contacts.is_up("w1"))
            if node is not None and point == "collective.ready":
                both.wait()

        def call(node):
            survivors[threading.get_ident()] = node
            found = [node.all_reduce(1)[1]]
            survivors.clear()
            try:
                found.append(node.all_reduce(1)[1])
            except PeerLost as lost:
                found += [lost.names, node.all_reduce(1)[1]]
            return found

        group = nodes["w1"].collectives.group("")
        monkeypatch.setattr(group, "_vote_against_itself", lambda: None)  # its word comes too late
        monkeypatch.setattr("dpwa.fault_points._hook", hook)
        first = nodes.begin("w1", timed(lambda node: node.all_reduce(1)))
        others = [nodes.begin(name, call) for name in ("w2", "w3")]
        assert has_come.wait(HANGS_AFTER_S)
        eventually(lambda: group.phase is Phase.READY)
        nodes["w1"].close()
        has_left.set()
        assert type(first.result(20)[1]) is ClosedError
        told, also = (other.result(20) for other in others)
        assert told == also
        assert told in ([3, 2], [3, ("w1",), 2])


def test_nothing_can_be_called_after_close():
    with collective_nodes(1) as nodes:
        node = nodes["w1"]
        node.barrier()
        node.close()
        for call in (
            node.barrier,
            node.join,
            lambda: node.all_reduce(1),
            lambda: node.all_gather(1),
            lambda: node.broadcast(1, "w1"),
            lambda: node.barrier(tag="other"),
        ):
            with pytest.raises(ClosedError, match="node 'w1' is closed"):
                call()
        assert (node.rank, node.world_size, node.members) == (0, 1, ("w1",))


def test_its_place_is_known_after_close_as_it_was():
    with met_nodes(3) as nodes:
        nodes["w1"].close()
        lost = nodes.outcomes(lambda node: node.barrier(), ["w2", "w3"])
        assert [type(outcome) for outcome in lost.values()] == [PeerLost] * 2
        nodes["w2"].close()
        assert (nodes["w1"].rank, nodes["w1"].members) == (0, ("w1", "w2", "w3"))
        assert (nodes["w2"].rank, nodes["w2"].members) == (0, ("w2", "w3"))


def test_all_get_the_last_result_although_each_closes_right_after_it():
    for transport in ("auto", "tcp"):
        for _ in range(3):
            with collective_nodes(3, transport=transport) as nodes:

                def last(node):
                    result = node.all_reduce(np.full(20_000, 1.0 + rank_of(node)))[0]
                    node.close()
                    return result

                for result in nodes.each(last).values():
                    assert (result == 6.0).all()


# Interrupting


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with collective_processes(tmp_path_factory.mktemp("nodes")) as started:
        yield started


@pytest.mark.parametrize("point", ["collective.called", "collective.entered", "collective.met"])
def test_ctrl_c_in_a_collective_leaves_the_others_without_this_node_at_once(processes, point):
    with processes.group(3) as group:
        group.call([("small", 0, "")])
        group["w2"].arm(point, 1, "SIGINT")
        told = group.call([("large", 0, "")])
        assert [answer["error"] for answer in told["w2"]] == ["KeyboardInterrupt"]
        for name in ("w1", "w3"):
            (answer,) = told[name]
            assert (answer["error"], answer["names"]) == ("PeerLost", ["w2"])
            assert answer["took_s"] < at_most(GRACE_S)
        for name, (answer,) in group.call([("large", 1, "")], ["w1", "w3"]).items():
            assert answer["result"] == [["w1", "w3"], 2], name


@pytest.mark.parametrize(("transport", "size"), [("auto", 20_000), ("tcp", 10)])
def test_ctrl_c_after_the_decision_leaves_nobody_out_and_the_value_is_what_the_others_have(
    transport, size, monkeypatch
):
    value, interrupted = np.ones(size), []

    def interrupt(point):
        if point == "collective.ended" and threading.get_ident() in interrupted:
            raise KeyboardInterrupt

    def call(node):
        if node.name != "w2":
            return node.all_reduce(np.ones(size))[1]
        interrupted.append(threading.get_ident())
        with pytest.raises(KeyboardInterrupt):
            node.all_reduce(value)
        return interrupted.clear()

    with met_nodes(2, transport=transport) as nodes:
        monkeypatch.setattr("dpwa.fault_points._hook", interrupt)
        assert nodes.each(call) == {"w1": 2, "w2": None}
        assert (value == 2.0).all()
        assert nodes.each(lambda node: node.all_reduce(1)[1]) == {"w1": 2, "w2": 2}
