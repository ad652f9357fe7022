"""What goes wrong at the edges: late joiners, splits, signals, forks, full memory, odd values."""

import contextlib
import gc
import os
import signal
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from support.collective_nodes import collective_nodes, is_settled, met_nodes, rank_of
from support.nodes import eventually

from dpwa import fault_points
from dpwa.collectives.entries import INLINE_BYTES
from dpwa.data.payload import Payload
from dpwa.errors import LeftBehindError, ParametersError, PeerLost, UserError
from dpwa.policy import ballots

TIMEOUT_S = 0.3  # of calls that are to fail
HANGS_AFTER_S = 15.0  # less than 20, which some calls may take


@pytest.fixture
def at_point():
    """Run a function once, when this thread comes to a fault point: `at_point(name, function)`."""
    waiting = []

    def hook(reached):
        for item in [*waiting]:
            point, thread, function = item
            if (point, thread) == (reached, threading.get_ident()):
                waiting.remove(item)
                function()

    fault_points.install(hook)
    yield lambda point, function: waiting.append((point, threading.get_ident(), function))
    fault_points.install(None)


def group_of(nodes, name):
    return nodes[name].collectives.group("")


def is_heard_asking(nodes, name, by):
    """Whether nodes know that another one wants to be let in."""
    return all(
        name in [ask_to_join.name for ask_to_join in group_of(nodes, other).join_requests()]
        for other in by
    )


def call_until_let_in(name):
    """Return a task that calls on until another node is a member."""

    def task(node):
        while name not in node.members:
            node.barrier()

    return task


# Who comes late, or comes back


def test_a_node_that_was_let_in_late_has_all_of_its_time_for_its_first_collective():
    """Else the members, who do not know since when it join requests, would be too late for it."""
    timeout_s, others = 1.5, ("w1", "w2")
    with met_nodes(3) as nodes:
        nodes.outcomes(lambda node: node.barrier(TIMEOUT_S), others)
        with pytest.raises(LeftBehindError):
            nodes["w3"].barrier()
        began = time.monotonic()
        late = nodes.begin("w3", lambda node: node.all_reduce(1, timeout_s=timeout_s))
        time.sleep(0.6 * timeout_s)
        assert is_heard_asking(nodes, "w3", others)
        nodes.each(call_until_let_in("w3"), others)
        time.sleep(began + 1.2 * timeout_s - time.monotonic())
        results = nodes.outcomes(lambda node: node.all_reduce(1), others)
        assert results == dict.fromkeys(others, (3, 3))
        assert late.result(60) == (3, 3)


def cut_off(contacts, own, far):
    """Drop what a node says to some others; return what ends that."""
    tell = contacts.tell

    def tell_the_rest(peer, message):
        if (peer in far) == (own in far):
            tell(peer, message)

    contacts.tell = tell_the_rest
    return lambda: setattr(contacts, "tell", tell)


def test_the_smaller_part_of_a_split_is_told_so_once_and_works_with_the_others_at_once(
    monkeypatch,
):
    """The number on its board is far ahead of theirs: that must not pass for theirs being over."""
    monkeypatch.setattr(ballots, "STALLED_S", 0.5)  # its connections stay
    others = ("w1", "w2")
    with met_nodes(3) as nodes:
        heal = [cut_off(nodes[n].collectives.contacts, n, ("w3",)) for n in nodes.names]
        outcomes = nodes.outcomes(lambda node: node.barrier(TIMEOUT_S), others)
        outcomes |= nodes.outcomes(lambda node: node.barrier(TIMEOUT_S), ["w3"])
        assert {n: o.names for n, o in outcomes.items()} == {
            "w1": ("w3",),
            "w2": ("w3",),
            "w3": others,
        }
        for _ in range(1000):
            nodes["w3"].barrier()
        assert group_of(nodes, "w3").number > group_of(nodes, "w1").number + 500
        for mend in heal:
            mend()

        def is_heard_of():
            nodes.each(lambda node: node.barrier(), others)
            return group_of(nodes, "w3").is_outranked

        eventually(is_heard_of, every_s=0.05)
        with pytest.raises(LeftBehindError, match="the other nodes have continued without w3"):
            nodes["w3"].all_reduce(1, timeout_s=2.0)
        back = nodes.begin("w3", lambda node: node.all_reduce(1))
        eventually(lambda: is_heard_asking(nodes, "w3", others))
        nodes.each(call_until_let_in("w3"), others)

        def call(node):
            time.sleep(0.1 * rank_of(node))  # time for w1 to look at the board
            return node.all_reduce(1)

        results = nodes.outcomes(call, others)
        assert results == dict.fromkeys(others, (3, 3))
        assert back.result(60) == (3, 3)


def left_behind_once(nodes, at_point, call, by_others):
    """Let w3 be left behind when it has got everything, and call again; return what all get.

    By then the others, who knew of its first attempt, call something else.
    """

    def task(node):
        if node.name == "w3":
            at_point("collective.exchanged", group_of(nodes, "w3").leave_group)
            result = call(node)
        else:
            with pytest.raises(PeerLost):
                call(node)
            call_until_let_in("w3")(node)
            result = by_others[node.name](node)
        node.join()
        return result

    return nodes.each(task)


def test_nothing_is_gathered_of_an_attempt_that_was_left_behind(at_point):
    with collective_nodes(3) as nodes:
        gathered = left_behind_once(
            nodes,
            at_point,
            lambda node: node.all_gather(f"first of {node.name}"),
            {"w1": lambda node: node.all_gather("later of w1"), "w2": lambda node: None},
        )
    expected = {"w1": "later of w1", "w3": "first of w3"}
    assert gathered == {"w1": expected, "w2": None, "w3": expected}


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_nothing_is_reduced_of_an_attempt_that_was_left_behind(at_point, transport):
    with collective_nodes(3, transport=transport) as nodes:
        reduced = left_behind_once(
            nodes,
            at_point,
            lambda node: node.all_reduce(np.full(100_000, 10.0 ** rank_of(node))),
            {"w1": lambda node: None, "w2": lambda node: None},
        )
    value, contributors = reduced["w3"]
    assert contributors == 1
    assert set(value.tolist()) == {100.0}


# Interrupts and forks


@pytest.mark.parametrize(("count", "transport"), [(2, "tcp"), (3, "auto")])
def test_ctrl_c_while_the_result_is_written_leaves_all_of_it(monkeypatch, count, transport):
    """The others have it, too: half of it would be a value that nobody else has."""
    assign, interrupted = Payload.assign, []

    def assign_or_interrupt(payload, start, stop, data):
        if start > 0 and threading.get_ident() in interrupted:
            interrupted.clear()
            raise KeyboardInterrupt
        assign(payload, start, stop, data)

    def call(node):
        value = np.ones(300_000, np.float32)
        if node.name == "w2":
            interrupted.append(threading.get_ident())
            with pytest.raises(KeyboardInterrupt):
                node.all_reduce(value)
        else:
            node.all_reduce(value)
        return set(value.tolist()), node.all_reduce(1)

    with met_nodes(count, transport=transport) as nodes:
        monkeypatch.setattr(Payload, "assign", assign_or_interrupt)
        assert nodes.each(call) == dict.fromkeys(nodes.names, ({float(count)}, (count, count)))


def test_a_collective_within_one_of_the_same_tag_is_refused(at_point):
    """A signal handler runs on the thread that it has interrupted, which holds up its own call."""
    refused = []

    def hang(*_):
        raise AssertionError("a collective within another one hangs")

    def call_within(*_):
        signal.signal(signal.SIGALRM, hang)
        signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER_S)
        with pytest.raises(UserError, match="already in a collective with the same tag"):
            nodes["w1"].barrier()
        signal.setitimer(signal.ITIMER_REAL, 0)
        refused.append(True)

    former = signal.signal(signal.SIGALRM, call_within)
    try:
        with collective_nodes(2) as nodes:
            second = nodes.begin("w2", lambda node: (node.barrier(), node.all_reduce(1)))
            at_point("collective.entered", lambda: signal.raise_signal(signal.SIGALRM))
            nodes["w1"].barrier()
            assert refused == [True]
            assert nodes["w1"].all_reduce(1) == (2, 2)  # and it is free again
            second.result(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_closes_although_a_lock_was_held_when_it_was_forked():
    with met_nodes(2) as nodes:
        is_held, is_forked = threading.Event(), threading.Event()

        def hold(node):
            with node.collectives.group("").lock:
                is_held.set()
                is_forked.wait(HANGS_AFTER_S)

        holding = nodes.begin("w1", hold)
        assert is_held.wait(HANGS_AFTER_S)
        child = os.fork()
        if child == 0:
            nodes["w1"].collectives.close()
            os._exit(0)
        is_forked.set()
        holding.result(60)
        try:
            ended = eventually(lambda: os.waitpid(child, os.WNOHANG)[0], HANGS_AFTER_S)
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        assert ended == child
        assert nodes.each(lambda node: node.all_reduce(1)) == {"w1": (2, 2), "w2": (2, 2)}


# Values and memory


@pytest.mark.parametrize("bad", [{np.int64(3): 1}, {(1, 2): 3}, [{"a": {(): None}}]], ids=repr)
def test_an_object_that_could_not_be_read_is_refused_before_the_others_hear_of_it(bad):
    with met_nodes(2) as nodes:
        with pytest.raises(ParametersError, match="a value cannot be sent"):
            nodes["w2"].all_gather(bad, timeout_s=TIMEOUT_S)
        assert nodes.each(lambda node: node.all_reduce(1)) == {"w1": (2, 2), "w2": (2, 2)}


@pytest.mark.parametrize("full", [("w1", "w2", "w3"), ("w2",)])
def test_collectives_work_without_room_for_shared_memory(monkeypatch, full):
    def refuse(name, nbytes):
        raise OSError(28, f"no space left for {nbytes} bytes of {name}")

    def call(node):
        small, _ = node.all_reduce(1, tag="new")
        large, _ = node.all_reduce(np.ones(30_000), tag="new")
        return small, set(large.tolist()), node.all_gather(bytes(30_000), tag="new").keys()

    with met_nodes(3, collective_timeout_s=2.0) as nodes:
        eventually(lambda: is_settled(nodes))
        for name in full:
            monkeypatch.setattr(nodes[name].collectives.contacts._memory, "create", refuse)
        results = nodes.outcomes(call)
        assert results == dict.fromkeys(nodes.names, (3, {3.0}, dict.fromkeys(nodes.names).keys()))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_largest_value_that_is_told_along_fits_with_many_leaves_of_long_names(transport):
    leaves = {"層の重みパラメータ集合体" * 8 + f"{index:02}": np.ones(60) for index in range(17)}
    assert sum(leaf.nbytes for leaf in leaves.values()) == 8160 <= INLINE_BYTES

    def call(node):
        reduced, contributors = node.all_reduce({k: leaf.copy() for k, leaf in leaves.items()})
        return {number for leaf in reduced.values() for number in leaf.tolist()}, contributors

    with collective_nodes(2, transport=transport, collective_timeout_s=2.0) as nodes:
        assert nodes.outcomes(call) == dict.fromkeys(nodes.names, ({2.0}, 2))


def deleted_images():
    """Images of this process's nodes that are mapped although they have been removed."""
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line for line in lines if "image-" in line and "(deleted)" in line}


@pytest.mark.parametrize("count", [2, 3])
def test_no_image_of_a_former_life_of_a_peer_stays_mapped(count):
    def call(node):
        while node.all_reduce(np.ones(30_000, np.float32))[1] < count:
            pass
        for _ in range(2):
            node.all_reduce(np.ones(30_000, np.float32))

    before = deleted_images()
    with collective_nodes(count) as nodes:
        nodes.each(call)
        for _ in range(2):
            nodes["w2"].close()
            nodes.outcomes(lambda node: node.barrier(), [n for n in nodes.names if n != "w2"])
            nodes.start("w2")
            nodes.each(call)
        assert deleted_images() <= before


def test_nothing_keeps_the_value_of_a_call_that_is_over():
    values = []

    def call(node):
        value = np.ones(300_000, np.float32)
        values.append(weakref.ref(value))
        node.all_reduce(value)

    with collective_nodes(2, transport="tcp") as nodes:
        nodes.each(call)
        nodes.each(lambda node: node.barrier())  # nothing is on its way any more
        gc.collect()
        eventually(lambda: all(value() is None for value in values), HANGS_AFTER_S)


@pytest.mark.parametrize("nbytes", [10_000, 64 * 1024, 120_000])
def test_values_that_give_some_members_no_shard_are_not_streamed_on_one_host(nbytes):
    with met_nodes(3) as nodes:
        eventually(lambda: is_settled(nodes))
        for _ in range(3):
            results = nodes.each(lambda node: node.all_reduce(np.ones(nbytes // 4, np.float32)))
            assert {number for value, _ in results.values() for number in set(value)} == {3.0}
        assert [nodes[n].collectives.report()["pulled_bytes"] for n in nodes.names] == [0, 0, 0]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_who_gives_up_when_it_is_ready_is_not_waited_for_in_the_next_one(at_point, transport):
    def give_up():
        raise KeyboardInterrupt

    def call(node):
        if node.name == "w1":
            at_point("collective.ready", give_up)
        try:
            return node.all_reduce(1)
        except KeyboardInterrupt:
            return "interrupted"

    def call_again(node):
        began = time.monotonic()
        if node.name != "w1":
            with contextlib.suppress(PeerLost):
                node.all_reduce(1)
        return time.monotonic() - began

    with met_nodes(3, transport=transport, collective_timeout_s=20.0) as nodes:
        first = nodes.outcomes(call)
        assert first["w1"] == "interrupted"
        assert first["w2"] == (3, 3) or type(first["w2"]) is PeerLost
        assert type(first["w2"]) is type(first["w3"])
        assert max(nodes.each(call_again).values()) < HANGS_AFTER_S


@pytest.mark.parametrize("is_after", [False, True])
def test_ctrl_c_after_a_collective_was_decided_does_not_vote_against_the_next(
    monkeypatch, is_after
):
    with met_nodes(2, transport="tcp") as nodes:
        group = group_of(nodes, "w1")
        finish = group.finish

        def interrupt(*args):
            monkeypatch.setattr(group, "finish", finish)
            if is_after:
                finish(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(group, "finish", interrupt)
        second = nodes.begin("w2", lambda node: (node.barrier(), node.all_reduce(1)))
        with pytest.raises(KeyboardInterrupt):
            nodes["w1"].barrier()
        assert nodes["w1"].all_reduce(1) == (2, 2)
        assert second.result(60)[1] == (2, 2)
