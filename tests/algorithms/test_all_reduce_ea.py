"""AllReduceEA and EASGD: the elastic law, one center on all nodes, uneven epochs, and deaths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.virtual_callers import CallersRun, called

from dpwa.algorithms import EASGD, AllReduceEA
from dpwa.errors import CollectiveTimeoutError, ParametersError, UserError
from dpwa.policy.elastic import elastic_limit, elastic_round

SEED = 61
SIZE = 5
NAMES = ("n0", "n1", "n2")
AWAY_S = 30.0  # longer than the others wait for a node


def center_of(ea, like):
    center = np.zeros_like(like)
    ea.copy_center([center])
    return center


def starts(nodes, seed=SEED):
    return np.random.default_rng(seed).normal(size=(nodes, SIZE))


@given(
    st.integers(1, 6),
    st.floats(0.01, 0.99),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
@examples(30)
def test_it_is_the_elastic_law_and_what_is_trained_in_between(nodes, share, tau, seed):
    alpha, rounds = share * elastic_limit(nodes), 4
    steps = np.random.default_rng(seed).normal(size=(rounds * tau, nodes, SIZE))

    def task(node):
        ea, x = AllReduceEA(node, tau, alpha), starts(nodes, seed)[node.rank]
        for step in steps:
            x += step[node.rank]
            ea.average_parameters([x])
        return x, center_of(ea, x)

    outcomes = called(task, nodes)
    xs, center = starts(nodes, seed) + steps[0], starts(nodes, seed)[0] + steps[0, 0]
    for number in range(rounds * tau):
        xs = xs + steps[number] if number else xs
        if (number + 1) % tau == 0:
            xs, center = elastic_round(xs, center, alpha)
    for (x, c), expected in zip(outcomes.values(), xs, strict=True):
        assert x == pytest.approx(expected, abs=1e-12 * (nodes + 1))
        assert c == pytest.approx(center, abs=1e-12 * (nodes + 1))
    assert len({c.tobytes() for _, c in outcomes.values()}) == 1


def test_parameters_may_be_other_objects_in_every_call():
    def task(node):
        ea, kept = AllReduceEA(node, tau=1, alpha=0.2), [np.array([float(node.rank)])]
        for _ in range(3):
            kept.append(kept[-1].copy())
            ea.average_parameters({"w": kept[-1]})
        return [float(x[0]) for x in kept], node.rank

    xs, center = np.array([[0.0], [1.0]]), np.array([0.0])
    expected = [xs[:, 0]]
    for _ in range(3):
        xs, center = elastic_round(xs, center, 0.2)
        expected.append(xs[:, 0])
    for found, rank in called(task, 2).values():
        assert found == pytest.approx([x[rank] for x in expected])


def test_three_nodes_go_as_worked_out_by_hand_with_an_exchange_at_every_step():
    """As AllReduceEA.lua, but for the last sum, which that never adds to its centers.

    alpha = 1/4, all at 0 but n2 at 4, and the center at 0. n0 takes three steps of +8, n1 one of
    +16, n2 none:

        step of          x before          pulls                    x after             center
        n0, n1        8, 16, 4          2, 4, 1                  6, 12, 3              7
        n0            14, 12, 3         1.75, 1.25, -1           12.25, 10.75, 4       9
        n0            20.25, 10.75, 4   2.8125, .4375, -1.25     17.4375, 10.3125, 5.25  11
        nobody        the same          1.609375, -.171875, -1.4375                     11

    In a second epoch of no step there is one exchange, whose pulls have the sum 0.
    """

    def task(node):
        ea, x = AllReduceEA(node, tau=1, alpha=0.25), np.zeros(1)
        ea.synchronize_parameters([x])
        x += (0.0, 0.0, 4.0)[node.rank]
        seen = []
        for _ in range((3, 1, 0)[node.rank]):
            x += (8.0, 16.0)[node.rank]
            ea.average_parameters([x])
            seen.append((float(x[0]), float(center_of(ea, x)[0])))
        for _ in range(2):
            ea.synchronize_center([x])
            seen.append((float(x[0]), float(center_of(ea, x)[0])))
        return seen

    assert called(task) == {
        "n0": [(6.0, 7.0), (12.25, 9.0), (17.4375, 11.0), (15.828125, 11.0), (14.62109375, 11.0)],
        "n1": [(12.0, 7.0), (10.484375, 11.0), (10.61328125, 11.0)],
        "n2": [(6.6875, 11.0), (7.765625, 11.0)],
    }


def test_the_test_program_of_torch_distlearn_holds():
    """tau 3, alpha 0.4, epochs of 45 to 53 steps: in the end all are within 1e-6 of each other."""

    def task(node):
        rng = np.random.default_rng(SEED + node.rank)
        ea, x, slow = AllReduceEA(node, tau=3, alpha=0.4), np.zeros(7), 1.0
        for _ in range(5):
            for _ in range(rng.integers(45, 54)):
                x += rng.normal(size=7) / slow
                ea.average_parameters([x])
                slow *= 2.0
            ea.synchronize_center([x])
        return x

    first, *others = called(task, 4).values()
    for x in others:
        assert abs(x - first).max() < 1e-6


def test_who_waits_for_parameters_or_has_no_center_yet_is_not_drawn_along():
    def task(node):
        ea, x = AllReduceEA(node, tau=1, alpha=0.25), np.full(1, 4.0 * node.rank)
        for _ in range((2, 2, 0)[node.rank]):
            ea.average_parameters([x])
        ea.synchronize_center([x])
        return float(x[0]), float(center_of(ea, x)[0])

    # n2 has taken no step: n0 and n1 begin with the center 0, and exchange three times.
    xs, center = np.array([[0.0], [4.0]]), np.zeros(1)
    for _ in range(3):
        xs, center = elastic_round(xs, center, 0.25)
    assert called(task) == {
        "n0": (float(xs[0, 0]), float(center[0])),
        "n1": (float(xs[1, 0]), float(center[0])),
        "n2": (8.0, float(center[0])),
    }


def test_epochs_go_on_from_the_center_that_all_share():
    """Steps are counted from 0 after each, so that all exchange together again."""

    def task(node):
        ea, x = AllReduceEA(node, tau=2, alpha=0.2), starts(3)[node.rank]
        for count in ((3, 5, 1)[node.rank], 2, 2):
            for _ in range(count):
                ea.average_parameters([x])
            ea.synchronize_center([x])
        return center_of(ea, x)

    centers = called(task).values()
    xs, center = starts(3), starts(3)[0]
    for _ in range(2 + 1 + 1 + 1 + 1 + 1):  # the last of each epoch by who waits
        xs, center = elastic_round(xs, center, 0.2)
    assert len({c.tobytes() for c in centers}) == 1
    for found in centers:
        assert found == pytest.approx(center, abs=1e-12)


def test_parameters_become_those_of_the_node_with_the_most_steps_and_so_does_the_center():
    def task(node):
        ea, x = AllReduceEA(node, tau=2), starts(3)[node.rank]
        for _ in range((3, 5, 1)[node.rank]):
            ea.average_parameters([x])
        own = x.tobytes()
        ea.synchronize_parameters([x])
        return own, x.tobytes(), center_of(ea, x).tobytes()

    outcomes = called(task)
    expected = outcomes["n1"][0]
    assert {found[1:] for found in outcomes.values()} == {(expected, expected)}


def test_without_any_step_all_get_the_first_nodes():
    def task(node):
        ea, x = AllReduceEA(node), starts(3)[node.rank]
        ea.synchronize_center([x])
        center = center_of(ea, x).tobytes()
        assert x.tobytes() == starts(3)[node.rank].tobytes()  # parameters are left alone
        ea.synchronize_parameters([x])
        return center, x.tobytes(), center_of(ea, x).tobytes()

    first = starts(3)[0].tobytes()
    assert set(called(task).values()) == {(first, first, first)}


def test_whenever_a_node_dies_the_others_keep_one_center_and_nothing_is_lost():
    """The sum of all parameters and the center stays, the last ones of the dead node included."""
    for call in itertools.count(1):
        begun, xs = {}, {}

        def task(node, begun=begun, xs=xs):
            ea, x = AllReduceEA(node, tau=1, alpha=0.2), starts(3)[node.rank]
            ea.synchronize_parameters([x])
            x += node.rank
            begun[node.name], xs[node.name] = x.copy(), x
            for counts in ((1, 2, 0), (2, 0, 1)):
                for _ in range(counts[node.rank]):
                    ea.average_parameters([x])
                ea.synchronize_center([x])
            return center_of(ea, x)

        run = CallersRun(task, dies={"n1": call})
        outcomes = run.outcomes()
        assert outcomes.keys() == set(NAMES) - run.killed
        assert len({center.tobytes() for center in outcomes.values()}) == 1
        total = sum(xs.values()) + outcomes["n0"]
        assert total == pytest.approx(sum(begun.values()) + begun["n0"], abs=1e-12)
        if not run.killed:
            break
    assert call > 3 * 3 + 2


class Once:
    """A node alone whose first sum comes too late."""

    name, rank, world_size, fails = "w1", 0, 1, True

    def all_reduce(self, value, op="sum", timeout_s=None, tag=""):
        if self.fails:
            self.fails = False
            raise CollectiveTimeoutError("slow")
        return value, 1

    def all_gather(self, value, timeout_s=None, tag=""):
        return {"w1": value}

    def broadcast(self, value, root, timeout_s=None, tag=""):
        return value


def test_an_exchange_that_fails_changes_nothing_and_the_step_is_not_counted():
    ea, x = AllReduceEA(Once(), tau=2, alpha=0.5), np.zeros(1)
    ea.average_parameters([x])
    x += 1.0
    with pytest.raises(CollectiveTimeoutError):
        ea.average_parameters([x])
    assert (float(x[0]), float(center_of(ea, x)[0])) == (1.0, 0.0)
    ea.average_parameters([x])
    assert (float(x[0]), float(center_of(ea, x)[0])) == (0.5, 0.5)


class Alone(Once):
    """A node of a group of so many."""

    fails = False

    def __init__(self, nodes):
        self.world_size = nodes


@pytest.mark.parametrize(
    ("nodes", "alpha"), [(1, 0.2), (4, 0.2), (5, 0.18), (9, 0.1), (64, 0.9 / 64)]
)
def test_the_default_is_stable_for_any_number_of_nodes(nodes, alpha):
    assert AllReduceEA(Alone(nodes)).alpha == pytest.approx(alpha)
    assert EASGD(Alone(nodes)).alpha == pytest.approx(0.9 / nodes)
    assert EASGD(Alone(nodes), beta=0.43).alpha == pytest.approx(0.43 / nodes)


def test_what_is_unstable_with_so_many_nodes_is_warned_of_with_the_bound(caplog):
    AllReduceEA(Alone(8), alpha=0.2)
    EASGD(Alone(8), beta=1.7)
    assert caplog.messages == []
    AllReduceEA(Alone(9), alpha=0.2)  # the value in the README of old
    EASGD(Alone(8), beta=1.8)
    first, second = caplog.messages
    assert first == (
        "AllReduceEA: alpha 0.2 is unstable with 9 nodes: alpha must be below 0.2 (learning rate * "
        "curvature = 0). With this alpha, the center swings further with every exchange. The "
        "recommended alpha is 0.1 (0.9/N, at most 0.2) [DPWA-W029]"
    )
    assert "EASGD: alpha 0.225 is unstable with 8 nodes: alpha must be below 0.222 " in second
    assert "The recommended beta is 0.9 (alpha is beta/N) [" in second


@pytest.mark.parametrize("alpha", [0.0, -0.1, float("nan"), float("inf")])
def test_a_strength_that_is_none_is_refused(alpha):
    with pytest.raises(UserError, match=r"AllReduceEA: .*alpha"):
        AllReduceEA(Alone(2), alpha=alpha)
    with pytest.raises(UserError, match=r"EASGD: .*alpha"):
        EASGD(Alone(2), beta=alpha)


def test_fewer_than_one_step_between_exchanges_is_refused():
    with pytest.raises(UserError, match=r"tau: expected at least 1 .*\(got 0\)"):
        AllReduceEA(Alone(2), tau=0)


def test_alpha_follows_the_number_of_nodes():
    def task(node):
        if node.name == "n5" and node.life == 1:
            node.sleep(AWAY_S)
        ea, x, found = AllReduceEA(node), np.zeros(1), []
        while ea.alpha > 0.9 / 6 or not found:
            ea.synchronize_center([x])
            found.append(ea.alpha)
            node.sleep(1.0)
        return {*found}

    outcomes = called(task, 6)
    assert outcomes.pop("n5") == {0.9 / 6}
    assert [*outcomes.values()] == [{0.9 / 5, 0.9 / 6}] * 5


def test_an_alpha_that_has_become_unstable_is_warned_of_once_for_each_number_of_nodes(caplog):
    class Grown(Alone):
        def all_gather(self, value, timeout_s=None, tag=""):
            return {f"w{index}": value for index in range(1, 10)}

        def join(self, timeout_s=None, tag=""):
            pass

    ea, x = AllReduceEA(Grown(2), tau=1, alpha=0.2), np.zeros(1)
    assert caplog.messages == []
    for _ in range(2):
        ea.average_parameters([x])
        ea.synchronize_center([x])
    assert ["with 9 nodes" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_narrow_parameters_are_averaged_in_float32_and_rounded_by_less_than_a_unit(dtype):
    """Small pulls move the center, even where they are less than a unit in the last place."""
    wide = torch.promote_types(dtype, torch.float32)

    def task(node):
        ea = EASGD(node, beta=0.002)
        x = torch.nn.Parameter(torch.full((2, 3), 1.0 + node.rank / 128, dtype=dtype).t())
        for _ in range(3):
            ea.average_parameters({"x": x})
        return x.detach().clone()

    outcomes = called(task, 2)
    xs, center = torch.tensor([1.0, 1.0 + 1 / 128], dtype=wide), torch.tensor(1.0, dtype=wide)
    for _ in range(3):
        pulls = 0.001 * (xs - center)
        xs, center = xs - pulls, center + pulls.sum()
    unit = 0.0 if dtype is wide else torch.finfo(dtype).eps  # up or down by chance, three times
    for x, expected in zip(outcomes.values(), xs, strict=True):
        torch.testing.assert_close(x.to(wide), expected.expand(3, 2), rtol=1e-7, atol=3 * unit)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ([np.ones(1), np.ones(2, np.int64)], r"float64 \(got '\[1\]' int64\[2\]\)"),
        (np.ones(1, np.complex64), r"float64 \(got 'value' complex64\[1\]\)"),
        ([torch.ones(1).to(torch.float8_e4m3fn)], "float8_e4m3fn"),
        ([1.0], "elastic averaging cannot change numbers"),
    ],
)
def test_what_cannot_be_averaged_is_refused_before_anybody_waits(params, problem):
    ea = AllReduceEA(Alone(1))  # it has no `join`
    for method in (ea.average_parameters, ea.synchronize_center, ea.synchronize_parameters):
        with pytest.raises(ParametersError, match=problem):
            method(params)


def test_parameters_of_another_form_than_the_center_are_refused():
    ea = AllReduceEA(Alone(1), tau=1)
    ea.average_parameters([np.ones(1)])
    with pytest.raises(
        ParametersError, match=r"different shapes or dtypes: here '\[0\]' float64\[2\], there "
    ):
        ea.average_parameters([np.ones(2)])
    with pytest.raises(ParametersError, match="different shapes or dtypes"):
        ea.synchronize_center([np.ones(1), np.ones(1)])


def test_there_is_no_center_to_copy_before_the_first_step():
    ea, x = AllReduceEA(Alone(1)), np.full(2, 3.0)
    with pytest.raises(UserError, match="no center"):
        ea.copy_center([x])
    ea.average_parameters([x])
    assert (center_of(ea, x) == 3.0).all()


def test_narrow_parameters_are_drawn_by_less_than_half_a_unit_too():
    unit = torch.finfo(torch.bfloat16).eps

    def task(node):
        x = torch.full((500,), 1.0 + 2 * unit * node.rank, dtype=torch.bfloat16)
        ea = AllReduceEA(node, 1, 0.1)
        for _ in range(60):
            ea.average_parameters([x])
        return x.double()

    one, two = called(task, 2).values()
    assert float((one - two).mean().abs()) < unit / 5  # it was 2 units
    # The mean of both and of the center, which began with the first one, is kept.
    assert float(((one + two) / 2 - 1.0 - 2 / 3 * unit).mean().abs()) < unit / 5


def test_a_restarted_node_meets_the_others_at_the_end_of_their_epoch():
    """Its script begins with its parameters, while the others synchronize the center."""

    def task(node):
        x = [np.full((2, 3), float(node.rank)), np.full(4, 7.0)]
        ea = EASGD(node)
        if node.rank == 2:
            ea.synchronize_parameters(x)
            return x
        ea.average_parameters(x)
        ea.synchronize_center(x)
        ea.copy_center(x)
        return x

    first, second, restarted = called(task).values()
    for own, center, other in zip(restarted, first, second, strict=True):
        assert own.shape == center.shape
        np.testing.assert_array_equal(own, center)
        np.testing.assert_array_equal(other, center)
