"""Connections that were opened and closed leave no descriptor and no thread, however many."""

import gc
import threading

import numpy as np
import pytest
from support.nodes import at_once, config_of, eventually
from support.processes import descriptors

from dpwa import DpwaConnection
from dpwa.tables.node_tables import Tables


def _use(connection):
    connection.barrier(timeout_s=30.0)
    value = np.ones(3000)
    assert connection.all_reduce(value, timeout_s=30.0)[1] == 2
    table = Tables(connection).array(50)
    table.add(np.ones(50, np.float32))
    table.get()
    connection.update_send(value)
    connection.update_wait()


def _live(config):
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        at_once([lambda each=each: _use(each) for each in (one, two)])


@pytest.mark.parametrize("cycles", [3, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)])
def test_descriptors_and_threads_are_as_they_were_before_all_connections(cycles, transport):
    config = config_of(2, transport=transport)
    _live(config)  # what is made once in a process
    gc.collect()
    before = descriptors(), threading.active_count()
    for _ in range(cycles):
        _live(config)

    def is_as_before():
        gc.collect()  # a thread that is just ending may have held some the last time
        # Tests before may have left some that have been freed meanwhile.
        return descriptors() <= before[0] and threading.active_count() <= before[1]

    eventually(is_as_before)
