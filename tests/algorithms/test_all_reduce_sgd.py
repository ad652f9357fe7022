"""AllReduceSGD: sums over whoever takes a step, uneven epochs, and nodes that die in the middle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.virtual_callers import CallersRun, called

from dpwa.algorithms import AllReduceSGD
from dpwa.errors import (
    CollectiveTimeoutError,
    LeftBehindError,
    MismatchError,
    ParametersError,
    PeerLost,
    UserError,
)

NAMES = ("n0", "n1", "n2")
AWAY_S = 30.0  # longer than the others wait for a node
BACK_S = 1.0


def test_gradients_are_summed_over_all_nodes():
    def task(node):
        grads = {"weight": np.full((2, 2), node.rank + 1.0), "bias": [np.ones(3, np.float32)]}
        return AllReduceSGD(node).sum_gradients(grads), grads

    for contributors, grads in called(task).values():
        assert contributors == 3
        assert (grads["weight"] == 6.0).all()
        assert (grads["bias"][0] == 3.0).all()


def test_the_mean_is_over_those_who_take_the_step_and_nobody_hangs():
    def task(node):
        sgd, seen = AllReduceSGD(node), []
        for _ in range((4, 1, 0)[node.rank]):
            grads = np.full(3, 12.0 * 2.0**node.rank)
            seen.append((sgd.sum_and_normalize_gradients(grads), float(grads[0])))
        sgd.synchronize_parameters(np.zeros(1))
        return seen

    assert called(task) == {"n0": [(2, 18.0), *[(1, 12.0)] * 3], "n1": [(2, 18.0)], "n2": []}


@pytest.mark.parametrize(
    ("steps", "newest"), [((1, 2, 3), 2), ((1, 3, 3), 1), ((0, 0, 0), 0), ((0, 0, 1), 2)]
)
def test_parameters_become_those_of_the_node_with_the_most_steps_bit_by_bit(steps, newest):
    strange = np.array([np.nan, -0.0, np.inf, 5e-324, 0.1])

    def task(node):
        sgd, params = AllReduceSGD(node), [strange * (node.rank + 1)]
        for _ in range(steps[node.rank]):
            sgd.sum_gradients(np.zeros(1))
        own = params[0].tobytes()
        sgd.synchronize_parameters(params)
        return own, params[0].tobytes()

    outcomes = called(task)
    assert {after for _, after in outcomes.values()} == {outcomes[NAMES[newest]][0]}


def test_steps_count_from_zero_again_after_each_epoch():
    def task(node):
        sgd, x = AllReduceSGD(node), np.array([float(node.rank)])
        found = []
        for steps in ((5, 1, 1), (1, 1, 2), (0, 0, 0)):
            for _ in range(steps[node.rank]):
                sgd.sum_gradients(np.zeros(1))
            x[0] = node.rank
            sgd.synchronize_parameters(x)
            found.append(float(x[0]))
        return found

    assert set(map(tuple, called(task).values())) == {(0.0, 2.0, 0.0)}


def test_nothing_is_remembered_of_tensors_that_are_replaced():
    def task(node):
        sgd, kept = AllReduceSGD(node), []
        for step in range(3):
            kept.append(np.full(2 + step, node.rank + 1.0))  # not even of the same shape
            sgd.sum_gradients(kept[-1])
        first, second = np.array([1.0 + node.rank]), np.array([2.0 + node.rank])
        sgd.synchronize_parameters([first])
        sgd.synchronize_parameters([second])
        return [float(array.max()) for array in (*kept, first, second)]

    for found in called(task).values():
        assert found == [6.0, 6.0, 6.0, 1.0, 2.0]


def test_tensors_of_torch_are_changed_in_place_whether_they_require_grad_or_not():
    def task(node):
        weight = torch.nn.Parameter(torch.full((3, 2), node.rank + 1.0))
        (weight.t() ** 2).sum().backward()
        sgd, grads = AllReduceSGD(node), [weight.grad.t(), torch.ones(2, dtype=torch.bfloat16)]
        assert sgd.sum_and_normalize_gradients(grads) == 3
        sgd.synchronize_parameters([weight])
        return float(weight.grad.min()), float(grads[1].max()), float(weight.detach().max())

    assert set(called(task).values()) == {(4.0, 1.0, 1.0)}


def assert_those_who_are_left_stay_in_step(epochs, dies, nodes=3):
    """Let nodes train, each with as many steps as `epochs` tells; return who has died."""
    before = [{} for _ in epochs]  # copies: steps and parameters, by name

    def task(node):
        sgd, x = AllReduceSGD(node), np.array([-1000.0 * (node.rank + 1)])
        sgd.synchronize_parameters(x)
        copies = []
        for epoch, steps in enumerate(epochs):
            for _ in range(steps[node.rank]):
                total = np.array([2.0**node.rank])
                count = sgd.sum_gradients(total)
                who = int(total[0])
                assert who.bit_count() == count
                assert who >> node.rank & 1
                x += total
            before[epoch][node.name] = steps[node.rank], float(x[0])
            sgd.synchronize_parameters(x)
            copies.append(float(x[0]))
        return copies

    run = CallersRun(task, nodes, dies)
    outcomes = run.outcomes()
    assert outcomes.keys() == set(run.names) - run.killed
    for epoch, copies in enumerate(zip(*outcomes.values(), strict=True)):
        most = max(before[epoch][name][0] for name in outcomes)
        newest = [x for steps, x in before[epoch].values() if steps >= most]
        assert len(set(copies)) == 1
        assert copies[0] in newest
    return run.killed


def test_whenever_a_node_dies_the_others_go_on_in_step():
    epochs, call = ((1, 0, 2), (2, 1, 0)), 1
    while assert_those_who_are_left_stay_in_step(epochs, {"n0": call}):
        call += 1
    assert call - 1 == 3 * (1 + len(epochs)) + 3  # each of its calls: join, all_gather, ...


@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 15), min_size=2),
)
@examples(30)
def test_any_deaths_leave_equal_parameters_on_those_who_are_left(epochs, dies):
    assert_those_who_are_left_stay_in_step(epochs, dies, nodes=4)


@pytest.mark.parametrize(("victim", "call"), [("n2", 2), ("n0", 4), ("n0", 7)])
def test_whenever_a_node_is_restarted_it_comes_in_again_with_the_others_parameters(victim, call):
    """Not even those of the first node are copied, though the others have taken no step either."""

    def task(node):
        sgd, x = AllReduceSGD(node), np.full(1, -1e6 if node.life == 2 else 0.0)
        sgd.synchronize_parameters(x)
        while x[0] < 16.0:
            node.sleep(0.3)
            if not run.killed:
                sgd.sum_gradients(np.zeros(1))
            x += 1.0
            sgd.synchronize_parameters(x)
        return float(x[0])

    run = CallersRun(task, dies={victim: call}, back_s=BACK_S)
    assert run.outcomes() == dict.fromkeys(NAMES, 16.0)
    assert run.killed == {victim}


def test_nobody_gets_the_parameters_of_who_was_away():
    """Though it is the first node, and has taken as many steps as the others since they counted."""

    def is_away(node):
        sgd, x = AllReduceSGD(node), np.array([-1.0])
        sgd.sum_gradients(np.zeros(1))
        node.sleep(AWAY_S)
        with pytest.raises(LeftBehindError):
            sgd.sum_gradients(np.zeros(1))
        with pytest.raises(UserError, match=r"continued without n0.*synchronize_parameters"):
            sgd.sum_gradients(np.zeros(1))
        sgd.synchronize_parameters(x)
        return sgd.sum_gradients(np.zeros(1)), float(x[0])  # it is in step again

    def task(node):
        if node.name == "n0":
            return is_away(node)
        sgd, x, contributors = AllReduceSGD(node), np.array([float(node.rank)]), 2
        for _ in range(2):
            sgd.sum_gradients(np.zeros(1))
        while contributors < 3:
            node.sleep(1.0)
            sgd.synchronize_parameters(x)
            contributors = sgd.sum_gradients(np.zeros(1))
        return contributors, float(x[0])

    assert called(task) == dict.fromkeys(NAMES, (3, 1.0))


def test_a_restarted_node_that_does_not_synchronize_first_is_told_with_all_others():
    """Why there is a rule: nobody can know where the others are."""

    def task(node):
        sgd = AllReduceSGD(node)
        if node.life == 1:
            for _ in range(2):
                sgd.sum_gradients(np.zeros(2))
        for _ in range(100):
            node.sleep(0.1)
            sgd.sum_gradients(np.zeros(2) if node.life == 2 else [np.zeros(2)])

    outcomes = CallersRun(task, dies={"n2": 2}, back_s=BACK_S).outcomes()
    assert {name: type(outcome) for name, outcome in outcomes.items()} == dict.fromkeys(
        NAMES, MismatchError
    )


class Failing:
    """A node whose collectives fail."""

    name, rank, world_size = "w1", 0, 3

    def __init__(self, error, most=100):
        self.error, self.left, self.calls = error, most, []

    def _fails(self, kind):
        self.calls.append(kind)
        if len(self.calls) > self.left:
            return
        raise self.error

    def all_reduce(self, value, op="sum", timeout_s=None, tag=""):
        self._fails("all_reduce")
        return value, 1

    def join(self, timeout_s=None, tag=""):
        self._fails("join")

    def all_gather(self, value, timeout_s=None, tag=""):
        self._fails("all_gather")
        return {"w1": value}

    def broadcast(self, value, root, timeout_s=None, tag=""):
        return value


LOST = PeerLost(["w2"], "lost w2")


def test_losses_are_repeated_at_most_as_often_as_there_are_nodes():
    node = Failing(LOST)
    with pytest.raises(PeerLost):
        AllReduceSGD(node).sum_gradients(np.zeros(1))
    assert node.calls == ["all_reduce"] * 4
    node = Failing(LOST, most=3)
    assert AllReduceSGD(node).sum_gradients(np.zeros(1)) == 1


def test_who_waits_for_the_others_waits_through_any_number_of_losses():
    node = Failing(LOST, most=20)
    AllReduceSGD(node).synchronize_parameters(np.zeros(1))
    assert node.calls == ["join"] * 21 + ["all_gather"]


@pytest.mark.parametrize("error", [LeftBehindError(["w1"], "left"), CollectiveTimeoutError("slow")])
def test_what_cannot_be_mended_is_raised_at_once(error):
    node = Failing(error)
    sgd = AllReduceSGD(node)
    with pytest.raises(type(error)):
        sgd.sum_gradients(np.zeros(1))
    with pytest.raises(type(error)):
        sgd.synchronize_parameters(np.zeros(1))
    assert node.calls == ["all_reduce", "join"]


def test_numbers_cannot_be_changed_in_place():
    for error in called(lambda node: AllReduceSGD(node).sum_gradients([np.ones(1), 2.0])).values():
        assert isinstance(error, ParametersError)
        assert "cannot be written into numbers" in str(error)
