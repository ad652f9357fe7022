from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch

from dpwa.adapters.merge import Merge
from dpwa.demo import training
from dpwa.demo.data import load_digits
from dpwa.demo.records import Logbook, Record
from dpwa.demo.report import load_weights
from dpwa.demo.training import Learner, Task, build_model, meet, save_weights, train


def merge(peer: str = "w2", distance: float = 0.0, peer_loss: float | None = None) -> Merge:
    return Merge(
        peer=peer,
        factor=0.5,
        peer_clock=1.0,
        peer_loss=peer_loss,
        staleness=0.0,
        waited_s=0.0,
        consensus_distance=distance,
    )


class ScriptedGossip:
    """Notes the calls it gets, and answers with the given merges, the last one for ever."""

    def __init__(self, *answers: Merge | None) -> None:
        self.calls: list[str] = []
        self._answers = list(answers)

    def update_send(self, loss: float | None) -> None:
        self.calls.append("send")

    def update_wait(self, loss: float | None) -> Merge | None:
        self.calls.append("wait")
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.fixture(scope="module")
def task() -> Task:
    train_examples, test_examples = load_digits()
    return Task(train_examples, test_examples, steps=60, seed=0)


def records(path) -> list[Record]:
    return [Record.model_validate_json(line) for line in path.read_text().splitlines()]


def test_the_model_learns_all_digits_when_it_sees_them_all(task, tmp_path, capsys):
    learner = Learner(build_model(0), task)
    with Logbook(tmp_path / "w1.jsonl") as log:
        train(learner, log)
    written = records(tmp_path / "w1.jsonl")
    assert written[0].step == 0
    assert written[-1].step == task.steps
    assert written[0].accuracy < 0.4
    assert written[-1].accuracy > 0.85
    assert written[-1].loss < 0.5 * written[1].loss
    assert capsys.readouterr().out == (tmp_path / "w1.jsonl").read_text()


def test_same_seed_gives_same_model_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, same, other = build_model(1), build_model(1), build_model(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first[0].weight, same[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_gossip_that_merges_nothing_trains_exactly_like_alone(task, tmp_path):
    alone, together = (Learner(build_model(0), task) for _ in range(2))
    gossip = ScriptedGossip(None)
    with Logbook(tmp_path / "w1.jsonl") as log:
        train(alone, log)
        train(together, log, gossip)
    assert gossip.calls == ["send", "wait"] * task.steps
    for left, right in zip(alone.model.parameters(), together.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_records_count_merges_and_name_the_last_one(task, tmp_path):
    learner = Learner(build_model(0), task)
    with Logbook(tmp_path / "w1.jsonl") as log:
        log.begin("gossip")
        train(learner, log, ScriptedGossip(merge("w3", 2.5), None, merge("w4", 1.5)))
    last = records(tmp_path / "w1.jsonl")[-1]
    assert (last.phase, last.merges, last.peer) == ("gossip", task.steps - 1, "w4")
    assert (last.factor, last.consensus_distance) == (0.5, 1.5)


def test_the_log_has_one_json_object_per_line(task, tmp_path):
    with Logbook(tmp_path / "w1.jsonl") as log:
        train(Learner(build_model(0), task), log)
    lines = (tmp_path / "w1.jsonl").read_text().splitlines()
    assert lines
    for line in lines:
        assert {"phase", "step", "loss", "accuracy", "merges", "peer", "factor"} <= set(
            json.loads(line)
        )


def test_meeting_ends_when_every_peer_has_answered_once():
    gossip = ScriptedGossip(None, merge("w2"), merge("w2"), None, merge("w3"), merge("w9"))
    meet(gossip, peers=2)
    assert gossip.calls.count("wait") == 5


def test_meeting_ends_when_a_peer_trains_already():
    gossip = ScriptedGossip(merge("w2"), merge("w3", peer_loss=2.3), merge("w2"))
    meet(gossip, peers=5)
    assert gossip.calls.count("wait") == 2


def test_meeting_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(training, "MEET_TIMEOUT_S", 0.05)
    meet(ScriptedGossip(None), peers=1)


def test_saved_weights_come_back_as_one_vector(tmp_path):
    model = copy.deepcopy(build_model(3))
    save_weights(model, tmp_path / "w1.npz")
    vector = load_weights(tmp_path / "w1.npz")
    expected = torch.cat([value.flatten() for _, value in sorted(model.named_parameters())])
    assert np.array_equal(vector, expected.detach().double().numpy())
