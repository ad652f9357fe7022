"""Transactions while peers are removed, trainers are interrupted, and partners ask for too much."""

import math
import random
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from support.members import at_once, members, settle
from support.nodes import config_of, eventually, status_of
from support.partners import partner_of

from dpwa.adapters.module_state import ModuleState
from dpwa.algorithms import Terms
from dpwa.clock import SystemClock
from dpwa.data.layout import Layout
from dpwa.data.snapshot import FinishedCopy, SnapshotPool
from dpwa.node.transactions.manager import MOST_OF_ONE_PEER, TransactionManager
from dpwa.policy import beginners
from dpwa.policy.push_sum import UNIT
from dpwa.runtime import SYSTEM
from dpwa.types import TrainingProgress
from dpwa.wire.messages import Fetch
from dpwa.wire.transaction_messages import Agreed, Busy, Propose, TransactionDecision

TIMEOUT_MS = 1000
SMALLEST = bytes(8)  # a proposal that goes before all others
SECOND = bytes(7) + b"\x01"
CHURN_SEED = 5
CHURN_S = 0.5


@pytest.fixture(autouse=True)
def nobody_is_a_beginner(monkeypatch):
    """Threads begin ten rounds apart at times: who then took over would not keep the sum."""
    monkeypatch.setattr(beginners, "LEAD", math.inf)


@contextmanager
def pair(algorithm="symmetric", value=1.0, asks=True, **settings):
    """A node w1 and a partner w2 that plays by the rules only as far as a test wants."""
    chance = {"fetch_probability": float(asks)}
    if algorithm == "push_sum":
        chance = {"push_sum": {"probability": float(asks)}}
    settings = {"transport": "tcp", "timeout_ms": TIMEOUT_MS, **chance, **settings}
    config = config_of(2, algorithm=algorithm, **settings)
    with members(config, [value]) as [member], partner_of(member) as partner:
        eventually(lambda: member.node._threads.tx.reaches("w2"))
        yield member, partner


def transactions_of(member):
    return member.node.report()["transactions"]


def vector_of(value):
    return torch.full((8,), float(value), dtype=torch.float64)


def remove_and_add(member, peer):
    port = member.node.config.node(peer).port
    member.node.remove_peer(peer)
    member.node.add_peer(peer, "127.0.0.1", port)


# Peers that are removed in the middle


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
        weights = [transactions.get("weight", 1.0) for transactions in ended]
        total = sum(w * member.x for w, member in zip(weights, nodes, strict=True))
        torch.testing.assert_close(total, vector_of(10.0))


def test_a_share_given_to_a_peer_that_is_removed_is_not_given_and_kept():
    with pair("push_sum", asks=False) as (member, partner):
        member.round()
        assert isinstance(partner.ask(partner.proposal(SMALLEST)), Agreed)
        remove_and_add(member, "w2")
        member.round()
        assert partner.decide(SMALLEST, commit=True)  # it had the share all the time
        member.round()
        assert (transactions_of(member)["units"], transactions_of(member)["units_in_flight"]) == (
            UNIT // 2,
            0,
        )


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
        member.node._context.peer_table.quarantine({"w2"})
        assert isinstance(partner.ask(partner.proposal(SMALLEST)), Busy)
        member.node._context.peer_table.quarantine(())
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
        assert sum(isinstance(answer, Agreed) for answer in answers) == MOST_OF_ONE_PEER
        assert transactions_of(member)["units"] == UNIT >> MOST_OF_ONE_PEER


def pool_of_one():
    pool = SnapshotPool(SystemClock(), 5.0, 3)

    def write(data):
        data[:] = 1
        return FinishedCopy(True)

    pool.publish(Layout.of_bytes(), 8, TrainingProgress(clock=1.0), write)
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

    def ready(self):
        return self._is_finite is not None

    def wait(self):
        self._is_finite = self._is_finite or self._make().wait()
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
        for slot in member.node._context.pool._slots:  # where the late copy goes to, for one
            if not slot.leases and slot is not member.node._context.pool._newest:
                slot.segment.data[:] = np.uint8(0)
        member.adapter.update_send()
        member.adapter.update_wait()
        torch.testing.assert_close(member.x, vector_of(5.0))  # 5 into 5


def share_of(member, partner, value):
    """Let the node take one unit of weight, and leave it to be merged."""
    member.adapter.update_send()
    proposal = partner.heard(Propose)
    partner.agree(proposal, units=UNIT)
    partner.serve(partner.heard(Fetch), value)
    partner.note(partner.heard(TransactionDecision))


def test_an_interrupt_in_a_merge_leaves_what_else_was_agreed_on_for_later(monkeypatch):
    with pair("push_sum") as (member, partner):
        share_of(member, partner, 4.0)
        share_of(member, partner, 4.0)
        assert len(member.transactions._settled) == 2

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(member.adapter._rounds.merger, "merge", interrupted)
            with pytest.raises(KeyboardInterrupt):
                member.adapter.update_wait()
        assert [each.is_taken for each in member.transactions._settled] == [True, False]
        assert member.adapter.update_wait() is not None
        assert transactions_of(member)["units"] == 3 * UNIT


def test_all_strangers_together_get_no_more_shares_than_one_peer():
    silent = {"algorithm": "push_sum", "push_sum": {"probability": 0.0}}
    config = config_of(2, transport="tcp", timeout_ms=1500, **silent)
    with members(config, [1.0]) as [member], partner_of(member) as partner:
        member.adapter.update_send()
        for i in range(60):
            partner.ask(partner.proposal(bytes([i] * 8), name=f"x{i}"))
        assert member.node.report()["transactions"]["units"] == UNIT // 2**4  # as if they were one
