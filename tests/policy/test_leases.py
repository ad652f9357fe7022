"""Leases: the rule of a row by hand, and its laws in random runs of processes that come and go."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.policy.range_leases import (
    COLUMNS,
    EPOCH,
    HOLDER,
    IS_DONE,
    NOBODY,
    Leases,
    Outstanding,
    change_rows,
    holder_id,
)

LEASE_S = 100.0
A, B = 11.0, 12.0
FREE = (0, 0, NOBODY, 0)
CLAIMED = (1, NOBODY, A, 0)
DONE = (1, A, A, 1)


@pytest.mark.parametrize(
    ("row", "wanted", "takes_effect"),
    [
        (FREE, CLAIMED, True),
        (FREE, (1, B, A, 0), False),  # B has it, somebody believes
        (CLAIMED, (1, NOBODY, B, 0), False),  # A was faster
        (CLAIMED, (1, A, B, 0), True),  # B believes that A is gone
        (CLAIMED, DONE, True),
        (CLAIMED, (1, B, B, 1), False),  # B has lost it before
        (CLAIMED, (1, A, NOBODY, 0), True),
        (DONE, (1, A, B, 0), False),  # nothing follows on done
        (DONE, (1, NOBODY, B, 0), False),
        (DONE, (2, NOBODY, B, 0), True),  # but another epoch
        (DONE, (2, A, B, 0), False),
        ((2, NOBODY, B, 0), (1, A, A, 1), False),
        ((2, NOBODY, B, 0), (0, 0, 0, 0), False),
        (FREE, (1, NOBODY, NOBODY, 1), True),  # done before all were started again
    ],
)
def test_a_row_changes_if_its_holder_is_who_it_was_believed_to_be(row, wanted, takes_effect):
    rows = np.array([row], float)
    change_rows(rows, np.array([wanted], float))
    assert tuple(rows[0]) == (wanted if takes_effect else row)


def test_rows_change_each_for_itself():
    rows = np.array([CLAIMED, FREE, DONE], float)
    change_rows(rows, np.array([(1, A, B, 0), (0, 0, 0, 0), (1, A, B, 0)], float))
    np.testing.assert_array_equal(rows, [(1, A, B, 0), FREE, DONE])


def test_holders_are_whole_numbers_and_each_life_has_its_own():
    ids = {holder_id(name, life) for name in ("w1", "w2") for life in (b"a" * 8, b"b" * 8)}
    assert len(ids) == 4
    assert all(number == int(number) and 1 <= number <= 2**52 for number in ids)


def test_who_has_a_range_is_no_candidate_until_it_is_gone_or_late():
    leases = Leases(1, own=A, first=0, lease_s=LEASE_S)
    leases.see(np.array([(1.0, NOBODY, B, 0.0)]), now=5.0)
    assert leases.candidate({A, B}, now=6.0) is None
    assert leases.candidate(None, now=6.0) is None, "nobody knows who lives"
    assert leases.candidate({A}, now=6.0) == 0
    assert leases.candidate({A, B}, now=5.0 + LEASE_S) is None
    assert leases.candidate({A, B}, now=5.1 + LEASE_S) == 0
    leases.see(np.array([(1.0, B, 13.0, 0.0)]), now=200.0)
    assert leases.candidate({A, B, 13.0}, now=201.0) is None, "another one has it now"


def test_each_node_begins_elsewhere_and_goes_round():
    leases = Leases(3, own=A, first=2, lease_s=LEASE_S)
    rows = np.zeros((3, COLUMNS))
    found = []
    while (number := leases.candidate({A}, 0.0)) is not None:
        change_rows(rows[[number]], leases.claim(number))
        rows[number] = leases.claim(number)
        leases.handed_out.add(number)
        leases.see(rows.copy(), 0.0)
        found.append(number)
    assert found == [2, 0, 1]


def test_an_epoch_is_over_when_somebody_has_turned_to_a_later_one():
    leases = Leases(2, own=A, first=0, lease_s=LEASE_S)
    leases.see(np.array([CLAIMED, (2, NOBODY, B, 0)], float), now=0.0)
    assert leases.is_over
    assert leases.candidate(set(), now=0.0) is None
    leases.begin_epoch(1)
    assert not leases.is_over
    assert leases.candidate({A, B}, now=0.0) == 0


@given(st.lists(st.integers(1, 7), max_size=6), st.lists(st.integers(0, 9), max_size=20))
def test_ranges_end_with_their_last_item(lengths, steps):
    outstanding, ended, total = Outstanding(), [], 0
    for number, length in enumerate(lengths):
        outstanding.add_range(number, length)
    for step in steps:
        items = min(step, outstanding.items)
        ended += outstanding.consume(items)
        total += items
        assert ended == [i for i in range(len(lengths)) if sum(lengths[: i + 1]) <= total]
        assert outstanding.items == sum(lengths) - total
    assert outstanding.clear() == [i for i in range(len(lengths)) if i not in ended]


class Network:
    """A table, and processes whose changes are under way for as long as a test likes."""

    def __init__(self, ranges, names):
        self.rows = np.zeros((ranges, COLUMNS))
        self.effective = []  # (epoch, range) of each acknowledgement that took effect
        self.claimed = set()  # (epoch, range, process): who had it, by the table
        self.lives = dict.fromkeys(names, 0)
        self.processes = {name: Process(self, name) for name in names}
        self.time = 0.0

    def restart(self, name):
        """Kill a process, and start it again; what it has sent is on its way still."""
        former = self.processes[name]
        self.lives[name] += 1
        self.processes[name] = Process(self, name, former.sent)
        self.processes[name].leases.begin_epoch(former.leases.epoch)

    def apply(self, number, wanted):
        """Let a change arrive."""
        before = self.rows[number].copy()
        after = before[None].copy()
        change_rows(after, wanted)
        self.rows[number] = after
        if (self.rows[number] == before).all():
            return
        epoch, _, holder, is_done = self.rows[number]
        if is_done:
            self.effective.append((epoch, number))
            assert (epoch, number, holder) in self.claimed
        elif holder != NOBODY:
            self.claimed.add((epoch, number, holder))

    @property
    def living(self):
        return {process.own for process in self.processes.values()}


class Process:
    """One life of a process; `sent` are its changes that have not arrived yet."""

    def __init__(self, network, name, sent=()):
        self.network, self.sent = network, list(sent)
        self.own = holder_id(name, bytes([network.lives[name]]))
        self.leases = Leases(len(network.rows), self.own, 0, LEASE_S)

    def look(self):
        self.arrive(len(self.sent))
        self.leases.see(self.network.rows.copy(), self.network.time)
        for number in list(self.leases.handed_out):
            if not self.leases.is_own(number) or self.leases.done[number]:
                self.leases.handed_out.discard(number)

    def arrive(self, count, twice=False):
        for change in self.sent[:count]:
            for _ in range(2 if twice else 1):
                self.network.apply(*change)
        del self.sent[:count]

    def claim(self, living):
        number = self.leases.candidate(living, self.network.time)
        if number is not None:
            self.sent.append((number, self.leases.claim(number)))
            return number
        return None

    def take(self, living):
        number = self.claim(living)
        if number is not None:
            self.look()
            if self.leases.is_own(number):
                self.leases.handed_out.add(number)

    def end_one(self, what):
        if self.leases.handed_out:
            number = min(self.leases.handed_out)
            self.sent.append((number, what(self.leases)))
            if what is Leases.release:
                self.leases.handed_out.discard(number)


ACTIONS = ("look", "arrive", "arrive twice", "take", "take", "claim", "acknowledge", "release")
RARE = ("restart", "wait", "turn")
NAMES = ("a", "b", "c")
STEPS = 80


def step(network, rng, living_of):
    """Let one process, any of them, do any one thing."""
    name = rng.choice(NAMES)
    process = network.processes[name]
    match rng.choice(ACTIONS) if rng.random() < 0.9 else rng.choice(RARE):
        case "look":
            process.look()
        case "arrive":
            process.arrive(rng.randint(1, 3))
        case "arrive twice":
            process.arrive(1, twice=True)
        case "take":
            process.take(living_of(process))
        case "claim":
            process.claim(living_of(process))
        case "acknowledge":
            process.end_one(lambda leases: leases.acknowledgement())
        case "release":
            process.end_one(Leases.release)
        case "restart":
            network.restart(name)
        case "wait":
            network.time += LEASE_S / 2
        case "turn" if process.leases.is_over:
            process.leases.begin_epoch(process.leases.epoch + 1)


@pytest.mark.parametrize("first_seed", range(0, 200, 100))
def test_each_range_is_acknowledged_once_whatever_processes_believe_of_each_other(first_seed):
    for seed in range(first_seed, first_seed + 100):
        rng = random.Random(seed)
        network = Network(rng.randint(1, 3), NAMES)

        def believed(process, rng=rng, network=network):
            return {process.own, *(own for own in network.living if rng.random() < 0.5)}

        for _ in range(STEPS):
            step(network, rng, believed)
            assert len(set(network.effective)) == len(network.effective), f"seed {seed}"
        check_the_rest(network)


@pytest.mark.parametrize("first_seed", range(0, 100, 100))
def test_a_range_is_with_one_process_at_a_time_if_they_know_who_lives(first_seed):
    for seed in range(first_seed, first_seed + 100):
        rng = random.Random(seed)
        network = Network(rng.randint(1, 3), NAMES)
        for _ in range(STEPS):
            network.time = 0.0  # nobody is late
            step(network, rng, lambda process, network=network: network.living)
            held = [
                (process.leases.epoch, number)
                for process in network.processes.values()
                for number in process.leases.handed_out
            ]
            assert len(set(held)) == len(held), f"seed {seed}"
        check_the_rest(network)


def check_the_rest(network):
    """Let all go on in good order: every range of the last epoch is acknowledged, and once."""
    epoch = max(process.leases.epoch for process in network.processes.values())
    for process in network.processes.values():
        process.look()
        process.leases.begin_epoch(epoch)
    for _ in range(4 * len(network.rows) + 4):
        for process in network.processes.values():
            process.look()
            process.take(network.living)
            process.end_one(lambda leases: leases.acknowledgement())
            process.look()
    assert (network.rows[:, [EPOCH, IS_DONE]] == [epoch + 1, 1]).all(), network.rows
    assert len(set(network.effective)) == len(network.effective)
    assert {n for e, n in network.effective if e == epoch + 1} == set(range(len(network.rows)))
    assert (network.rows[:, HOLDER] != NOBODY).all()
