"""Nodes that start late among others that have trained: nobody is thrown back by a beginner."""

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.inside import context_of
from support.members import gossip, in_lockstep, members
from support.nodes import at_once, config_of, eventually, status_of
from support.state_donors import training

from dpwa import DpwaConnection
from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.node.transactions.manager import Settled
from dpwa.policy.beginners import LEAD, is_far_behind
from dpwa.state import restore

TRANSPORTS = ("auto", "tcp")
ALGORITHMS = {
    "gossip": {},
    "delta": {"merge": "delta"},
    "clock rule": {"interpolation": "clock"},
    "shards": {"fraction": 0.25},
    "symmetric": {"algorithm": "symmetric"},
    "push_sum": {"algorithm": "push_sum", "push_sum": {"probability": 1.0}},
    "elastic": {"algorithm": "elastic", "elastic": {"period": 1}},
    "local": {"algorithm": "local", "local": {"period": 1}},
    "noloco": {"algorithm": "noloco", "noloco": {"period": 1}},
    "lsgd": {"algorithm": "lsgd", "lsgd": {"local_period": 1, "global_period": 1}},
    "one_peer": {"topology": "one_peer_exponential"},
}
FAR = 500
TRAINED, UNTRAINED = 1.0, 99.0


def outcomes(member, peer):
    return status_of(member.adapter.connection, peer)["outcomes"]


def advance(member, clock=FAR):
    """As if this node had trained for so long."""
    member.node.rounds.resume(float(clock), clock)


def value(member):
    return member.x.numpy()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_who_is_far_behind_takes_over_and_nobody_merges_it_before(kind, transport):
    config = config_of(3, transport=transport, **ALGORITHMS[kind])
    with members(config, [TRAINED, TRAINED, UNTRAINED]) as (one, two, late):
        advance(one)
        advance(two)
        losses = {"w1": 0.5, "w2": 0.6, "w3": 0.01}  # it is lucky, too

        def have_caught_up():
            in_lockstep([one, two, late], 1, lambda member: member.round(losses[member.name]))
            assert (value(one) == TRAINED).all()
            assert (value(two) == TRAINED).all()
            return late.adapter.clock >= FAR / 2

        eventually(have_caught_up, 30)
        assert (value(late) == TRAINED).all()
        # From now on it is one of them: what it has learnt is merged.
        with torch.no_grad():
            late.net.weight.fill_(3.0)
        losses["w3"] = 0.01

        def is_merged():
            in_lockstep([one, two, late], 1, lambda member: member.round(losses[member.name]))
            # To either side: the momentum of NoLoCo may have carried the late one past the others.
            return (value(one) != TRAINED).all() or (value(two) != TRAINED).all()

        eventually(is_merged, 30)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_beginner_is_told_from_one_that_fails(transport, caplog):
    caplog.set_level(logging.INFO, "dpwa")
    config = config_of(2, transport=transport, log_level="info")
    with members(config, [TRAINED, UNTRAINED]) as (one, late):
        advance(one)
        late.adapter.update_send()  # and it does not get to merging

        def is_refused():
            one.round()
            return outcomes(one, "w2").get("behind", 0) >= 3

        eventually(is_refused, 30)
        status = status_of(one.adapter.connection, "w2")
        assert status["health"] == "behind"
        assert status["score"] == 1000
        assert value(one) == pytest.approx(TRAINED, abs=0)
    told = [text for text in caplog.messages if "has trained too little" in text]
    assert told == ["w1: peer w2 has trained too little, and is not merged until it has caught up"]


@pytest.mark.parametrize("kind", ["gossip", "symmetric", "push_sum", "elastic"])
def test_nodes_that_all_begin_refuse_nobody(kind):
    config = config_of(4, **ALGORITHMS[kind])
    with members(config, [1.0, 2.0, 3.0, 4.0]) as nodes:

        def have_met():
            gossip(nodes, 5)
            return all(member.node.report()["merges"] for member in nodes)

        eventually(have_met, 30)
        for member in nodes:
            for peer in member.adapter.peers:
                assert not outcomes(member, peer).get("behind")


def test_groups_that_could_not_reach_each_other_become_one():
    """Two late ones first meet each other, and average two beginnings."""
    config = config_of(4)
    with members(config, [TRAINED, TRAINED, 50.0, 70.0]) as (one, two, three, four):
        advance(one)
        advance(two)
        late = [three, four]
        for member in late:
            for peer in ("w1", "w2"):
                member.adapter.connection.remove_peer(peer)
        eventually(lambda: gossip(late, 2) or four.node.report()["merges"] > 2, 30)
        gossip([one, two], 10)
        assert (value(one) == TRAINED).all()
        assert (value(two) == TRAINED).all()
        for member in late:
            for peer, port in [(n["name"], n["port"]) for n in config["nodes"][:2]]:
                member.adapter.connection.add_peer(peer, "127.0.0.1", port)

        def are_one():
            gossip([one, two, three, four], 2)
            assert (value(one) == TRAINED).all()
            assert (value(two) == TRAINED).all()
            return all((value(member) == TRAINED).all() for member in late)

        eventually(are_one, 30)


def test_a_straggler_that_merges_is_merged():
    config = config_of(2)
    with members(config, [1.0, 1.0]) as (fast, slow):

        def round_of_the_slow_one():
            for _ in range(10):
                fast.round()
            return slow.round()

        def have_met():
            round_of_the_slow_one()
            return slow.node.report()["merges"] and fast.node.report()["merges"]

        eventually(have_met, 30)
        for _ in range(10):
            round_of_the_slow_one()
        assert not is_far_behind(slow.adapter.clock + 1, fast.adapter.clock + 10)
        before = outcomes(fast, "w2").get("behind", 0)
        merges = fast.node.report()["merges"]
        for _ in range(5):
            round_of_the_slow_one()
        assert outcomes(fast, "w2").get("behind", 0) == before
        assert fast.node.report()["merges"] == merges + 5  # each version of the slow one once


@pytest.mark.parametrize(("clock", "level"), [(2 * FAR + 1, "WARNING"), (FAR, "INFO")])
def test_who_takes_over_at_its_first_merge_says_so_once(clock, level, caplog):
    caplog.set_level(logging.INFO, "dpwa")
    config = config_of(2, log_level="info")
    with members(config, [TRAINED, UNTRAINED]) as (one, late):
        advance(one, clock)
        gossip([one, late], 1)
        eventually(lambda: [gossip([one, late], 1), late.adapter.clock >= clock][1], 30)
        gossip([one, late], 3)
    said = [each for each in caplog.records if "copies the parameters of w1" in each.message]
    assert [each.levelname for each in said] == [level]  # nodes that begin together differ, too


@pytest.mark.parametrize("is_returned", [False, True])
def test_transactions_of_parameters_that_were_given_up_are_not_merged(is_returned, monkeypatch):
    """Of two beginners that exchange, or of mass that comes back, while one takes over."""
    config = config_of(2, algorithm="symmetric")
    with members(config, [TRAINED, UNTRAINED]) as (one, late):
        advance(one)

        take_over = late.node.rounds.merger._took_over

        def take_over_while_a_transaction_holds(arrival):
            mine = context_of(late.node).pool.newest()
            take_over(arrival)
            if is_returned:
                transaction = Settled("w2", mine, returned=b"12345678")
            else:
                transaction = Settled("w1", context_of(one.node).pool.newest(), mine)
            late.settled.append(transaction)

        monkeypatch.setattr(
            late.node.rounds.merger, "_took_over", take_over_while_a_transaction_holds
        )
        monkeypatch.setattr(late.transactions, "factor", lambda _: 0.5)

        def catches_up():
            one.adapter.update_send()
            late.round()
            return late.adapter.clock >= FAR

        eventually(catches_up, 30)
        assert (value(late) == TRAINED).all()


def test_who_clips_merges_is_not_made_to_take_over():
    config = config_of(2, robust="clip")
    with members(config, [TRAINED, UNTRAINED]) as (one, late):
        advance(one)
        eventually(lambda: in_lockstep([one, late], 1) or late.node.report()["merges"], 30)
        assert (value(one) == TRAINED).all()
        assert (value(late) != TRAINED).any()


def test_a_rule_that_takes_nothing_takes_nothing_over():
    config = config_of(2, constant={"value": 0.0})
    with members(config, [TRAINED, UNTRAINED]) as (one, late):
        advance(one)
        eventually(lambda: in_lockstep([one, late], 1) or outcomes(late, "w1").get("fetched"), 30)
        assert (value(late) == UNTRAINED).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_raw_parameters_are_left_to_their_owner_with_the_factor_of_the_rule(transport):
    config = config_of(2, transport=transport)
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as late:
        one.node.rounds.resume(float(FAR), FAR)
        late.update_send(np.full(8, UNTRAINED))
        one.update_send(np.full(8, TRAINED))
        for mine, of_peer in ((one, UNTRAINED), (late, TRAINED)):
            found: list = []

            def came(mine=mine, found=found):
                mine.update_send(np.full(8, UNTRAINED if mine is late else TRAINED))
                found[:] = mine.update_wait()
                return found[0] is not None

            eventually(came, 30)
            assert found[1] == 0.5
            assert (found[0] == of_peer).all()


# The state at the start


def made_late(net, config, **options):
    """Another node, made on a thread of its own."""
    made = []
    thread = threading.Thread(
        target=lambda: made.append(DpwaPyTorchAdapter(net, "w2", config, **options))
    )
    thread.start()
    thread.join(60)
    return made[0]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_by_default_a_late_node_of_a_list_starts_from_those_that_are_well_ahead(
    monkeypatch, transport
):
    # On a busy machine it may not connect in time, and take over at its first merge.
    monkeypatch.setattr(restore, "BRIEF", replace(restore.BRIEF, connecting_s=20.0, silent_s=20.0))
    config = config_of(2, transport=transport)
    with members(config, [TRAINED]) as (one,), training(one.adapter):
        eventually(lambda: one.adapter.clock >= 3 * LEAD, 30)
        net = torch.nn.Linear(8, 1, bias=False, dtype=torch.float64)
        late = made_late(net, config)
        with late:
            assert (net.weight == TRAINED).all()
            assert late.clock >= 3 * LEAD
            assert late.updates == late.clock
            assert late.connection.updates == late.updates


def test_who_clips_merges_starts_from_its_own_state_as_it_trusts_no_clock():
    config = config_of(2, robust="clip")
    with members(config, [TRAINED]) as (one,), training(one.adapter):
        eventually(lambda: one.adapter.clock >= 3 * LEAD, 30)
        net = torch.nn.Linear(8, 1, bias=False, dtype=torch.float64)
        before = net.weight.detach().clone()
        with made_late(net, config) as late:
            assert late.connection.states.origin is None
            assert late.clock == 0.0
            assert torch.equal(net.weight, before)


def test_a_lead_of_a_few_updates_is_not_taken_over_and_costs_nothing():
    config = config_of(2)
    with members(config, [TRAINED]) as (one,):
        for _ in range(5):
            one.round()
        net = torch.nn.Linear(8, 1, bias=False, dtype=torch.float64)
        with DpwaPyTorchAdapter(net, "w2", config) as late:
            assert late.connection.states.origin is None
            assert late.clock == 0.0
            assert one.node.report()["state"]["copies"] == 0


# Other seeds


def warnings_in(caplog):
    return [text for text in caplog.messages if "began with other parameters" in text]


def seeded(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))


def meet(nets, config, caplog, rounds=5, before=lambda adapters: None):
    """Let nodes gossip until each has merged; return what they warn of."""
    adapters = [
        DpwaPyTorchAdapter(net, f"w{index}", config) for index, net in enumerate(nets, start=1)
    ]
    try:
        before(adapters)

        def rounds_of(adapter):
            return lambda: [adapter.step() for _ in range(rounds)]

        def have_met():
            at_once([rounds_of(adapter) for adapter in adapters])
            return all(a.connection.node.report()["merges"] > 1 for a in adapters)

        eventually(have_met, 30)
        return warnings_in(caplog)
    finally:
        for adapter in adapters:
            adapter.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_other_seeds_are_told_once_by_each_node(transport, caplog):
    told = meet([seeded(1), seeded(2)], config_of(2, transport=transport), caplog)
    assert sorted(text[:3] for text in told) == ["w1:", "w2:"]
    assert "torch.manual_seed" in told[0]
    assert "docs/state.md" in told[0]


def test_equal_seeds_are_not_warned_of_nor_rounding_nor_training(caplog):
    nets = [seeded(1), seeded(1), seeded(1)]
    with torch.no_grad():
        for parameter in nets[1].parameters():
            parameter.mul_(1.003)
        for parameter in nets[2].parameters():
            parameter.add_(0.01)
    assert not meet(nets, config_of(3), caplog)


def test_models_that_begin_with_zeros_are_not_warned_of(caplog):
    nets = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]
    for sign, net in zip((1.0, -1.0), nets, strict=True):
        for parameter in net.parameters():
            torch.nn.init.constant_(parameter, 0.0)
        net.sign = sign

    def train(_):
        with torch.no_grad():
            for net in nets:
                net.weight.fill_(net.sign)

    assert not meet(nets, config_of(2), caplog, before=train)


def test_weights_that_are_loaded_before_the_first_update_count(caplog):
    nets = [seeded(1), seeded(2)]

    def load(_):
        for net in nets:
            net.load_state_dict(seeded(3).state_dict())

    assert not meet(nets, config_of(2), caplog, before=load)


def first_step(how, adapter, net, sign):
    """Take a step of an optimizer that moves the parameters by more than they are long."""
    optimizer = torch.optim.SGD(net.parameters(), lr=3.0)
    if how == "attached":
        adapter.attach(optimizer)
    if how == "GossipOptimizer":
        optimizer = GossipOptimizer(optimizer, adapter)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, sign)
    optimizer.step()


@pytest.mark.parametrize("how", ["step", "attached", "GossipOptimizer"])
@pytest.mark.parametrize(
    ("seeds", "loads", "count"), [((1, 1), False, 0), ((1, 2), True, 0), ((1, 2), False, 2)]
)
def test_a_large_first_step_is_no_other_beginning(how, seeds, loads, count, caplog):
    nets = [seeded(seed) for seed in seeds]

    def train(adapters):
        if loads:
            for net in nets:
                net.load_state_dict(seeded(3).state_dict())
        for adapter, net, sign in zip(adapters, nets, (1.0, -1.0), strict=True):
            first_step(how, adapter, net, sign)

    assert len(meet(nets, config_of(2), caplog, before=train)) == count


def test_who_has_taken_over_is_not_warned_of(caplog):
    nets = [seeded(1), seeded(2)]

    def advance_one(adapters):
        adapters[0].connection.node.rounds.resume(float(FAR), FAR)

    assert not meet(nets, config_of(2), caplog, before=advance_one)
    assert torch.equal(nets[0][0].weight, nets[1][0].weight)
