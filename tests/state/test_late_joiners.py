"""Nodes that join late: what they start from, and when they start at once."""

import logging
import threading
import time

import numpy as np
import pytest
import torch
from support.imposters import imposter
from support.nodes import again_and_again, at_once, config_of, eventually
from support.state_answers import Donor
from support.state_donors import (
    ALONE,
    Net,
    adapter_of,
    are_equal,
    joined_beside,
    nodes,
    state_of,
    training,
)
from support.times import at_most

from dpwa import DpwaConnection
from dpwa.state import service
from dpwa.wire.messages import decode, encode
from dpwa.wire.state import StatePiece, StateStanding

PEERS = {**ALONE, "initial_state": "peers"}


@pytest.mark.parametrize("codec", ["auto", "tcp"])
def test_a_late_joiner_has_all_of_its_donor_bit_for_bit(codec):
    config = config_of(2, **{**PEERS, "transport": codec})
    one, two = Net(1), Net(2)
    with nodes(adapter_of(one, "w1", config)) as (first,), training(first):
        eventually(lambda: first.clock >= 3)
        identities = [(id(p), p.data_ptr()) for p in two.parameters()]
        with nodes(adapter_of(two, "w2", config)) as (second,):
            assert are_equal(state_of(one), state_of(two))
            assert two.last.weight is two.first.weight
            assert [(id(p), p.data_ptr()) for p in two.parameters()] == identities
            assert 3 <= second.clock <= first.clock
            assert second.connection.node.report()["state"]["donors"] == ["w1"]
            before = second.clock
            second.update_send(0.5)
            assert second.clock == before + 1
            assert second.connection.node.version > 3


@pytest.mark.parametrize(("trained", "level"), [(3, "INFO"), (2000, "WARNING")])
def test_it_says_whom_it_starts_from_and_warns_only_after_a_first_start(caplog, trained, level):
    caplog.set_level(logging.INFO, "dpwa")
    config = config_of(2, **PEERS)
    with nodes(adapter_of(Net(1), "w1", config)) as (first,):
        first.connection.node.rounds.resume(trained, trained)
        with training(first), nodes(adapter_of(Net(2), "w2", config)):
            pass
    said = [r.levelname for r in caplog.records if r.message.startswith("w2: starts from w1 (0.0")]
    assert said == [level]


@pytest.mark.parametrize("initial_state", ["peers", "newest", None])
def test_nodes_that_start_together_do_not_wait_for_each_other(initial_state):
    config = config_of(3, **{**PEERS, "initial_state": initial_state})
    took, made = [], []

    def start(index):
        before = time.monotonic()
        made.append(adapter_of(torch.nn.Linear(3, 3), f"w{index}", config))
        took.append(time.monotonic() - before)

    at_once([lambda index=index: start(index) for index in (1, 2, 3)])
    with nodes(*made):
        assert len(made) == 3
        assert [node.clock for node in made] == [0.0, 0.0, 0.0]
        assert max(took) < at_most(2.0)  # about 0.4 s on a machine with nothing else to do
        assert all(node.connection.states.origin is None for node in made)


def test_who_is_told_to_starts_with_its_own_at_once():
    two = Net(2)
    own = state_of(two)
    assert joined_beside(Net(1), two, config_of(2, **ALONE, initial_state="own")) == 0.0
    assert are_equal(state_of(two), own)


def test_another_model_is_told_by_its_first_difference_and_nothing_is_changed(caplog):
    config = config_of(2, **PEERS)
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 4)
    own = state_of(two)
    with nodes(adapter_of(one, "w1", config)) as (first,), training(first):
        eventually(lambda: first.clock >= 1)
        before = time.monotonic()
        with nodes(adapter_of(two, "w2", config)) as (second,):
            assert time.monotonic() - before < at_most(5.0)
            assert are_equal(state_of(two), own)
            assert second.clock == 0.0
    (warning,) = [text for text in caplog.messages if "starts with its own" in text]
    assert warning == (
        "w2: this node starts with its own model, because the state of w1 differs (first "
        "difference: here 'weight' float32[4, 3], there 'weight' float32[3, 3]) [DPWA-W062]"
    )


def test_parameters_that_are_not_finite_are_not_taken_over(caplog):
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    torch.nn.init.constant_(one.weight, float("nan"))
    own = state_of(two)
    assert joined_beside(one, two, config_of(2, **PEERS)) == 0.0
    assert are_equal(state_of(two), own)
    assert any("parameters that are not finite" in text for text in caplog.messages)


def test_a_donor_serves_no_more_joiners_than_it_wants_and_gives_its_copy_back(monkeypatch):
    config = config_of(3, **PEERS, state_serving=1, state_donors=1, initial_state_timeout_s=20)
    nets = [Net(index) for index in range(3)]
    joined = []
    with nodes(adapter_of(nets[0], "w1", config)) as (first,), training(first):
        eventually(lambda: first.clock >= 1)
        at_once(
            [lambda i=i: joined.append(adapter_of(nets[i], f"w{i + 1}", config)) for i in (1, 2)]
        )
        with nodes(*joined):
            assert len(joined) == 2
            assert all(node.clock > 0 for node in joined)
            assert all(are_equal(state_of(net), state_of(nets[0])) for net in nets)
        report = first.connection.node.report()["state"]
        assert report["copies"] <= 2
        monkeypatch.setattr(service, "HOLD_S", 0.1)
        eventually(lambda: first.connection.node.report()["state"]["held_bytes"] == 0)


def test_a_donor_whose_trainer_does_nothing_is_waited_for_so_long_only(caplog):
    config = config_of(2, **PEERS, initial_state_timeout_s=0.7)
    with nodes(adapter_of(Net(1), "w1", config)) as (first,):
        first.update_send(0.5)
        before = time.monotonic()
        with nodes(adapter_of(Net(2), "w2", config)) as (second,):
            assert 0.7 <= time.monotonic() - before < at_most(3.0)
            assert second.clock == 0.0
    assert any("no peer has sent all of its state in 0.7 s" in text for text in caplog.messages)


class Liar(Donor):
    """A donor that corrupts every piece, or those of its choice."""

    def __init__(self, part, corrupts):
        super().__init__(0, clock=90.0)
        self.image, self.layout, self.numbers = part.image, part.layout, b""
        self.asked = []
        self._corrupts = corrupts

    def __call__(self, frames):
        for answer, data in self.answers(decode(frames)[0]):
            if isinstance(answer, StatePiece):
                self.asked.append(answer.index)
                if self._corrupts(self.asked):
                    data = bytes([data[0] ^ 1]) + data[1:]
            yield [encode(answer)] if isinstance(answer, StateStanding) else [encode(answer), data]


def joined_from_a_liar(corrupts):
    """Let a node join a liar, and an honest donor if it gives that one up."""
    from dpwa.adapters.training_state import TrainingState

    config = config_of(2, **PEERS, state_donors=1, initial_state_timeout_s=3)
    one, two = torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024)  # 4 MiB
    part = TrainingState(one).capture()["model"]
    liar = Liar(part, corrupts)
    with imposter(config["nodes"][0]["port"], liar), nodes(adapter_of(two, "w2", config)) as (n,):
        return liar, are_equal(state_of(one), state_of(two)), n.clock


def test_a_corrupt_piece_is_asked_for_again():
    liar, is_equal, clock = joined_from_a_liar(lambda asked: len(asked) == 2)
    assert is_equal
    assert clock == 90.0
    assert len(liar.asked) == 1 + len(set(liar.asked)) == 1 + 5


def test_a_donor_of_corrupt_pieces_is_given_up():
    liar, is_equal, clock = joined_from_a_liar(lambda asked: True)
    assert not is_equal
    assert clock == 0.0
    assert len(liar.asked) < 20


@pytest.mark.parametrize(
    "parameters", [np.arange(300_000.0).reshape(3, 100_000), b"some bytes", np.zeros(1, "float16")]
)
def test_raw_parameters_can_be_fetched_before_the_first_update(parameters):
    config = config_of(2, **ALONE)
    with DpwaConnection("w1", config) as first, DpwaConnection("w2", config) as second:
        assert second.fetch_state() is None
        with again_and_again(lambda: first.update_send(parameters, 0.5), 0.003):
            eventually(lambda: first.clock >= 2)
            found, clock = second.fetch_state()
    assert type(found) is type(parameters)
    assert clock == second.clock >= 2
    if isinstance(parameters, bytes):
        assert found == parameters
    else:
        assert found.dtype == parameters.dtype
        assert np.array_equal(found, parameters)


def test_the_first_peers_are_waited_for_where_they_are_found_one_after_the_other():
    config = config_of(2, **PEERS)
    alone = {**config, "nodes": config["nodes"][1:]}
    port = config["nodes"][0]["port"]
    with DpwaConnection("w1", config) as first, DpwaConnection("w2", alone) as second:
        first.update_send(b"bytes")
        second.states._joiner.is_settled = lambda: bool(second.peers)
        found = []
        fetching = threading.Thread(target=lambda: found.append(second.fetch_state()))
        fetching.start()
        fetching.join(0.5)
        assert fetching.is_alive()
        second.add_peer("w1", "127.0.0.1", port)
        while fetching.is_alive():
            first.update_send(b"bytes")
            fetching.join(0.01)
    assert found[0][0] == b"bytes"
