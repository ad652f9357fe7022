"""Transactions: what each side says, and that both ends apply or neither, on any network."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from support.examples import examples
from support.transacting_nodes import BUDGET_S, REMEMBER_S, Node, World

from dpwa.policy.transactions import (
    MAX_COPIES,
    MAX_OPEN,
    Acceptance,
    DecisionOutcome,
    Transactions,
)

ACCEPTED, REPEATED, BUSY = Acceptance.ACCEPTED, Acceptance.REPEATED, Acceptance.BUSY
ONE, TWO, THREE = b"pair-001", b"pair-002", b"pair-003"


def transactions_of(own="a", is_exclusive=True):
    return Transactions(own, is_exclusive=is_exclusive, remember_s=REMEMBER_S)


def asking(transaction=TWO, prepared=False):
    """A node that has asked b at time 0, and may have heard that it is prepared."""
    transactions = transactions_of()
    assert transactions.propose(transaction, "b", 0.0, BUDGET_S)
    if prepared:
        assert transactions.prepared(transaction)
    return transactions


def answering(transaction=TWO, ready=False):
    """A node that has accepted what a asked at time 0, and may be prepared."""
    transactions = transactions_of("b")
    assert transactions.accept(transaction, "a", 0.0, BUDGET_S) is ACCEPTED
    if ready:
        assert transactions.mark_ready(transaction)
    return transactions


# The asking side


def test_what_is_prepared_may_be_committed_before_the_deadline_only():
    transactions = asking()
    assert not transactions.may_commit(TWO, 1.0)
    assert transactions.agreed(TWO)
    assert not transactions.may_commit(TWO, 1.0)
    assert transactions.prepared(TWO)
    assert transactions.may_commit(TWO, BUDGET_S - 0.001)
    assert not transactions.may_commit(TWO, BUDGET_S)
    assert not transactions.decide(TWO, commit=True, now=BUDGET_S)
    assert transactions.undelivered(BUDGET_S) == ((TWO, "b", False),)


def test_what_is_not_prepared_is_aborted_instead_of_committed():
    transactions = asking()
    assert transactions.agreed(TWO)
    assert not transactions.decide(TWO, commit=True, now=1.0)
    assert transactions.report()["aborted"] == 1


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_stands(commit):
    transactions = asking(prepared=True)
    for said in (commit, not commit, commit):
        assert transactions.decide(TWO, commit=said, now=1.0) is commit
    transactions.noted(TWO)
    assert transactions.decide(TWO, commit=not commit, now=9.0) is commit
    assert transactions.report() == {
        "committed": int(commit),
        "aborted": int(not commit),
        "busy": 0,
        "unresolved": 0,
        "given_up": 0,
    }


def test_a_decision_is_sent_until_it_is_noted():
    transactions = asking(prepared=True)
    transactions.decide(TWO, commit=True, now=1.0)
    assert (
        transactions.undelivered(1.0) == transactions.undelivered(REMEMBER_S) == ((TWO, "b", True),)
    )
    transactions.noted(TWO)
    transactions.noted(TWO)
    assert transactions.undelivered(REMEMBER_S) == ()
    assert transactions.report()["given_up"] == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_that_is_never_noted_is_given_up_and_a_commit_is_counted(commit):
    transactions = asking(prepared=True)
    transactions.decide(TWO, commit=commit, now=1.0)
    assert transactions.undelivered(1.0 + REMEMBER_S) == ()
    assert transactions.report()["given_up"] == int(commit)
    assert transactions.decide(TWO, commit=not commit, now=62.0) is commit


def test_a_proposal_that_nobody_answers_ends_at_its_deadline():
    transactions = asking()
    assert not transactions.propose(THREE, "c", 1.9, 3.9)
    assert transactions.is_engaged(1.9)
    assert not transactions.is_engaged(BUDGET_S)
    assert transactions.expire(BUDGET_S) == ()
    assert transactions.undelivered(BUDGET_S) == ((TWO, "b", False),)
    assert not transactions.agreed(TWO)
    assert transactions.propose(THREE, "c", BUDGET_S, 4.0)


def test_a_refused_proposal_is_over_and_nobody_needs_to_be_told():
    transactions = asking()
    transactions.refused(TWO)
    transactions.refused(TWO)
    assert transactions.undelivered(0.5) == ()
    assert not transactions.is_engaged(0.5)
    assert not transactions.agreed(TWO)
    assert transactions.report()["busy"] == 1


def test_a_late_refusal_ends_an_abort_but_no_commit():
    transactions = asking(prepared=True)
    transactions.decide(TWO, commit=True, now=1.0)
    transactions.refused(TWO)
    assert transactions.undelivered(1.0) == ((TWO, "b", True),)
    transactions = asking()
    transactions.decide(TWO, commit=False, now=1.0)
    transactions.refused(TWO)
    assert transactions.undelivered(1.0) == ()


def test_an_unknown_transaction_is_aborted_by_presumption():
    transactions = transactions_of()
    assert not transactions.agreed(ONE)
    assert not transactions.prepared(ONE)
    assert not transactions.may_commit(ONE, 0.0)
    assert not transactions.decide(ONE, commit=True, now=0.0)
    assert transactions.undelivered(0.0) == ()
    assert set(transactions.report().values()) == {0}


def test_a_node_makes_no_transaction_with_itself():
    transactions = transactions_of("a")
    assert not transactions.propose(ONE, "a", 0.0, BUDGET_S)
    assert transactions.accept(TWO, "a", 0.0, BUDGET_S) is BUSY


# The answering side


def test_a_repeated_proposal_gets_the_same_answer_as_long_as_the_transaction_is_open():
    transactions = answering(ready=True)
    assert transactions.accept(TWO, "a", 1.0, 3.0) is REPEATED
    assert transactions.decided(TWO, commit=True) is DecisionOutcome.COMMIT
    assert transactions.accept(TWO, "a", 1.0, 3.0) is BUSY
    assert not transactions.mark_ready(TWO)


def test_a_transaction_that_was_refused_is_not_accepted_later():
    transactions = answering(ONE)
    assert transactions.accept(TWO, "c", 0.0, BUDGET_S) is BUSY
    assert transactions.decided(ONE, commit=False) is DecisionOutcome.ABORT
    assert transactions.accept(TWO, "c", 0.5, BUDGET_S) is BUSY
    assert transactions.accept(THREE, "c", 0.5, BUDGET_S) is ACCEPTED


@pytest.mark.parametrize(
    ("commit", "outcome", "count"),
    [(True, DecisionOutcome.COMMIT, "committed"), (False, DecisionOutcome.ABORT, "aborted")],
)
def test_a_decision_is_taken_once(commit, outcome, count):
    transactions = answering(ready=True)
    assert transactions.decided(TWO, commit) is outcome
    assert (
        transactions.decided(TWO, commit)
        is transactions.decided(TWO, not commit)
        is DecisionOutcome.KNOWN
    )
    assert transactions.report()[count] == 1
    assert not transactions.is_engaged(0.5)


def test_an_abort_that_overtakes_its_proposal_wins():
    transactions = transactions_of("b")
    assert transactions.decided(ONE, commit=False) is DecisionOutcome.UNKNOWN
    assert transactions.accept(ONE, "a", 0.0, BUDGET_S) is BUSY


def test_a_commit_of_what_was_not_prepared_is_not_applied():
    transactions = answering()
    assert transactions.decided(TWO, commit=True) is DecisionOutcome.ABORT
    assert transactions.report()["unresolved"] == 1


def test_an_unprepared_transaction_ends_at_its_deadline():
    transactions = answering()
    assert transactions.is_engaged(1.99)
    assert transactions.expire(1.99) == ()
    assert transactions.expire(BUDGET_S) == (TWO,)
    assert transactions.expire(BUDGET_S) == ()
    assert not transactions.mark_ready(TWO)
    assert transactions.decided(TWO, commit=False) is DecisionOutcome.KNOWN
    assert transactions.report()["aborted"] == 1


def test_a_prepared_transaction_stays_in_doubt_but_engages_the_node_no_longer():
    transactions = answering(ready=True)
    assert transactions.is_engaged(1.99)
    assert not transactions.is_engaged(BUDGET_S)
    assert transactions.accept(ONE, "c", BUDGET_S, 4.0) is ACCEPTED
    assert transactions.expire(3.0) == ()
    assert transactions.decided(TWO, commit=True) is DecisionOutcome.COMMIT
    assert transactions.is_engaged(3.0)  # in the other one


def test_a_prepared_transaction_is_unresolved_when_the_decision_never_comes():
    transactions = answering(ready=True)
    assert transactions.expire(BUDGET_S + REMEMBER_S - 0.001) == ()
    assert transactions.expire(BUDGET_S + REMEMBER_S) == (TWO,)
    assert transactions.decided(TWO, commit=True) is DecisionOutcome.KNOWN
    assert transactions.report()["unresolved"] == 1
    assert transactions.report()["committed"] == 0


def test_the_copies_of_transactions_in_doubt_are_bounded():
    transactions = transactions_of("b")
    for number in range(MAX_COPIES + 1):
        now = 3.0 * number
        transaction = b"%8d" % number
        expected = ACCEPTED if number < MAX_COPIES else BUSY
        assert transactions.accept(transaction, "a", now, now + BUDGET_S) is expected
        assert transactions.mark_ready(transaction) is (expected is ACCEPTED)
    assert transactions.decided(b"%8d" % 0, commit=True) is DecisionOutcome.COMMIT
    assert transactions.accept(b"another!", "a", now, now + BUDGET_S) is ACCEPTED


def test_a_proposal_without_time_left_is_refused():
    assert transactions_of("b").accept(ONE, "a", 2.0, 2.0) is BUSY


# Exclusive transactions


def test_an_own_proposal_gives_way_to_a_smaller_one_until_it_is_agreed():
    transactions = asking(TWO)
    assert transactions.accept(THREE, "c", 0.1, BUDGET_S) is BUSY
    assert transactions.accept(ONE, "c", 0.1, BUDGET_S) is ACCEPTED
    assert not transactions.agreed(TWO)
    assert not transactions.decide(TWO, commit=True, now=0.2)
    assert transactions.undelivered(0.2) == ((TWO, "b", False),)
    assert transactions.accept(b"pair-000", "d", 0.2, BUDGET_S) is BUSY
    agreed = asking(TWO)
    assert agreed.agreed(TWO)
    assert agreed.accept(ONE, "c", 0.1, BUDGET_S) is BUSY


def test_an_own_proposal_that_is_over_does_not_stand_in_the_way():
    transactions = asking(ONE)
    assert transactions.accept(TWO, "c", BUDGET_S, 4.0) is ACCEPTED
    assert transactions.undelivered(BUDGET_S) == ((ONE, "b", False),)


def test_transactions_that_are_not_exclusive_engage_nobody():
    transactions = transactions_of(is_exclusive=False)
    assert transactions.propose(ONE, "b", 0.0, BUDGET_S)
    assert transactions.propose(TWO, "c", 0.0, BUDGET_S)
    assert transactions.accept(THREE, "d", 0.0, BUDGET_S) is ACCEPTED
    assert transactions.accept(b"pair-004", "e", 0.0, BUDGET_S) is ACCEPTED
    assert not transactions.is_engaged(0.0)
    assert transactions.agreed(ONE)
    assert transactions.may_commit(ONE, 0.0)  # nothing is to be prepared
    assert not transactions.may_commit(TWO, 0.0)
    assert transactions.expire(BUDGET_S) == ()  # in doubt from the start
    assert transactions.decided(THREE, commit=True) is DecisionOutcome.COMMIT


def draw_proposals(rng):
    """Some nodes propose to one other each, all at once; the ids are in no order."""
    names = [f"w{i}" for i in range(rng.randrange(2, 9))]
    askers = rng.sample(names, rng.randrange(1, len(names) + 1))
    proposals = {
        rng.randbytes(8): (name, rng.choice([other for other in names if other != name]))
        for name in askers
    }
    return {name: transactions_of(name) for name in names}, proposals


def settle(rng, nodes, proposals):
    """Deliver all messages in any order; return the accepted and the agreed transactions."""
    for transaction, (asker, target) in proposals.items():
        assert nodes[asker].propose(transaction, target, 0.0, BUDGET_S)
    under_way = [("propose", transaction) for transaction in proposals]
    accepted, agreed = [], []
    while under_way:
        kind, transaction = under_way.pop(rng.randrange(len(under_way)))
        asker, target = proposals[transaction]
        if kind == "propose":
            answer = nodes[target].accept(transaction, asker, 0.0, BUDGET_S)
            assert answer is not REPEATED
            accepted += [transaction] * (answer is ACCEPTED)
            under_way.append(("agreed" if answer is ACCEPTED else "busy", transaction))
        elif kind == "busy":
            nodes[asker].refused(transaction)
        elif nodes[asker].agreed(transaction):
            agreed.append(transaction)
    return accepted, agreed


@given(st.integers(0, 2**32))
@examples(400)
def test_of_simultaneous_proposals_the_smallest_accepted_one_succeeds(seed):
    rng = random.Random(seed)
    nodes, proposals = draw_proposals(rng)
    accepted, agreed = settle(rng, nodes, proposals)
    assert min(accepted) in agreed
    pairs = [name for transaction in agreed for name in proposals[transaction]]
    assert len(pairs) == len(set(pairs))  # nobody is in two
    smallest = min(proposals)
    _, target = proposals[smallest]
    assert smallest in agreed or target in [
        name for transaction in accepted for name in proposals[transaction]
    ]


# Peers that end, and memory


def test_a_peer_that_has_ended_changes_no_decision_and_nothing_in_doubt():
    """It may have committed what this side has prepared, and its news of that be under way."""
    transactions = asking(ONE, prepared=True)
    transactions.decide(ONE, commit=True, now=0.1)
    assert transactions.accept(TWO, "b", 0.1, 2.1) is ACCEPTED
    assert transactions.mark_ready(TWO)
    assert transactions.forget_peer("b", 0.2) == ()
    assert transactions.undelivered(0.2) == ((ONE, "b", True),)
    assert transactions.decided(TWO, commit=True) is DecisionOutcome.COMMIT


def test_what_a_peer_that_has_ended_could_not_commit_is_over():
    transactions = transactions_of("a")
    assert transactions.accept(TWO, "c", 0.1, 2.1) is ACCEPTED
    assert transactions.forget_peer("b", 0.2) == ()
    assert transactions.forget_peer("c", 0.3) == (TWO,)
    assert not transactions.is_engaged(0.3)
    assert transactions.decided(TWO, commit=True) is DecisionOutcome.KNOWN
    assert transactions.report()["aborted"] == 1


def test_an_open_proposal_to_a_peer_that_has_ended_frees_the_node():
    transactions = asking(prepared=True)
    transactions.forget_peer("b", 0.5)
    assert not transactions.is_engaged(0.5)
    assert not transactions.decide(TWO, commit=True, now=0.5)
    assert [commit for _, _, commit in transactions.undelivered(0.5)] == [False]


def test_finished_transactions_are_remembered_for_a_while_and_not_too_many():
    transactions = transactions_of("b", is_exclusive=False)
    ids = [b"%8d" % number for number in range(3_000)]
    for transaction in ids:
        assert transactions.accept(transaction, "a", 0.0, BUDGET_S) is ACCEPTED
        assert transactions.decided(transaction, commit=True) is DecisionOutcome.COMMIT
    assert all(
        transactions.decided(transaction, commit=True) is DecisionOutcome.KNOWN
        for transaction in ids[-512:]
    )
    assert all(
        transactions.decided(transaction, commit=True) is DecisionOutcome.UNKNOWN
        for transaction in ids[:-1024]
    )


def test_a_finished_transaction_is_forgotten_with_time():
    transactions = transactions_of("b")
    transactions.expire(0.0)
    assert transactions.accept(ONE, "a", 0.0, BUDGET_S) is ACCEPTED
    assert transactions.decided(ONE, commit=False) is DecisionOutcome.ABORT
    transactions.expire(REMEMBER_S)
    assert transactions.decided(ONE, commit=False) is DecisionOutcome.KNOWN
    transactions.expire(2 * REMEMBER_S)
    assert transactions.decided(ONE, commit=False) is DecisionOutcome.UNKNOWN


def test_what_is_open_is_bounded():
    transactions = transactions_of(is_exclusive=False)
    for number in range(MAX_OPEN):
        assert transactions.propose(b"%8d" % number, "b", 0.0, BUDGET_S)
        assert transactions.accept(b"in%6d" % number, "b", 0.0, BUDGET_S) is ACCEPTED
    assert not transactions.propose(ONE, "b", 0.0, BUDGET_S)
    assert transactions.accept(ONE, "b", 0.0, BUDGET_S) is BUSY
    transactions.expire(BUDGET_S)
    assert transactions.propose(ONE, "b", 3.0, 5.0)
    transactions.decide(ONE, commit=False, now=3.0)
    assert len(transactions.undelivered(3.0)) == MAX_OPEN


# Two ends on a network that does its worst; whole nodes are in test_virtual_transactions


class Exchanger(Node):
    """A node of symmetric exchange as the runtime has it: x is one number, exact."""

    def __init__(self, name, network, remember_s=REMEMBER_S):
        super().__init__(name, network, is_exclusive=True, remember_s=remember_s)
        self.x = self.trained = Fraction(
            self.rng.randrange(-1000, 1000)
        )  # with gossip, and without
        self.peers, self.own, self.theirs = {}, {}, {}  # by transaction, as long as it is open
        self.answered = set()
        self.applied = {}  # by transaction: the delta

    def take_turn(self):
        self.tick()
        step = self.rng.randrange(-10, 11)
        self.x += step
        self.trained += step

    def propose(self, transaction, peer):
        if super().propose(transaction, peer):
            self._publish(transaction, peer)

    def tick(self):
        super().tick()
        for transaction in [each for each in self.asked if each in self.own]:
            self._go_on_asking(transaction)
        for transaction in self.answered & self.own.keys():
            self._go_on_answering(transaction)

    def on_propose(self, peer, transaction):
        acceptance = self.accept(transaction, peer)
        if acceptance is ACCEPTED:
            self.answered.add(transaction)
            self._publish(transaction, peer)
        self.send(peer, "refused" if acceptance is BUSY else "agreed", transaction)
        self.tick()

    def on_agreed(self, peer, transaction):
        if not self.transactions.agreed(transaction):
            self.send(peer, "decision", transaction, self._abort(transaction))
        self.tick()

    def on_prepared(self, peer, transaction):
        if not self.transactions.prepared(transaction):
            self.send(peer, "decision", transaction, self._abort(transaction))
        self.tick()

    def on_fetch(self, peer, transaction):
        if transaction in self.own:
            self.send(peer, "snapshot", transaction, self.own[transaction])

    def on_snapshot(self, peer, transaction, x):
        if transaction in self.own:
            self.theirs[transaction] = x
        self.tick()

    def commit(self, transaction):
        assert transaction not in self.applied
        self.applied[transaction] = (self.theirs[transaction] - self.own[transaction]) / 2
        self.x += self.applied[transaction]
        self.drop(transaction)

    def drop(self, transaction):
        for of_transactions in (self.peers, self.own, self.theirs):
            of_transactions.pop(transaction, None)

    def _abort(self, transaction):
        committed = self.decide(transaction, commit=False)
        self.drop(transaction)
        return committed

    def _publish(self, transaction, peer):
        self.peers[transaction], self.own[transaction] = peer, self.x

    def _go_on_asking(self, transaction):
        if transaction not in self.theirs:
            self.send(self.peers[transaction], "propose", transaction)
            self.send(self.peers[transaction], "fetch", transaction)
        elif self.transactions.may_commit(transaction, self.now):
            assert self.decide(transaction, commit=True)
            self.commit(transaction)
            return
        if not self.transactions.is_engaged(self.now):
            self._abort(transaction)

    def _go_on_answering(self, transaction):
        if transaction not in self.theirs:
            self.send(self.peers[transaction], "fetch", transaction)
        elif self.transactions.mark_ready(transaction):
            self.send(self.peers[transaction], "prepared", transaction)


def one_sided(nodes):
    """Transactions between two of these nodes that only one of them has applied."""
    sides = {}
    for node in nodes:
        for transaction in node.asked.keys() | node.answered:
            sides.setdefault(transaction, []).append(node.applied.get(transaction))
    both = {transaction: deltas for transaction, deltas in sides.items() if len(deltas) == 2}
    assert all(one == -other for one, other in both.values() if None not in (one, other))
    return {transaction for transaction, deltas in both.items() if deltas.count(None) == 1}


@given(st.integers(0, 2**32), st.sampled_from([0.005, 0.02, 0.1]))
@examples(40)
def test_both_ends_apply_or_neither_whatever_arrives_when_and_how_often(seed, pause_s):
    world = World(partial(Exchanger, remember_s=1e4), seed, ("a", "b", "c"), pause_s)
    for _ in range(300):
        world.step()
    for _ in range(3):
        world.all_once_more()
    nodes = world.nodes.values()
    event(f"committed on both sides: {world.counted('committed') // 2}")
    assert one_sided(nodes) == set()
    assert sum(node.x for node in nodes) == sum(node.trained for node in nodes)
    assert world.counted("unresolved") == 0
    assert not any(node.transactions.undelivered(node.now) for node in nodes)
