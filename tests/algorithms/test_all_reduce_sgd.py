"""AllReduceSGD: sums over whoever takes a step, uneven epochs, and nodes that die in the middle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.collective_threads import DeadlockError, Killed, Threads

from dpwa.algorithms import AllReduceSGD
from dpwa.errors import (
    CollectiveTimeoutError,
    LeftBehindError,
    MismatchError,
    ParametersError,
    PeerLost,
    UserError,
)

NAMES = ("w1", "w2", "w3")
TAG = "AllReduceSGD"
SIZE = 3


def gradient_of(node):
    """Such that every sum tells who is in it; exact in float64, as means of up to four are."""
    return np.full(SIZE, 12.0 * 2.0**node.rank)


def start_of(node):
    return [np.full(SIZE, -1000.0 * (node.rank + 1))]


def training(epochs, *, starts_alike=True):
    """A training loop: `epochs` tells how many steps each node takes in each."""

    def task(node):
        sgd, params = AllReduceSGD(node), start_of(node)
        if starts_alike:
            sgd.synchronize_parameters(params)
        for steps in epochs:
            for _ in range(steps[node.name]):
                grads = [gradient_of(node)]
                sgd.sum_and_normalize_gradients(grads)
                params[0] += grads[0]
            sgd.synchronize_parameters(params)
        return params[0]

    return task


def told_by(threads):
    """What the log says parameters must be: of the newest at every copy, and means in between."""
    gradients = {name: 12.0 * 2.0**rank for rank, name in enumerate(threads.names)}
    starts = {name: -1000.0 * (rank + 1) for rank, name in enumerate(threads.names)}
    x, taken = starts.copy(), dict.fromkeys(threads.names, 0)
    copies = dict.fromkeys(threads.names, 0)  # in which each has taken part
    for kind, names in threads.sequence(TAG).log:
        if kind == "all_reduce":
            for name in names:
                x[name] += sum(gradients[one] for one in names) / len(names)
                taken[name] += 1
        elif kind == "broadcast":
            newest = max(names, key=lambda name: (copies[name], taken[name]))
            x.update(dict.fromkeys(names, x[newest]))
            copies.update(dict.fromkeys(names, copies[newest] + 1))
            taken.update(dict.fromkeys(names, 0))
        elif kind == "let in":  # with a new model, which is copied before anything else was only
            x.update((name, starts[name]) for name in names)
            copies.update(dict.fromkeys(names, 0))
            taken.update(dict.fromkeys(names, 0))
    return x


def uneven(*counts):
    return [dict(zip(NAMES, steps, strict=True)) for steps in counts]


def test_gradients_are_summed_over_all_nodes():
    def task(node):
        grads = {"weight": np.full((2, 2), node.rank + 1.0), "bias": [np.ones(3, np.float32)]}
        return AllReduceSGD(node).sum_gradients(grads), grads

    for contributors, grads in Threads(NAMES).run(task).values():
        assert contributors == 3
        assert (grads["weight"] == 6.0).all()
        assert (grads["bias"][0] == 3.0).all()


def test_the_mean_is_over_those_who_take_the_step_and_nobody_hangs():
    counts = dict(zip(NAMES, (4, 1, 0), strict=True))

    def task(node):
        sgd, seen = AllReduceSGD(node), []
        for _ in range(counts[node.name]):
            grads = gradient_of(node)
            seen.append((sgd.sum_and_normalize_gradients(grads), float(grads[0])))
        sgd.synchronize_parameters(np.zeros(1))
        return seen

    outcomes = Threads(NAMES).run(task)
    assert outcomes == {"w1": [(2, 18.0), *[(1, 12.0)] * 3], "w2": [(2, 18.0)], "w3": []}


def test_a_node_without_any_step_does_not_copy_while_others_sum():
    """In a ring of old it began to broadcast at once, and all waited for ever."""
    for order in itertools.permutations((0, 2, 3)):
        threads = Threads(NAMES)
        outcomes = threads.run(training(uneven(order), starts_alike=False))
        assert {name: float(x[0]) for name, x in outcomes.items()} == told_by(threads)
        assert len({x.tobytes() for x in outcomes.values()}) == 1


@pytest.mark.parametrize(
    ("steps", "newest"),
    [((1, 2, 3), 2), ((3, 3, 1), 0), ((1, 3, 3), 1), ((0, 0, 0), 0), ((0, 0, 1), 2)],
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

    outcomes = Threads(NAMES).run(task)
    assert {after for _, after in outcomes.values()} == {outcomes[NAMES[newest]][0]}


def test_steps_count_from_zero_again_after_each_epoch():
    def task(node):
        sgd, x = AllReduceSGD(node), np.array([float(node.rank)])
        found = []
        for steps in uneven((5, 1, 1), (1, 1, 2), (0, 0, 0)):
            for _ in range(steps[node.name]):
                sgd.sum_gradients(np.zeros(1))
            x[0] = node.rank
            sgd.synchronize_parameters(x)
            found.append(float(x[0]))
        return found

    assert set(map(tuple, Threads(NAMES).run(task).values())) == {(0.0, 2.0, 0.0)}


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

    for found in Threads(NAMES).run(task).values():
        assert found == [6.0, 6.0, 6.0, 1.0, 2.0]


def test_tensors_of_torch_are_changed_in_place_whether_they_require_grad_or_not():
    def task(node):
        weight = torch.nn.Parameter(torch.full((3, 2), node.rank + 1.0))
        (weight.t() ** 2).sum().backward()
        sgd, grads = AllReduceSGD(node), [weight.grad.t(), torch.ones(2, dtype=torch.bfloat16)]
        assert sgd.sum_and_normalize_gradients(grads) == 3
        sgd.synchronize_parameters([weight])
        return float(weight.grad.min()), float(grads[1].max()), float(weight.detach().max())

    assert set(Threads(NAMES).run(task).values()) == {(4.0, 1.0, 1.0)}


@pytest.mark.parametrize("victim", NAMES)
def test_whenever_a_node_dies_the_others_go_on_in_step(victim):
    epochs, moments = uneven((2, 3, 1), (1, 0, 2)), 0
    for call in itertools.count(1):
        threads = Threads(NAMES, dies={victim: call})
        outcomes = threads.run(training(epochs))
        expected = told_by(threads)
        for name in set(NAMES) - {victim}:
            assert isinstance(outcomes[name], np.ndarray), (call, outcomes[name])
            assert float(outcomes[name][0]) == expected[name]
        assert len({outcomes[name].tobytes() for name in NAMES if name != victim}) == 1
        if not isinstance(outcomes[victim], Killed):
            break
        moments += 1
    steps = sum(of[victim] for of in epochs)
    assert moments == 3 * (1 + len(epochs)) + steps  # each of its calls: join, all_gather, ...


@pytest.mark.parametrize("victim", NAMES)
def test_whenever_a_node_is_restarted_it_comes_in_again_with_the_others_parameters(victim):
    epochs = uneven((2, 3, 1), (1, 2, 2), (2, 2, 1))
    for call in range(1, 16):
        threads = Threads(NAMES, dies={victim: call})
        for name in NAMES:
            threads.start(name, training(epochs))
        threads.wait_until(lambda threads=threads: victim in threads.outcomes)
        if isinstance(threads.outcomes[victim], Killed):
            # It cannot know how many epochs are left: it trains for as long as there are others.
            threads.start(victim, training(epochs[:1]))
        outcomes, expected = threads.end(), told_by(threads)
        for name in NAMES:
            assert isinstance(outcomes[name], np.ndarray), (call, outcomes[name])
            assert float(outcomes[name][0]) == expected[name]


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 15)),
)
@settings(max_examples=40)
def test_any_deaths_leave_equal_parameters_on_those_who_are_left(counts, dies):
    names = ("n0", "n1", "n2", "n3")
    threads = Threads(names, dies=dies)
    outcomes = threads.run(training([dict(zip(names, c, strict=True)) for c in counts]))
    left = [name for name in names if not isinstance(outcomes[name], Killed)]
    expected = told_by(threads)
    assert {float(outcomes[n][0]) for n in left} <= {expected[n] for n in left}
    # One that has died after others had ended has seen no copy since: it is not among those left.
    assert len({outcomes[name].tobytes() for name in left}) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
def test_nobody_gets_the_parameters_of_who_was_away(is_restarted):
    """Not even those of the first node, or with more steps than the others since they counted."""

    def comes_again(node):
        threads.wait_until(lambda: ("broadcast", ("w2", "w3")) in threads.sequence(TAG).log)
        x = np.array([-1.0])
        AllReduceSGD(node).synchronize_parameters(x)
        return float(x[0])

    def is_away(node):
        sgd, x = AllReduceSGD(node), np.array([-1.0])
        sgd.sum_gradients(np.zeros(1))
        with pytest.raises(LeftBehindError):
            sgd.sum_gradients(np.zeros(1))
        with pytest.raises(UserError, match=r"gone on without w1.*synchronize_parameters"):
            sgd.sum_gradients(np.zeros(1))
        threads.wait_until(lambda: ("broadcast", ("w2", "w3")) in threads.sequence(TAG).log)
        sgd.synchronize_parameters(x)
        assert sgd.sum_gradients(np.zeros(1)) == 3  # it is in step again
        return float(x[0])

    def task(node):
        sgd, x = AllReduceSGD(node), np.array([float(node.rank)])
        for _ in range(2):
            sgd.sum_gradients(np.zeros(1))
        sgd.synchronize_parameters(x)
        threads.wait_until(lambda: threads.is_waiting("w1", TAG))
        sgd.synchronize_parameters(x)  # lets it in
        sgd.synchronize_parameters(x)
        if not is_restarted:
            sgd.sum_gradients(np.zeros(1))
        return float(x[0])

    threads = Threads(NAMES, **({"dies": {"w1": 2}} if is_restarted else {"is_left": {"w1": 2}}))
    threads.start("w1", is_away)
    for name in ("w2", "w3"):
        threads.start(name, task)
    if is_restarted:
        threads.wait_until(lambda: "w1" in threads.outcomes)
        threads.start("w1", comes_again)
    assert threads.end() == {"w1": 1.0, "w2": 1.0, "w3": 1.0}


def test_a_restarted_node_that_does_not_synchronize_first_is_told_with_all_others():
    """Why there is a rule: nobody can know where the others are."""

    def begins_wrongly(node):
        return AllReduceSGD(node).sum_gradients(np.zeros(2))

    def task(node):
        sgd = AllReduceSGD(node)
        for _ in range(2):
            sgd.sum_gradients(np.zeros(2))
        threads.wait_until(lambda: threads.is_waiting("w3", TAG))
        sgd.sum_gradients(np.zeros(2))  # lets it in
        return sgd.sum_gradients([np.zeros(2)])

    threads = Threads(NAMES, dies={"w3": 2})
    for name in NAMES:
        threads.start(name, task)
    threads.wait_until(lambda: len(threads.sequence(TAG).log) == 2)  # two sums
    threads.start("w3", begins_wrongly)
    assert {type(outcome) for outcome in threads.end().values()} == {MismatchError}


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
    def task(node):
        AllReduceSGD(node).sum_gradients([np.ones(1), 2.0])

    for error in Threads(NAMES).run(task).values():
        assert isinstance(error, ParametersError)
        assert "writable arrays, not numbers" in str(error)


def test_threads_that_wait_for_ever_are_noticed():
    """The test of the tests: a node that copies at once, as one did of old."""

    def task(node):
        if node.name == "w1":
            return node.all_gather(0, tag="old")
        return AllReduceSGD(node).sum_gradients(np.zeros(1))

    with pytest.raises(DeadlockError, match="waits in"):
        Threads(NAMES, timeout_s=0.2).run(task)
