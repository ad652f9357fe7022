"""Symmetric exchange and push-sum between real nodes: both ends or neither, and no mass is lost.

Many whole nodes that stall, are cut off and end are in tests/sim/test_virtual_transactions.py.
"""

import math
import random
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from support.inside import context_of
from support.members import members, settle, sum_of, vector
from support.nodes import at_once, config_of, eventually, status_of
from support.partners import partner_of
from support.times import at_most

from dpwa.adapters.module_state import ModuleState
from dpwa.algorithms import Terms
from dpwa.clock import SystemClock
from dpwa.data.layout import Layout
from dpwa.data.snapshot import FinishedCopy, SnapshotPool
from dpwa.node.transactions.manager import MAX_PEER_PROPOSALS, Settled, TransactionManager
from dpwa.policy import beginners
from dpwa.policy.push_sum import UNIT
from dpwa.runtime import SYSTEM
from dpwa.types import TrainingProgress
from dpwa.wire.messages import Fetch, NotReady
from dpwa.wire.transaction_messages import Agreed, Busy, Prepared, Propose, TransactionDecision

TIMEOUT_MS = 1000
SMALLEST = bytes(8)  # a proposal that goes before all others
SECOND = bytes(7) + b"\x01"
LARGEST = b"\xff" * 8
CHURN_SEED = 5
CHURN_S = 0.5


@pytest.fixture(autouse=True)
def nobody_is_a_beginner(monkeypatch):
    """Threads begin ten rounds apart at times: who then took over would not keep the sum."""
    monkeypatch.setattr(beginners, "LEAD", math.inf)


def transactions_of(member):
    return member.node.report()["transactions"]


def vector_of(value, size=8):
    return torch.full((size,), float(value), dtype=torch.float64)


@contextmanager
def pair(algorithm="symmetric", value=1.0, asks=True, **settings):
    """A node w1 and a partner w2 that plays by the rules only as far as a test wants."""
    if algorithm == "symmetric":
        settings = {"fetch_probability": float(asks), **settings}
    else:
        settings = {"push_sum": {"probability": float(asks)}, **settings}
    settings = {"transport": "tcp", "timeout_ms": TIMEOUT_MS, **settings}
    config = config_of(2, algorithm=algorithm, **settings)
    with members(config, [value]) as [member], partner_of(member) as partner:
        yield member, partner


def waited(member):
    """Wait for what was asked for; return what was merged, having checked the bound."""
    start = time.monotonic()
    merge = member.adapter.update_wait()
    assert time.monotonic() - start <= at_most((TIMEOUT_MS + 50) / 1000)
    return merge


def assert_nothing_is_held(member):
    """After the last transaction: no record, no lease, and the node publishes as before."""
    eventually(lambda: not member.records)
    assert not member.settled
    member.adapter.update_wait()  # which ends the round
    pool = context_of(member.node).pool
    eventually(lambda: not any(slot.leases for slot in (*pool._slots, *pool._lost)))
    before = member.node.version
    for _ in range(4):
        member.adapter.update_send()
        member.node.rounds.skip()
    assert member.node.version == before + 4
    report = member.node.report()
    assert report["rounds_skipped"] == 0
    assert report["bad_messages"] == 0


# The asking side: a partner that stops at each step


def asked(member, partner):
    """Let the node ask; return its proposal."""
    member.adapter.update_send()
    return partner.heard(Propose)


def test_both_ends_move_half_way():
    with pair(value=1.0) as (member, partner):
        proposal = asked(member, partner)
        partner.agree(proposal)
        partner.serve(partner.heard(Fetch), 3.0)
        _, values = partner.fetched(proposal.version)
        assert (values == 1.0).all()
        partner.prepare(proposal.transaction)
        decided = partner.heard(TransactionDecision)
        assert decided.commit
        partner.note(decided)
        assert waited(member).factor == 0.5
        torch.testing.assert_close(member.x, vector_of(2.0))
        eventually(lambda: member.is_settled)
        assert_nothing_is_held(member)


@pytest.mark.parametrize("last_step", ["nothing", "agreed", "served", "fetched"])
def test_a_partner_that_stops_leaves_the_asking_side_as_it_was(last_step):
    with pair() as (member, partner):
        proposal = asked(member, partner)
        if last_step != "nothing":
            partner.agree(proposal)
        if last_step in ("served", "fetched"):
            partner.serve(partner.heard(Fetch), 3.0)
        if last_step == "fetched":
            partner.fetched(proposal.version)
        assert waited(member) is None
        torch.testing.assert_close(member.x, vector_of(1.0))
        assert not partner.heard(TransactionDecision).commit
        assert status_of(member.adapter.connection, "w2")["health"] == "silent"
        assert_nothing_is_held(member)


def test_prepared_before_the_own_fetch_is_complete_is_as_good_as_after():
    with pair() as (member, partner):
        proposal = asked(member, partner)
        partner.agree(proposal)
        fetch = partner.heard(Fetch)
        partner.prepare(proposal.transaction)
        partner.prepare(proposal.transaction)
        partner.serve(fetch, 3.0)
        assert partner.heard(TransactionDecision).commit
        assert waited(member).factor == 0.5
        torch.testing.assert_close(member.x, vector_of(2.0))


def test_who_is_prepared_for_a_transaction_that_nobody_knows_is_told_that_it_is_off():
    with pair(asks=False) as (member, partner):
        member.round()
        partner.prepare(b"whatever")
        decided = partner.heard(TransactionDecision)
        assert (decided.transaction, decided.commit) == (b"whatever", False)
        assert_nothing_is_held(member)


def test_a_decision_is_told_until_it_is_noted():
    with pair() as (member, partner):
        proposal = asked(member, partner)
        partner.agree(proposal)
        partner.serve(partner.heard(Fetch), 3.0)
        partner.prepare(proposal.transaction)
        told = [partner.heard(TransactionDecision) for _ in range(3)]
        assert all(
            decided.commit and decided.transaction == proposal.transaction for decided in told
        )
        partner.note(told[0])
        eventually(lambda: not member.transactions.has_undelivered)
        waited(member)
        member.adapter.update_wait()
        torch.testing.assert_close(member.x, vector_of(2.0))  # merged once


@pytest.mark.parametrize("what", ["another transaction", "no number"])
def test_garbage_in_place_of_an_answer_is_no_transaction(what):
    with pair() as (member, partner):
        proposal = asked(member, partner)
        if what == "another transaction":
            partner.agree(proposal, transaction=b"whatever")
        else:
            partner.agree(proposal, version=2**62)
            partner.serve(partner.heard(Fetch), math.nan, version=2**62)
        assert not partner.heard(TransactionDecision).commit
        assert waited(member) is None
        torch.testing.assert_close(member.x, vector_of(1.0))
        outcome = "diverged" if what == "no number" else "misbehaved"
        assert status_of(member.adapter.connection, "w2")["outcomes"] == {outcome: 1}
        assert_nothing_is_held(member)


def test_a_partner_whose_snapshot_is_gone_is_there_and_is_not_warned_of(caplog):
    with pair() as (member, partner):
        partner.agree(asked(member, partner), version=2**62)
        partner.serve(partner.heard(Fetch), version=5)
        assert not partner.heard(TransactionDecision).commit
        assert waited(member) is None
        torch.testing.assert_close(member.x, vector_of(1.0))
        status = status_of(member.adapter.connection, "w2")
        assert (status["health"], status["outcomes"]) == ("alive", {"superseded": 1})
        assert not [text for text in caplog.messages if "cannot be reached" in text]
        assert_nothing_is_held(member)


def test_a_busy_partner_costs_no_time_and_no_blame():
    with pair() as (member, partner):
        proposal = asked(member, partner)
        start = time.monotonic()
        partner.answer(Busy(request=proposal.request, transaction=proposal.transaction))
        assert waited(member) is None
        assert time.monotonic() - start < at_most(TIMEOUT_MS / 2000)
        assert status_of(member.adapter.connection, "w2")["outcomes"] == {"busy": 1}
        assert_nothing_is_held(member)


# The answering side


@pytest.mark.parametrize("last_step", ["proposed", "served"])
def test_an_asker_that_vanishes_leaves_the_answering_side_free_after_the_deadline(last_step):
    with pair(asks=False) as (member, partner):
        member.round()
        partner.ask(partner.proposal(SMALLEST))
        fetch = partner.heard(Fetch)
        if last_step == "served":
            partner.serve(fetch, 3.0)
            partner.heard(Prepared)
        assert isinstance(partner.ask(partner.proposal(LARGEST, request=2)), Busy)
        # Both clocks began within milliseconds of each other.
        eventually(lambda: not member.transactions.is_engaged, timeout_s=TIMEOUT_MS / 1000 + 0.25)
        member.round()
        torch.testing.assert_close(member.x, vector_of(1.0))
        if last_step == "proposed":
            assert_nothing_is_held(member)
        else:  # in doubt: it might be told yet that the transaction holds
            assert partner.decide(SMALLEST, commit=True)
            member.adapter.update_wait()
            torch.testing.assert_close(member.x, vector_of(2.0))
            assert_nothing_is_held(member)


def test_a_proposal_that_comes_twice_is_agreed_to_alike_and_collected_once():
    with pair(asks=False) as (member, partner):
        member.round()
        first = partner.ask(partner.proposal(SMALLEST))
        member.round()
        again = partner.ask(partner.proposal(SMALLEST, request=2))
        assert (
            (again.transaction, again.version)
            == (first.transaction, first.version)
            == (SMALLEST, 1)
        )
        partner.heard(Fetch)
        partner.hears_no(Fetch, 0.2)


def test_a_commit_of_what_was_not_prepared_is_not_applied_and_warned_of(caplog):
    with pair(asks=False) as (member, partner):
        member.round()
        partner.ask(partner.proposal(SMALLEST))
        assert partner.decide(SMALLEST, commit=True)
        member.round()
        torch.testing.assert_close(member.x, vector_of(1.0))
        assert transactions_of(member)["unresolved"] == 1
        assert_nothing_is_held(member)
    assert "did not confirm 1 of 1 exchanges" in caplog.text


def test_prepared_for_a_transaction_that_the_node_itself_prepares_changes_nothing():
    with pair(asks=False) as (member, partner):
        member.round()
        partner.exchange(SMALLEST, 3.0)
        partner.prepare(SMALLEST)
        partner.hears_no(TransactionDecision, 0.2)
        assert partner.decide(SMALLEST, commit=True)
        member.round()
        torch.testing.assert_close(member.x, vector_of(2.0))
        assert_nothing_is_held(member)


def test_values_that_are_not_finite_are_not_taken_by_the_answering_side():
    with pair(asks=False) as (member, partner):
        member.round()
        partner.ask(partner.proposal(SMALLEST))
        partner.serve(partner.heard(Fetch), math.nan)
        assert not partner.heard(Prepared).is_there
        assert not member.transactions.is_engaged
        assert status_of(member.adapter.connection, "w2")["health"] == "diverged"
        assert partner.decide(SMALLEST, commit=True)
        member.round()
        torch.testing.assert_close(member.x, vector_of(1.0))


@pytest.mark.parametrize("algorithm", ["symmetric", "push_sum"])
def test_a_node_that_has_diverged_proposes_nothing(algorithm):
    with pair(algorithm, value=math.nan) as (member, partner):
        member.adapter.update_send()
        partner.hears_no(Propose, 0.2)
        assert waited(member) is None


def test_a_proposal_may_not_ask_for_more_time_than_a_transaction_takes():
    with pair(asks=False) as (member, partner):
        member.round()
        assert isinstance(partner.ask(partner.proposal(SMALLEST, budget_ms=2**31)), Agreed)
        eventually(lambda: not member.transactions.is_engaged, timeout_s=3 * TIMEOUT_MS / 1000)


def test_who_cannot_be_reached_is_told_to_come_later():
    config = config_of(3, algorithm="symmetric", fetch_probability=0.0, transport="tcp")
    with members(config, [1.0]) as [member], partner_of(member, "w2") as partner:
        member.round()
        stranger = partner.proposal(SMALLEST, name="w3")  # of whom only this message is heard
        assert isinstance(partner.ask(stranger), Busy)
        assert_nothing_is_held(member)


def test_a_node_that_has_diverged_gives_its_snapshot_to_nobody():
    with pair(asks=False) as (member, partner):
        member.adapter.update_send(math.inf)
        assert isinstance(partner.ask(partner.proposal(SMALLEST)), Busy)
        member.adapter.update_send(0.5)
        assert isinstance(partner.ask(partner.proposal(LARGEST)), Agreed)


def test_before_the_first_snapshot_nothing_is_agreed_to():
    with pair(asks=False) as (_, partner):
        assert isinstance(partner.ask(partner.proposal(SMALLEST)), NotReady)


def test_of_two_proposals_that_cross_the_smaller_goes_first():
    with pair() as (member, partner):
        proposal = asked(member, partner)
        agreed = partner.ask(partner.proposal(SMALLEST))
        assert isinstance(agreed, Agreed)
        partner.agree(proposal)  # too late
        partner.serve(partner.heard(Fetch), 3.0)
        partner.heard(Prepared)
        assert partner.decide(SMALLEST, commit=True)
        member.adapter.update_wait()
        torch.testing.assert_close(member.x, vector_of(2.0))


def test_askers_in_doubt_keep_no_more_snapshots_than_there_is_room_for():
    with pair(asks=False, timeout_ms=100) as (member, partner):
        for index in range(8):
            member.round()
            answer = partner.ask(partner.proposal(bytes([index] * 8)))
            if isinstance(answer, Agreed):
                partner.serve(partner.heard(Fetch), 3.0)
                partner.heard(Prepared)
            eventually(lambda: not member.transactions.is_engaged)
        assert isinstance(answer, Busy)
        before = member.node.version
        eventually(lambda: member.round() or member.node.version > before + 3, timeout_s=3.0)
        assert len(member.records) <= 4


# Push-sum


def units_of(member):
    """What a node holds, what it has given and nobody has confirmed, and what is to be merged."""
    transactions = transactions_of(member)
    waiting = [s.units for s in tuple(member.settled) if s.returned is None]
    return transactions["units"] + transactions["units_in_flight"] + sum(waiting)


def given(partner, transaction=SMALLEST, **fields):
    """Ask for a share; return what was agreed to."""
    agreed = partner.ask(partner.proposal(transaction, **fields))
    assert isinstance(agreed, Agreed), agreed
    return agreed


def taken(member, partner, value, units):
    """Let the node take a share of the partner."""
    share_of(member, partner, value, units)
    return waited(member)


def share_of(member, partner, value, units=UNIT):
    """Let the node take a share of the partner, and leave it to be merged."""
    proposal = asked(member, partner)
    partner.agree(proposal, units=units)
    partner.serve(partner.heard(Fetch), value)
    decided = partner.heard(TransactionDecision)
    assert decided.commit
    partner.note(decided)


def test_a_share_that_comes_back_after_a_merge_brings_its_parameters_along():
    with pair("push_sum", value=1.0) as (member, partner):
        asked(member, partner)
        assert waited(member) is None
        given(partner)  # half of 1, with x = 1
        merge = taken(member, partner, value=4.0, units=UNIT)  # (1/2 * 1 + 1 * 4) / (3/2) = 3
        assert merge.factor == pytest.approx(2 / 3)
        torch.testing.assert_close(member.x, vector_of(3.0))
        assert partner.decide(SMALLEST, commit=False)
        member.adapter.update_wait()
        torch.testing.assert_close(member.x, vector_of(2.5))  # (1 * 1 + 1 * 4) / 2
        assert transactions_of(member)["units"] == 2 * UNIT


def test_nothing_is_given_between_a_merge_and_the_next_snapshot():
    with pair("push_sum") as (member, partner):
        taken(member, partner, value=4.0, units=UNIT)
        assert isinstance(partner.ask(partner.proposal(SMALLEST)), NotReady)
        member.adapter.update_send()
        assert given(partner, LARGEST).units == UNIT


def test_a_share_of_which_the_parameters_do_not_come_is_not_taken():
    with pair("push_sum") as (member, partner):
        proposal = asked(member, partner)
        partner.agree(proposal, units=UNIT)
        partner.heard(Fetch)
        assert waited(member) is None
        assert not partner.heard(TransactionDecision).commit
        assert units_of(member) == UNIT


def test_askers_of_shares_that_vanish_stop_neither_snapshots_nor_memory():
    with pair("push_sum", asks=False, timeout_ms=100) as (member, partner):
        answers = []
        for index in range(30):
            member.round()
            answers.append(partner.ask(partner.proposal(bytes([index] * 8))))
            time.sleep(0.02)
        assert isinstance(answers[-1], Busy)
        before = member.node.version
        for _ in range(5):
            member.round()
        assert member.node.version == before + 5
        assert units_of(member) == UNIT
        memory = member.node.report()["memory"]
        assert memory["slots"] + memory["lost_slots"] <= 6


# A model that changes in the middle


def freeze(net):
    net[0].weight.requires_grad_(False)


def two_layers(value):
    return torch.nn.Sequential(vector(value), vector(value))


@pytest.mark.parametrize("is_committed", [False, True])
def test_what_was_agreed_on_another_model_is_left(is_committed):
    config = config_of(2, algorithm="symmetric", transport="tcp", fetch_probability=0.0)
    with members(config, [1.0], make=two_layers) as [member], partner_of(member) as partner:
        member.round()
        partner.exchange(SMALLEST, 3.0)
        if is_committed:
            assert partner.decide(SMALLEST, commit=True)
        freeze(member.net)
        member.round()
        if not is_committed:
            assert partner.decide(SMALLEST, commit=True)
        member.round()
        assert (member.x == 1.0).all()


def test_mass_stays_when_the_model_changes():
    config = config_of(2, algorithm="push_sum", transport="tcp", push_sum={"probability": 1.0})
    with members(config, [1.0], make=two_layers) as [member], partner_of(member) as partner:
        share_of(member, partner, 3.0)
        freeze(member.net)
        assert member.adapter.update_wait() is None
        assert (member.x == 1.0).all()
        assert transactions_of(member)["units"] == 2 * UNIT


def test_a_transaction_may_be_under_way_when_a_node_closes():
    with pair(asks=False) as (member, partner):
        member.round()
        partner.exchange(SMALLEST, 3.0)
        member.adapter.close()
        assert (member.x == 1.0).all()


# Peers that are removed in the middle


def remove_and_add(member, peer):
    port = member.node.config.node(peer).port
    member.node.remove_peer(peer)
    member.node.add_peer(peer, "127.0.0.1", port)


@pytest.mark.parametrize("algorithm", ["symmetric", "push_sum"])
def test_peers_that_are_removed_and_added_in_the_middle_of_transactions_change_no_sum(algorithm):
    config = config_of(4, algorithm=algorithm, transport="tcp", timeout_ms=1500)
    with members(config, [1.0, 2.0, 3.0, 4.0]) as nodes:
        stop = threading.Event()

        def run(member):
            rng = random.Random(f"{CHURN_SEED}/{member.name}")
            while not stop.is_set():
                member.adapter.update_send()
                if rng.random() < 0.2:
                    time.sleep(0.003 * rng.random())  # to be in the middle of something
                    remove_and_add(member, rng.choice(member.adapter.peers))
                member.adapter.update_wait()
                time.sleep(0.002)

        def end():
            time.sleep(CHURN_S)
            try:  # a busy machine needs longer
                eventually(lambda: sum(transactions_of(m)["committed"] for m in nodes) > 20, 30.0)
            finally:
                stop.set()

        at_once([end, *(lambda member=member: run(member) for member in nodes)])
        settle(nodes)
        ended = [transactions_of(member) for member in nodes]
        if algorithm == "push_sum":
            assert sum(transactions["units"] for transactions in ended) == 4 * UNIT, CHURN_SEED
            assert not any(transactions["units_in_flight"] for transactions in ended)
        torch.testing.assert_close(sum_of(nodes), vector_of(10.0))


@pytest.mark.parametrize("commit", [True, False])
def test_a_share_given_to_a_peer_that_is_removed_is_in_doubt_until_its_word_is_here(commit):
    with pair("push_sum", asks=False) as (member, partner):
        member.round()
        given(partner)
        remove_and_add(member, "w2")
        member.round()
        assert transactions_of(member)["units_in_flight"] == UNIT // 2
        assert partner.decide(SMALLEST, commit=commit)
        member.round()
        ended = transactions_of(member)
        assert (ended["units"], ended["units_in_flight"]) == (UNIT // 2 if commit else UNIT, 0)


def test_what_was_prepared_for_a_peer_that_is_removed_is_merged_when_it_commits():
    with pair(asks=False) as (member, partner):
        member.round()
        partner.exchange(SMALLEST, 3.0)
        remove_and_add(member, "w2")
        member.round()
        assert partner.decide(SMALLEST, commit=True)  # and so has merged its half
        member.adapter.update_wait()
        torch.testing.assert_close(member.x, vector_of(2.0))


def test_what_was_published_before_an_exchange_is_merged_is_not_exchanged_again():
    with pair(asks=False) as (member, partner):
        member.adapter.update_send()
        partner.exchange(SMALLEST, 3.0)
        assert partner.decide(SMALLEST, commit=True)
        member.adapter.update_send()  # without a wait: the parameters of before once more
        assert isinstance(partner.ask(partner.proposal(SECOND)), Busy)
        member.adapter.update_wait()
        torch.testing.assert_close(member.x, vector_of(2.0))
        assert isinstance(partner.ask(partner.proposal(SECOND)), Busy)
        member.adapter.update_send()
        assert isinstance(partner.ask(partner.proposal(SECOND)), Agreed)


def test_a_peer_that_is_removed_is_told_what_was_decided():
    with pair() as (member, partner):
        member.adapter.update_send()
        proposal = partner.heard(Propose)
        partner.agree(proposal)
        partner.serve(partner.heard(Fetch), 3.0)
        partner.prepare(proposal.transaction)
        assert partner.heard(TransactionDecision).commit  # say that it is lost
        member.node.remove_peer("w2")
        told = partner.heard(TransactionDecision)
        assert (told.transaction, told.commit) == (proposal.transaction, True)
        assert member.adapter.update_wait().factor == 0.5


# Nodes that nobody would take


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_node_whose_loss_is_no_number_keeps_nobody_busy(loss):
    with pair() as (member, partner):
        member.adapter.update_send(loss)
        partner.hears_no(Propose, 0.2)
        assert isinstance(partner.ask(partner.proposal(SMALLEST)), Busy)
        assert not member.transactions.is_engaged
        assert member.adapter.update_wait(loss) is None


def test_a_partner_in_quarantine_is_no_partner():
    with pair(asks=False) as (member, partner):
        member.round()
        context_of(member.node).peer_table.quarantine({"w2"})
        assert isinstance(partner.ask(partner.proposal(SMALLEST)), Busy)
        context_of(member.node).peer_table.quarantine(())
        assert isinstance(partner.ask(partner.proposal(SECOND)), Agreed)


# Partners that want too much


def test_more_mass_than_there_is_is_not_taken():
    with pair("push_sum") as (member, partner):
        member.adapter.update_send()
        partner.agree(partner.heard(Propose), units=2**62)
        assert not partner.heard(TransactionDecision).commit
        assert member.adapter.update_wait() is None
        assert transactions_of(member)["units"] == UNIT
        outcomes = status_of(member.adapter.connection, "w2")["outcomes"]
        assert outcomes == {"misbehaved": 1}


def test_one_peer_that_asks_again_and_again_does_not_get_all_of_the_mass():
    with pair("push_sum", asks=False) as (member, partner):
        member.round()
        member.adapter.update_send()
        answers = [partner.ask(partner.proposal(bytes([index] * 8))) for index in range(60)]
        assert sum(isinstance(answer, Agreed) for answer in answers) == MAX_PEER_PROPOSALS
        assert transactions_of(member)["units"] == UNIT >> MAX_PEER_PROPOSALS


def pool_of_one():
    pool = SnapshotPool(SystemClock(), 5.0, 3)

    def write(data):
        data[:] = 1
        return FinishedCopy(True)

    pool.publish_snapshot(Layout.of_bytes(), 8, TrainingProgress(clock=1.0), write)
    return pool


def test_a_snapshot_that_comes_three_times_is_held_once():
    pool, theirs = pool_of_one(), pool_of_one()
    transactions = TransactionManager("w1", Terms.EXCHANGE, pool, SYSTEM, 5.0)
    transaction = transactions.propose("w2", 1, SystemClock().now() + 2.0)
    assert transactions.agreed(transaction, 0)
    for _ in range(3):
        assert not transactions.complete(transaction, theirs.at(1))
    assert len(theirs._slots[0].leases) == 1
    transactions.abort(transaction)
    assert not theirs._slots[0].leases


# The trainer


class LateCopy:
    """A copy that is made when somebody waits for it, as of a device that is busy."""

    def __init__(self, make):
        self._make, self._is_finite = make, None

    def is_ready(self):
        return self._is_finite is not None

    def wait_complete(self):
        self._is_finite = self._is_finite or self._make().wait_complete()
        return self._is_finite


def test_a_share_that_comes_back_is_merged_with_parameters_that_are_there(monkeypatch):
    config = config_of(2, algorithm="push_sum", push_sum={"probability": 0.0}, timeout_ms=1500)
    with members(config, [5.0]) as [member]:
        member.adapter.update_send()
        assert member.transactions.accept(SMALLEST, "w2", 0.2).units == UNIT // 2
        member.adapter.update_wait()
        member.transactions._mass.received(0)  # something is merged in between
        member.transactions.decided(SMALLEST, commit=False)
        real = ModuleState.start_copy
        monkeypatch.setattr(
            ModuleState, "start_copy", lambda *args, **how: LateCopy(lambda: real(*args, **how))
        )
        for slot in context_of(member.node).pool._slots:  # where the late copy goes to, for one
            if not slot.leases and slot is not context_of(member.node).pool._newest:
                slot.segment.data[:] = np.uint8(0)
        member.adapter.update_send()
        member.adapter.update_wait()
        torch.testing.assert_close(member.x, vector_of(5.0))  # 5 into 5


def test_an_interrupt_in_a_merge_leaves_what_else_was_agreed_on_for_later(monkeypatch):
    with pair("push_sum") as (member, partner):
        share_of(member, partner, 4.0)
        share_of(member, partner, 4.0)
        assert len(member.settled) == 2

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(member.node.rounds.merger, "merge", interrupted)
            with pytest.raises(KeyboardInterrupt):
                member.adapter.update_wait()
        assert [each.is_taken for each in member.settled] == [True, False]
        assert member.adapter.update_wait() is not None
        assert transactions_of(member)["units"] == 3 * UNIT


def test_all_strangers_together_get_no_more_shares_than_one_peer():
    with pair("push_sum", asks=False, timeout_ms=1500) as (member, partner):
        member.adapter.update_send()
        for i in range(60):
            partner.ask(partner.proposal(bytes([i] * 8), name=f"x{i}"))
        assert transactions_of(member)["units"] == UNIT // 2**4  # as if they were one


def newest(member):
    pool = context_of(member.node).pool
    pool.settle()
    return pool.newest()


def test_an_exchange_is_merged_against_what_was_published_when_it_was_agreed_on(monkeypatch):
    """It is settled a round later, when the node has published something else."""
    config = config_of(2, algorithm="symmetric", fetch_probability=0.0)
    with members(config, [0.0, 10.0]) as (one, two):
        monkeypatch.setattr(one.transactions, "factor", lambda _: 0.5)
        for member in (one, two):
            member.adapter.update_send()
        agreed = Settled("w2", newest(two), newest(one))
        one.adapter.update_wait()
        one.net.weight.data.fill_(4.0)
        one.adapter.update_send()
        one.settled.append(agreed)
        one.adapter.update_wait()
        assert set(one.net.weight.flatten().tolist()) == {4.0 + 0.5 * (10.0 - 0.0)}


def test_mass_that_comes_after_another_merge_is_merged_against_what_that_has_left(monkeypatch):
    config = config_of(3, algorithm="push_sum", fetch_probability=0.0)
    with members(config, [4.0, 10.0, 20.0]) as (one, two, three):
        monkeypatch.setattr(one.transactions, "factor", lambda _: 0.5)
        for member in (one, two, three):
            member.adapter.update_send()
        for name, other in (("w2", two), ("w3", three)):
            one.settled.append(Settled(name, newest(other)))
        one.adapter.update_wait()
        first = 4.0 + 0.5 * (10.0 - 4.0)
        assert set(one.net.weight.flatten().tolist()) == {first + 0.5 * (20.0 - first)}
