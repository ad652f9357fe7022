"""Queues and turns of virtual threads, and of real ones: the same on both."""

import queue
import random

import pytest
from support.virtual_wire import VirtualHosts

from dpwa.runtime import SYSTEM
from dpwa.sim.nodes.runtime import VirtualRuntime


class Virtual:
    """Threads in virtual time."""

    def __init__(self):
        self.hosts = VirtualHosts("a")
        self.runtime = VirtualRuntime(self.hosts.tcp, "a", random.Random(1))

    def run(self, *works):
        threads = [self.runtime.thread(work, f"work-{i}") for i, work in enumerate(works)]
        for thread in threads:
            thread.start()
        self.hosts.until(lambda: not any(thread.is_alive() for thread in threads))


class Real:
    """Threads of the machine."""

    runtime = SYSTEM

    def run(self, *works):
        threads = [self.runtime.thread(work, f"work-{i}") for i, work in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
            assert not thread.is_alive()


@pytest.fixture(params=[Virtual, Real])
def process(request):
    return request.param()


def test_what_was_left_in_a_queue_is_taken_in_order_and_waited_for(process):
    runtime, taken = process.runtime, []
    items = runtime.queue()
    assert items.empty()

    def leave():
        runtime.sleep(0.05)
        for item in range(3):
            items.put(item)
        assert items.qsize() == 3

    process.run(leave, lambda: taken.extend(items.get(timeout=10.0) for _ in range(3)))
    assert taken == [0, 1, 2]


def test_nobody_waits_longer_for_a_queue_than_it_wants_to(process):
    runtime, waited_s = process.runtime, []
    items = runtime.queue()

    def take():
        began = runtime.now()
        with pytest.raises(queue.Empty):
            items.get(timeout=0.05)
        waited_s.append(runtime.now() - began)
        with pytest.raises(queue.Empty):
            items.get_nowait()

    process.run(take)
    assert waited_s[0] >= 0.05


def test_a_call_lock_belongs_to_one_thread_though_it_waits_meanwhile(process):
    runtime, seen = process.runtime, []
    lock = runtime.call_lock()

    def work(name):
        assert not lock.is_own
        with lock:
            assert lock.is_own
            seen.append(name)
            runtime.sleep(0.02)
            seen.append(name)

    process.run(*(lambda name=name: work(name) for name in "abc"))
    assert sorted(seen[::2]) == ["a", "b", "c"]
    assert seen[::2] == seen[1::2]


def test_a_call_lock_is_given_back_by_an_error(process):
    lock, passed = process.runtime.call_lock(), []

    def fail():
        with pytest.raises(RuntimeError), lock:
            raise RuntimeError

    def take():
        process.runtime.sleep(0.02)
        with lock:
            passed.append(True)

    process.run(fail, take)
    assert passed
