"""Nodes that are collected, or that could not be made: nothing of them is left."""

import gc
import threading
import warnings
import weakref

import pytest
from support.nodes import config_of, eventually
from support.open_cluster import cluster
from support.processes import descriptors

from dpwa import DpwaConnection
from dpwa.node.serving.service import Service
from dpwa.runtime import SystemRuntime


class Collecting(Service):
    """Has the RxThread collect garbage."""

    handles = (object,)

    def tick(self, _now):
        gc.collect()
        return False


@pytest.fixture(autouse=True)
def _collected_by_hand():
    gc.collect()
    gc.disable()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    gc.enable()
    assert not [str(each.message) for each in caught if each.category is ResourceWarning]


@pytest.mark.parametrize("which", ["its TxThread", "its RxThread", "a TxThread of another node"])
def test_a_node_may_be_collected_by_any_thread(which, caplog):
    with cluster() as others:
        other = others.add("w1")
        before, threads = descriptors(), threading.active_count()
        config = {"join": [others.endpoint("w1")], "metrics": {"port": 0}}
        held = [DpwaConnection("w2", config)]
        eventually(lambda: "w2" in other.peers)
        rx, tx = held[0].node.rx, held[0].node.tx
        held.append(held)  # only the collector finds out
        is_gone = threading.Event()
        weakref.finalize(held[0].node, is_gone.set)
        del held
        if which == "its RxThread":
            rx.register(Collecting())
            rx.wake()
        else:
            (tx if which == "its TxThread" else other.node.tx).call_soon(gc.collect)
        assert is_gone.wait(10.0)
        eventually(lambda: "w2" not in other.peers, 2.0)  # it has said goodbye
        eventually(lambda: threading.active_count() == threads)
        del rx, tx
        gc.collect()
        eventually(lambda: descriptors() <= before)
    assert not caplog.records


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_node_that_could_not_be_made_leaves_nothing(count):
    left = count

    class Short(SystemRuntime):
        """Runs out of descriptors or memory in the middle."""

        @staticmethod
        def thread(run, name):
            take()
            return SystemRuntime().thread(run, name)

        @staticmethod
        def event():
            take()
            return SystemRuntime().event()

    def take():
        nonlocal left
        left -= 1
        if not left:
            raise MemoryError

    before = descriptors()
    try:
        DpwaConnection("w1", config_of(1), runtime=Short()).close()
    except MemoryError:
        pass
    else:
        assert left > 0
    gc.collect()
    assert descriptors() == before
