"""The virtual network: time that jumps, faults that can be set, the same run for the same seed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.clock import Deadline
from dpwa.virtual_network import Link, VirtualClock, VirtualNetwork

ABC = ("a", "b", "c")
MESSAGES = 10_000


class Log:
    """What arrived where, when and from whom."""

    def __init__(self, link=None, seed=1, names=ABC):
        self.network = VirtualNetwork(seed, link)
        self.seen = []
        for name in names:
            self.add(name)

    def add(self, name):
        self.network.add(name, lambda sender, message: self.note(sender, name, message))

    def note(self, sender, to, message):
        self.seen.append((self.network.clock.now(), sender, to, message))

    def arrived(self, duration_s=10.0):
        """Everything that arrives within a time: (sender, receiver, message)."""
        before = len(self.seen)
        self.network.run_for(duration_s)
        return [tuple(entry[1:]) for entry in self.seen[before:]]


def test_time_moves_forward_only_and_is_a_clock_for_deadlines():
    clock = VirtualClock()
    deadline = Deadline(clock, 2.0)
    clock.move_to(1.5)
    assert deadline.remaining_s() == 0.5
    clock.move_to(1.0)
    assert clock.now() == 1.5
    clock.move_to(2.0)
    assert deadline.expired()


def test_a_message_takes_its_delay_and_the_clock_ends_where_it_was_told_to():
    log = Log(Link(delay_s=0.25))
    log.network.send("a", "b", "x")
    log.network.run_until(1.0)
    assert log.seen == [(0.25, "a", "b", "x")]
    assert log.network.clock.now() == 1.0


def test_jitter_lets_messages_overtake_and_stays_within_its_bounds():
    log = Log(Link(delay_s=1.0, jitter_s=0.5))
    for number in range(100):
        log.network.send("a", "b", number)
    log.network.run_for(10.0)
    assert all(1.0 <= entry[0] <= 1.5 for entry in log.seen)
    numbers = [entry[3] for entry in log.seen]
    assert sorted(numbers) == list(range(100))
    assert numbers != sorted(numbers)


def test_without_jitter_messages_keep_their_order():
    log = Log()
    for number in range(100):
        log.network.send("a", "b", number)
    assert [message for *_, message in log.arrived()] == list(range(100))


@pytest.mark.parametrize("fault", ["drop", "duplicate"])
def test_losses_and_duplicates_come_as_often_as_was_said(fault):
    log = Log(Link(**{fault: 0.3}))
    for _ in range(MESSAGES):
        log.network.send("a", "b", "x")
    log.network.run_for(1.0)
    counts = log.network.counts
    happened = counts.dropped if fault == "drop" else counts.duplicated
    deviation = math.sqrt(MESSAGES * 0.3 * 0.7)
    assert abs(happened - 0.3 * MESSAGES) < 5 * deviation
    assert counts.delivered == len(log.seen)
    assert counts.sent + counts.duplicated == counts.delivered + counts.dropped


def test_the_fault_of_one_link_has_a_direction():
    log = Log()
    log.network.set_link(Link(drop=1.0), "a", "b")
    log.network.send("a", "b", "lost")
    log.network.send("b", "a", "back")
    log.network.send("a", "c", "other")
    assert log.arrived() == [("b", "a", "back"), ("a", "c", "other")]
    log.network.set_link(Link())
    log.network.send("a", "b", "again")
    assert log.arrived() == [("a", "b", "again")]
    with pytest.raises(ValueError, match="pass both"):
        log.network.set_link(Link(), "a")


def test_a_partition_cuts_what_is_under_way_and_all_that_follows_until_it_heals():
    log = Log(Link(delay_s=1.0))
    log.network.send("a", "c", "under way")
    log.network.partition({"a", "b"})
    log.network.send("c", "a", "across")
    log.network.send("a", "b", "within")
    assert log.arrived() == [("a", "b", "within")]
    log.network.send("c", "b", "too early")
    log.network.heal()
    log.network.send("c", "b", "healed")
    assert log.arrived() == [("c", "b", "healed")]


def test_a_new_partition_replaces_the_old_one():
    log = Log()
    log.network.partition({"a"}, {"b"}, {"c"})
    assert not log.network.is_open("a", "b")
    log.network.partition({"a", "b"}, {"c"})
    assert log.network.is_open("a", "b")
    assert not log.network.is_open("a", "c")


def test_nothing_comes_to_or_from_a_node_that_is_down():
    log = Log(Link(delay_s=1.0))
    log.network.send("a", "b", "under way")
    log.network.send("b", "a", "its last word")
    log.network.set_down("b")
    log.network.send("a", "b", "in vain")
    log.network.send("b", "a", "from the grave")
    assert log.arrived() == [("b", "a", "its last word")]
    log.network.set_up("b")
    log.network.send("a", "b", "again")
    assert log.arrived() == [("a", "b", "again")]


def test_whoever_is_added_at_an_address_takes_its_place():
    log = Log()
    log.network.set_down("b")
    log.network.send("a", "nobody", "x")
    log.add("b")
    log.network.send("a", "b", "hello")
    assert log.arrived() == [("a", "b", "hello")]
    assert log.network.counts.dropped == 1


def test_timers_fire_in_order_once_and_not_if_they_were_cancelled():
    network = VirtualNetwork(seed=1)
    fired = []
    network.call_later(2.0, lambda: fired.append("second"))
    network.call_later(1.0, lambda: fired.append("first"))
    network.call_later(2.0, lambda: fired.append("third"))
    cancelled = network.call_later(1.5, lambda: fired.append("never"))
    cancelled.cancel()
    network.run_until(1.0)
    assert fired == ["first"]
    network.run_for(5.0)
    assert fired == ["first", "second", "third"]
    cancelled.cancel()


def chatter(seed, faults):
    """Nodes that answer at random for a while; all that arrives."""
    log = Log(Link(0.01, 0.1, *faults), seed)
    network = log.network

    def talk(name):
        network.send(name, network.rng.choice(ABC), network.rng.random())
        network.call_later(network.rng.uniform(0.0, 0.2), lambda: talk(name))

    for name in ABC:
        talk(name)
    network.run_for(5.0)
    return log.seen


@given(st.integers(0, 2**32), st.tuples(st.floats(0, 0.9), st.floats(0, 1)))
def test_the_same_seed_gives_the_same_run(seed, faults):
    seen = chatter(seed, faults)
    assert seen == chatter(seed, faults)
    assert seen != chatter(seed + 1, faults) or not seen
