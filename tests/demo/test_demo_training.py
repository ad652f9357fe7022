from __future__ import annotations

import pytest
import torch

from dpwa.demo.data import load_digits
from dpwa.demo.records import Record
from dpwa.demo.training import Learner, Task, build_model, train


class ScriptedGossip:
    """Notes the calls it gets, and answers with the given merges, the last one for ever."""

    def __init__(self, *answers: object) -> None:
        self.calls: list[str] = []
        self._answers = list(answers)

    def update_send(self, loss: float | None) -> None:
        self.calls.append("send")

    def update_wait(self, loss: float | None) -> object:
        self.calls.append("wait")
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.fixture(scope="module")
def task() -> Task:
    train_examples, test_examples = load_digits()
    return Task(train_examples, test_examples, steps=60, seed=0)


def test_the_model_learns_all_digits_when_it_sees_them_all(task):
    told: list[Record] = []
    train(Learner(build_model(0), task), "alone", told.append)
    assert (told[0].step, told[-1].step) == (0, task.steps)
    assert told[0].accuracy < 0.4
    assert told[-1].accuracy > 0.85
    assert told[-1].loss < 0.5 * told[1].loss


def test_same_seed_gives_same_model_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, same, other = build_model(1), build_model(1), build_model(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first[0].weight, same[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_gossip_that_merges_nothing_trains_exactly_like_alone(task):
    alone, together = (Learner(build_model(0), task) for _ in range(2))
    gossip = ScriptedGossip(None)
    train(alone, "alone", lambda _: None)
    train(together, "gossip", lambda _: None, gossip)
    assert gossip.calls == ["send", "wait"] * task.steps
    for left, right in zip(alone.model.parameters(), together.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_records_count_merges(task):
    told: list[Record] = []
    learner, gossip = Learner(build_model(0), task), ScriptedGossip("w3", None, "w4")
    assert train(learner, "gossip", told.append, gossip) == task.steps - 1
    assert (told[-1].phase, told[-1].merges) == ("gossip", task.steps - 1)
