"""Push-sum: what a node holds and gives; nothing is ever lost, and all x tend to the mean."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.transacting_nodes import Node, World

from dpwa.policy.push_sum import UNIT, Mass
from dpwa.policy.transactions import Acceptance

ONE, TWO = b"pair-001", b"pair-002"


def published_mass():
    mass = Mass()
    mass.published()
    return mass


# One node


def test_a_node_starts_with_weight_1_and_gives_nothing_before_it_publishes():
    mass = Mass()
    assert (mass.held, mass.in_flight, mass.weight) == (UNIT, 0, 1.0)
    assert mass.split_half(ONE) is None


def test_each_share_is_half_of_what_is_left():
    mass = published_mass()
    assert [mass.split_half(ONE), mass.split_half(TWO)] == [UNIT // 2, UNIT // 4]
    assert (mass.held, mass.in_flight) == (UNIT // 4, 3 * UNIT // 4)


def test_the_same_transaction_gets_the_same_share_even_when_nothing_else_may_be_given():
    mass = published_mass()
    units = mass.split_half(ONE)
    mass.received(1)
    assert mass.split_half(TWO) is None
    assert mass.split_half(ONE) == units
    assert mass.in_flight == units


def test_halves_are_rounded_down_until_one_unit_is_left_for_good():
    mass = published_mass()
    given_away = 0
    for number in range(60):
        units = mass.split_half(b"%8d" % number)
        given_away += units or 0
    assert units is None
    assert mass.held == 1
    assert given_away == UNIT - 1


@pytest.mark.parametrize("touch", [lambda mass: mass.factor(7), lambda mass: mass.received(7)])
def test_nothing_is_given_from_the_beginning_of_a_merge_to_the_next_snapshot(touch):
    mass = published_mass()
    touch(mass)
    assert mass.split_half(ONE) is None
    mass.published()
    assert mass.split_half(ONE) is not None


def test_the_factor_is_the_part_that_comes():
    mass = Mass()
    assert mass.factor(UNIT) == 0.5
    assert mass.factor(UNIT // 4) == 0.2
    assert mass.held == UNIT
    mass.received(UNIT)
    assert mass.weight == 2.0
    assert mass.factor(UNIT) == 1 / 3


def test_an_odd_unit_stays():
    mass = Mass()
    mass.received(1)
    mass.published()
    assert mass.split_half(ONE) == UNIT // 2
    assert mass.held == UNIT // 2 + 1


def test_a_share_ends_once():
    mass = published_mass()
    half = mass.split_half(ONE)
    assert mass.returned(TWO) == 0.0
    mass.delivered(TWO)
    assert mass.in_flight == half
    mass.delivered(ONE)
    mass.delivered(ONE)
    assert mass.returned(ONE) == 0.0
    assert (mass.held, mass.in_flight) == (UNIT - half, 0)


def test_a_share_that_comes_back_to_the_same_model_is_simply_held_again():
    mass = published_mass()
    mass.split_half(ONE)
    mass.published()
    assert mass.returned(ONE) == mass.returned(ONE) == 0.0
    assert (mass.held, mass.in_flight) == (UNIT, 0)
    assert mass.split_half(TWO) == UNIT // 2


def test_a_share_that_comes_back_to_a_merged_model_pulls_it_by_its_part():
    mass = published_mass()
    mass.split_half(ONE)  # a half is left
    mass.received(UNIT)
    mass.published()
    assert mass.returned(ONE) == 0.25  # a half of two
    assert mass.held == 2 * UNIT
    assert mass.split_half(TWO) is None  # not what was published any more


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=60))
def test_no_unit_is_lost_or_made(steps):
    mass, received, gone = Mass(), 0, 0
    for what, number in steps:
        transaction = b"%8d" % number
        before = mass.in_flight
        if what == 0:
            mass.published()
        elif what == 1:
            units = mass.split_half(transaction)
            assert units is None or units >= 1
        elif what == 2:
            mass.delivered(transaction)
            gone += before - mass.in_flight
        elif what == 3:
            assert 0.0 <= mass.returned(transaction) < 1.0
        else:
            mass.received(number)
            received += number
        assert mass.held + mass.in_flight + gone == UNIT + received
        assert mass.held >= 1


# Two ends on a network that does its worst: x is exact


@dataclass(frozen=True)
class Sent:
    """A share on its way, or that of a transaction that is not over."""

    units: int
    x: Fraction


class Sharer(Node):
    """A node that asks peers for shares. The snapshot travels with `agreed`, for short."""

    def __init__(self, name, network):
        super().__init__(name, network, is_exclusive=False)
        self.mass = Mass()
        self.x = self.published = Fraction(self.rng.randrange(-1000, 1000))
        self.given, self.merged = {}, set()

    def take_turn(self):
        self.tick()
        if self.rng.random() < 0.7:
            self.published = self.x
            self.mass.published()

    def on_propose(self, peer, transaction):
        if self.accept(transaction, peer) is Acceptance.BUSY:
            return self.send(peer, "refused", transaction)
        units = self.mass.split_half(transaction)
        if units is None:
            self.transactions.decided(transaction, commit=False)
            return self.send(peer, "refused", transaction)
        sent = self.given.setdefault(transaction, Sent(units, self.published))
        assert sent.units == units
        return self.send(peer, "agreed", transaction, sent)

    def on_agreed(self, peer, transaction, sent):
        if not self.transactions.agreed(transaction):
            self.send(peer, "decision", transaction, self.decide(transaction, commit=False))
        elif self.decide(transaction, commit=True):
            assert transaction not in self.merged
            self.merged.add(transaction)
            self.mass.received(self._pull(sent, self.mass.held + sent.units))
        self.tick()

    def commit(self, transaction):
        self.mass.delivered(transaction)
        del self.given[transaction]

    def drop(self, transaction):
        factor = self.mass.returned(transaction)
        sent = self.given.pop(transaction)
        if factor:
            assert factor == float(Fraction(sent.units, self.mass.held))
            self._pull(sent, self.mass.held)

    def _pull(self, sent, all_units):
        """Merge, with the exact factor; there are no steps, so that x itself is the reference."""
        factor = Fraction(sent.units, all_units)
        assert self.mass.held == all_units or float(factor) == self.mass.factor(sent.units)
        self.x += factor * (sent.x - self.x)
        return sent.units


def totals(nodes):
    """Sums of units and of units * x, with what was given and is merged nowhere yet."""
    merged = set().union(*(node.merged for node in nodes))
    shares = [Sent(node.mass.held, node.x) for node in nodes]
    for node in nodes:
        assert node.mass.in_flight == sum(sent.units for sent in node.given.values())
        shares += [sent for transaction, sent in node.given.items() if transaction not in merged]
    return sum(s.units for s in shares), sum(s.units * s.x for s in shares)


@given(st.integers(0, 2**32), st.sampled_from([0.005, 0.02, 0.1]))
@settings(max_examples=20)
def test_both_sums_are_exact_whatever_arrives_when_and_how_often(seed, pause_s):
    world = World(Sharer, seed, ("a", "b", "c"), pause_s)
    nodes = world.nodes.values()
    start = totals(nodes)
    for _ in range(300):
        world.step()
        assert totals(nodes) == start
    for _ in range(3):
        world.all_once_more()
    assert totals(nodes) == start
    event(f"committed: {world.counted('committed')}, aborted: {world.counted('aborted')}")
    assert sum(node.mass.held for node in nodes) == len(nodes) * UNIT
    assert not any(node.mass.in_flight for node in nodes)
    assert world.counted("unresolved") == world.counted("given_up") == 0


# The law: x tends to the mean on every strongly connected directed graph


def random_directed_graph(count, rng):
    """A ring through all nodes in any order, so that it is strongly connected, and more edges."""
    order = rng.sample(range(count), count)
    graph = [set() for _ in range(count)]
    for here, there in zip(order, order[1:] + order[:1], strict=True):
        graph[here].add(there)
    for _ in range(2 * count):
        here, there = rng.sample(range(count), 2)
        graph[here].add(there)
    return [sorted(peers) for peers in graph]


def lockstep_round(x, masses, graph, rng, number):
    """All publish; each takes a share from every peer that it may ask, in any order; all merge."""
    for mass in masses:
        mass.published()
    published = x.copy()
    edges = [(here, there) for here, peers in enumerate(graph) for there in peers]
    rng.shuffle(edges)
    transactions = [b"%4d%4d" % (number, edge) for edge in range(len(edges))]
    shares = [
        masses[there].split_half(transaction)
        for transaction, (_, there) in zip(transactions, edges, strict=True)
    ]
    for transaction, (here, there), units in zip(transactions, edges, shares, strict=True):
        if units is not None:
            x[here] += masses[here].factor(units) * (published[there] - x[here])
            masses[here].received(units)
            masses[there].delivered(transaction)


def errors_after(rounds, graph, rng):
    x = np.array([rng.gauss(0, 1) for _ in graph])
    masses, mean = [Mass() for _ in graph], x.mean()
    for number in range(rounds):
        lockstep_round(x, masses, graph, rng, number)
        assert sum(mass.held for mass in masses) == len(graph) * UNIT
    return np.abs(x - mean)


@given(st.integers(2, 16), st.integers(0, 2**32))
@settings(max_examples=20)
def test_all_come_to_the_mean_of_a_random_directed_graph(count, seed):
    rng = random.Random(seed)
    graph = random_directed_graph(count, rng)
    assert errors_after(200, graph, rng).max() < 1e-12
