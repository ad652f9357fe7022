"""In a run with ever new names, those that are gone make room for those that come."""

import time
from contextlib import ExitStack, contextmanager

from support.imposters import imposter
from support.nodes import eventually
from support.ports import free_ports
from support.runtimes import Ahead
from support.times import SetClock
from support.told_reports import ToldReport, answer_of, told_answer

from dpwa.config.endpoints import seed_of
from dpwa.observe.figures import GONE_S, NAMES
from dpwa.observe.history import SampleHistory
from dpwa.observe.recorder import NodeRecord
from dpwa.observe.watch import MOVE_S, Watch
from dpwa.wire.messages import encode, pack
from dpwa.wire.watching import HistoryMessage


class Reporter:
    """A node that tells of others what a test wants.

    Attributes:
        peers: health and endpoint of each, by name.
    """

    def __init__(self, name, **peers):
        self.name = name
        self.peers = peers

    def answer(self, _):
        """The frames of an answer."""
        rest = (False, 900, 0, None, None, 0, 0, None, None, 0.0, 0, 0)
        peers = [[n, endpoint, health, *rest] for n, (health, endpoint) in self.peers.items()]
        told = told_answer(self.name, now=time.time(), figures=NAMES, peers=peers)
        yield [encode(HistoryMessage(request=1)), pack(told)]


@contextmanager
def watching(clock, *reporters):
    """Watch reporters, which listen on ports of their own."""
    ports = free_ports(len(reporters))
    with ExitStack() as stack:
        for port, reporter in zip(ports, reporters, strict=True):
            stack.enter_context(imposter(port, reporter.answer))
        seeds = [seed_of(f"tcp://127.0.0.1:{port}") for port in ports]
        yield stack.enter_context(Watch(seeds, None, 0.05, clock))


def names(watch):
    return {node.name for node in watch.view().nodes}


def nowhere():
    """An address at which nobody listens."""
    return f"tcp://127.0.0.1:{free_ports(1)[0]}"


def test_whom_a_watch_follows_makes_room_once_it_is_gone(monkeypatch):
    monkeypatch.setattr("dpwa.observe.watch.MAX_NODES", 3)
    clock = Ahead()
    gone, far = ("unreachable", nowhere()), ("alive", nowhere())
    reporter = Reporter("w1", gone=gone, far=far)
    with watching(clock, reporter) as watch:
        eventually(lambda: names(watch) == {"w1", "gone", "far"})
        reporter.peers = {"gone": gone, "far": far, "new": ("alive", nowhere())}
        time.sleep(0.3)
        assert names(watch) == {"w1", "gone", "far"}  # it may come back within a minute
        clock.seconds += GONE_S
        eventually(lambda: names(watch) == {"w1", "new", "far"})
        clock.seconds += GONE_S  # nothing answers there, but w1 tells that they live
        reporter.peers = {**reporter.peers, "newer": ("alive", nowhere())}
        time.sleep(0.3)
        assert names(watch) == {"w1", "new", "far"}


def test_a_silent_node_is_found_though_others_tell_different_addresses_of_it():
    old, older, (port,) = nowhere(), nowhere(), free_ports(1)
    one, two = Reporter("w1", lost=("unreachable", older)), Reporter("w2")
    clock = Ahead()

    def is_tried_at(place):
        return any((n.name, n.endpoint) == ("lost", place) for n in watch.view().nodes)

    with watching(clock, one, two) as watch, imposter(port, Reporter("lost").answer):
        eventually(lambda: is_tried_at(older))
        two.peers = {"lost": ("unreachable", old)}
        eventually(lambda: is_tried_at(old))
        one.peers = {"lost": ("alive", f"tcp://127.0.0.1:{port}")}
        clock.seconds += MOVE_S
        eventually(lambda: any(n.name == "lost" and n.answer for n in watch.view().nodes))


def test_of_whom_a_node_keeps_a_history_makes_room_once_it_is_gone(monkeypatch):
    monkeypatch.setattr("dpwa.observe.recorder.MAX_OTHERS", 3)
    clock = SetClock()
    report = ToldReport(w2="alive", w3="alive", w4="alive")
    record = NodeRecord(report, clock.now)

    def sampled(seconds=1, **healths):
        clock.time += seconds
        report.healths = healths
        record.sample()
        return {
            name for name in ("w2", "w3", "w4", "w5", "w6") if answer_of(record, name)["samples"]
        }

    there = {"w3": "alive", "w4": "alive"}
    assert sampled(w2="alive", **there) == {"w2", "w3", "w4"}
    assert sampled(w2="alive", **there, w5="alive") == {"w2", "w3", "w4"}  # all of them live
    assert sampled(w3="silent", w4="alive", w5="alive") == {"w2", "w3", "w4"}  # gone for a moment
    assert sampled(GONE_S - 2, **there, w5="alive") == {"w2", "w3", "w4"}
    assert sampled(2, **there, w5="alive", w6="alive") == {"w5", "w3", "w4"}
    odd = {"w3": "diverged", "w4": "alive", "w5": "alive"}  # which is there, too
    assert sampled(GONE_S + 1, **odd, w6="alive") == {"w5", "w3", "w4"}


def test_however_many_there_is_no_room_for_nodes_are_looked_through_once(monkeypatch):
    """Of a run with more nodes than are followed, each node tells of all, every second."""
    monkeypatch.setattr("dpwa.observe.watch.MAX_NODES", 3)
    clock, looks = Ahead(), []

    class CountedNodes(dict):
        def values(self):
            looks.append(1)
            return super().values()

    with Watch([], None, 60.0, clock) as watch, watch._lock:
        watch._nodes = CountedNodes()

        def follow_all():
            looks.clear()
            for port in range(1, 200):
                watch._follow(f"w{port}", f"tcp://127.0.0.1:{port}")
            return set(watch._nodes)

        followed = {f"tcp://127.0.0.1:{port}" for port in (1, 2, 3)}
        assert follow_all() == follow_all() == followed
        assert len(looks) <= 1
        clock.seconds += GONE_S
        assert not follow_all() & followed
        assert len(looks) <= 3 + 1
        watch._nodes.clear()  # nothing was connected


def test_however_many_there_is_no_room_for_histories_are_looked_through_once(monkeypatch):
    monkeypatch.setattr("dpwa.observe.recorder.MAX_OTHERS", 3)
    looks = []

    def last(history):
        looks.append(1)
        return history._last

    clock, report = SetClock(), ToldReport(w2="alive", w3="alive", w4="alive")
    record = NodeRecord(report, clock.now)
    record.sample()
    monkeypatch.setattr(SampleHistory, "last", property(last))
    report.healths = {f"v{index}": "alive" for index in range(100)}
    clock.time += 1
    record.sample()
    assert len(looks) == 3
