"""Ctrl-C, as the stop button of a notebook sends it: an adapter is usable afterwards, or closed."""

import gc
import random
import signal
import threading
import time
from contextlib import suppress

import pytest
from support.inside import context_of
from support.interrupt_cases import CASES, Gossip, interrupt_at_each, interrupt_at_random
from support.interrupts import Moments, interrupted
from support.nodes import config_of, eventually, merge_of
from support.ports import free_ports
from support.state_donors import adapter_of, nodes
from torch import nn

import dpwa
from dpwa.errors import ClosedError
from dpwa.lifecycle import uninterrupted


def net():
    return nn.Linear(8, 8)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see `interrupted`
def test_an_adapter_that_is_interrupted_while_it_is_made_or_closed_leaves_nothing():
    config, rng = config_of(2), random.Random(7)
    threads = threading.active_count()

    def make_and_close():
        while True:
            adapter_of(net(), "w1", config).close()

    def none_is_left():
        if threading.active_count() != threads:
            gc.collect()
        return threading.active_count() == threads

    for _ in range(12):
        interrupted(make_and_close, rng.uniform(0.0, 0.03))
        # Between the moment that it is made and that it is named, nobody but the collector has it.
        eventually(none_is_left)
    with nodes(adapter_of(net(), "w1", config)):
        pass  # the port is free


@pytest.fixture
def case(request):
    """Rounds of two nodes, which are as they should be in the end, and close in time."""
    made = CASES[request.param]()
    try:
        yield made
        made.check()
    finally:
        made.close()


def of_each_case(**counts):
    return pytest.mark.parametrize(("case", "count"), counts.items(), indirect=["case"])


@of_each_case(
    mapped=20, tcp=15, symmetric=20, push_sum=12, collectives=4, tables=8, barriers=6, in_step=6
)
def test_a_node_goes_on_that_is_interrupted_at_some_moments_of_a_round(case, count):
    assert interrupt_at_each(case, random.Random(7), count) > count // 2


@pytest.mark.parametrize(
    ("case", "files", "count"),
    [("tables", {"pending.py"}, 20), ("collectives", {"call.py", "runtime.py"}, 4)],
    indirect=["case"],
)
def test_a_node_goes_on_that_is_interrupted_while_it_enters_or_leaves(case, files, count):
    assert interrupt_at_each(case, random.Random(7), count, files) > count // 2


@of_each_case(
    mapped=20, tcp=20, symmetric=20, push_sum=20, collectives=4, tables=20, barriers=10, in_step=10
)
def test_a_node_goes_on_that_is_interrupted_at_random_times(case, count):
    interrupt_at_random(case, count, random.Random(7), 0.004)


@pytest.mark.parametrize("settings", [{}, {"transport": "tcp"}, {"algorithm": "symmetric"}])
def test_a_handler_may_close_the_node_at_any_moment_of_a_round(settings):
    """That is, at one at which the thread holds no lock for which those of the node may wait."""
    rng, moments, threads = random.Random(7), Moments(), threading.active_count()
    case = Gossip(**settings)
    case.around(lambda: moments.watch(case.work))
    case.close()
    for moment in rng.sample(list(moments.seen), k=3):
        close_at(moment, moments, Gossip(**settings))
        assert threading.active_count() == threads


def close_at(moment, moments, case):
    context = context_of(case.one.connection.node)
    parts = context.pool, context.transactions, context.peer_table, context.leader_table

    def close(*_):
        if not any(part._lock._is_owned() for part in parts if part is not None):
            case.one.close()

    former = signal.signal(signal.SIGINT, close)
    try:
        with suppress(ClosedError):
            case.around(lambda: moments.interrupt(moment, case.work))
    finally:
        signal.signal(signal.SIGINT, former)
        case.close()


def test_finish_can_be_interrupted_and_called_again():
    config = config_of(2)
    made = adapter_of(net(), "w1", config), adapter_of(net(), "w2", config)
    with nodes(*made) as (first, second):
        merge_of(first, second)
        interrupted(lambda: first.finish(timeout_s=100), 0.3)  # the other one still trains
        merge_of(first, second)
        report = first.finish(seconds=0.1, timeout_s=0.1)
        assert report.took_part == ()


def test_waiting_for_the_state_of_a_peer_can_be_interrupted():
    config = config_of(2, initial_state="peers")
    with nodes(adapter_of(net(), "w1", config)) as (first,):
        first.update_send(0.5)  # it is trained, and its trainer does not come to copy its state
        interrupted(lambda: adapter_of(net(), "w2", config), 0.5)
        with nodes(adapter_of(net(), "w2", {**config, "initial_state": "own"})) as (second,):
            merge_of(first, second)


def test_waiting_to_be_let_in_can_be_interrupted():
    port, own = free_ports(2)
    settings = {"join": [f"tcp://127.0.0.1:{port}"], "listen": f"tcp://127.0.0.1:{own}"}
    interrupted(lambda: dpwa.connect(net(), name="w1", **settings), 0.5)
    listed = [{"name": "w1", "host": "127.0.0.1", "port": own}]
    with dpwa.connect(net(), name="w1", nodes=listed):
        pass  # the port is free


def test_an_interrupt_is_put_off_and_not_lost():
    done = []

    def work():
        with uninterrupted():
            time.sleep(0.3)
            done.append(1)
        time.sleep(60)

    interrupted(work, 0.1)
    assert done


def test_other_threads_have_no_interrupts_to_put_off():
    done = []

    def run():
        with uninterrupted():  # only the main thread may set a handler
            done.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done
