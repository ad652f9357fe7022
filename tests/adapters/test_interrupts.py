"""Ctrl-C, as the stop button of a notebook sends it: an adapter is usable afterwards, or closed."""

import gc
import random
import threading
import time

from support.interrupts import interrupted
from support.nodes import config_of, eventually
from support.ports import free_ports
from support.state_donors import adapter_of, nodes
from torch import nn

import dpwa
from dpwa.lifecycle import uninterrupted


def net():
    return nn.Linear(8, 8)


def merge(first, second):
    def attempt():
        second.update_send(0.5)
        first.update_send(0.5)
        return first.update_wait(0.5)

    return eventually(attempt)


def test_an_adapter_that_is_interrupted_while_it_is_made_or_closed_leaves_nothing():
    config, rng = config_of(2), random.Random(7)
    threads = threading.active_count()

    def make_and_close():
        while True:
            adapter_of(net(), "w1", config).close()

    for _ in range(12):
        interrupted(make_and_close, rng.uniform(0.0, 0.03))
        # Between the moment that it is made and that it is named, nobody but the collector has it.
        eventually(lambda: gc.collect() >= 0 and threading.active_count() == threads)
    with nodes(adapter_of(net(), "w1", config)):
        pass  # the port is free


def test_an_adapter_that_is_interrupted_in_a_round_goes_on():
    config, rng = config_of(2), random.Random(7)
    made = adapter_of(net(), "w1", config), adapter_of(net(), "w2", config)
    with nodes(*made) as (first, second):

        def train():
            while True:
                for node in (first, second):
                    node.update_send(0.5)
                for node in (first, second):
                    node.update_wait(0.5)

        merge(first, second)
        for _ in range(8):
            interrupted(train, rng.uniform(0.0, 0.02))
            merge(first, second)


def test_finish_can_be_interrupted_and_called_again():
    config = config_of(2)
    made = adapter_of(net(), "w1", config), adapter_of(net(), "w2", config)
    with nodes(*made) as (first, second):
        merge(first, second)
        interrupted(lambda: first.finish(timeout_s=100), 0.3)  # the other one still trains
        merge(first, second)
        report = first.finish(seconds=0.1, timeout_s=0.1)
        assert report.took_part == ()


def test_waiting_for_the_state_of_a_peer_can_be_interrupted():
    config = config_of(2, initial_state="peers")
    with nodes(adapter_of(net(), "w1", config)) as (first,):
        first.update_send(0.5)  # it is trained, and its trainer does not come to copy its state
        interrupted(lambda: adapter_of(net(), "w2", config), 0.5)
        with nodes(adapter_of(net(), "w2", {**config, "initial_state": "own"})) as (second,):
            merge(first, second)


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
