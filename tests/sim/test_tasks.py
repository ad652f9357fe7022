import numpy as np
import pytest
from support.simulations import run_spec

from dpwa.errors import UserError
from dpwa.sim.draws import normal, uniform
from dpwa.sim.tasks import TASKS, make_task

TRAINED = {
    "quadratic": {"noise": 0.0, "heterogeneity": 0.5, "dimension": 6},
}


def task(name, nodes=4, **options):
    return make_task(run_spec(nodes, options=options, task=name, seed=3))


def gradients(made, x, nodes, lr):
    """What a step goes along, per node."""
    stepped = x.copy()
    made.step(stepped, nodes)
    return (x - stepped) / lr


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_goes_down_the_gradient_of_the_loss(name):
    options, nodes, h = {"lr": 1e-6, **TRAINED[name]}, np.arange(4), 1e-5
    x = task(name, **options).starts() + 0.1
    found = gradients(task(name, **options), x, nodes, 1e-6)
    for column in range(x.shape[1]):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[:, column] += sign * h
            ends.append(task(name, **options).step(moved, nodes))
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(found[:, column], abs=1e-4)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_step_on_digits_goes_down_the_gradient_of_its_batch(model):
    pytest.importorskip("sklearn")
    options, nodes, h = {"model": model, "hidden": 5, "lr": 1e-6}, np.arange(3), 1e-6
    made = [task("digits", nodes=3, **options) for _ in range(9)]
    x = made[0].starts() + 0.01
    found = gradients(made[0], x, nodes, 1e-6)
    for number, column in enumerate(np.linspace(0, x.shape[1] - 1, 4).astype(int)):
        ends = []
        for side, sign in enumerate((1, -1)):
            moved = x.copy()
            moved[:, column] += sign * h
            ends.append(made[1 + 2 * number + side].step(moved, nodes))
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(found[:, column], abs=1e-5)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "consensus"])
def test_the_noise_of_a_node_does_not_depend_on_the_others(name):
    if name == "digits":
        pytest.importorskip("sklearn")
    together, apart = task(name), task(name)
    one, other = together.starts(), apart.starts()
    for _ in range(3):
        together.step(one, np.arange(4))
    for node in (2, 0, 3, 1):
        for _ in range(3):
            row = other[[node]]
            apart.step(row, np.array([node]))
            other[node] = row[0]
    assert one == pytest.approx(other, abs=1e-12)
    assert not np.allclose(one[0], one[1])


def test_training_brings_the_loss_down():
    pytest.importorskip("sklearn")
    for name, better in (("quadratic", 0.3), ("digits", 0.5)):
        made = task(name)
        x = made.starts()
        before = made.evaluate(x.mean(axis=0))
        for _ in range(100):
            made.step(x, np.arange(4))
        after = made.evaluate(x.mean(axis=0))
        assert after[0] < better * before[0]
        if name == "digits":
            assert after[1] > 0.85 > before[1]
        else:
            assert after[1] is None


def test_private_digits_are_of_few_classes_and_too_many_nodes_have_none():
    pytest.importorskip("sklearn")
    made = task("digits", nodes=10, private=True, shared=0.0)
    classes = [set(made._labels[made._batch(np.array([node]))[0]].tolist()) for node in range(10)]
    assert [len(found) for found in classes] == [1] * 10
    assert len(set().union(*classes)) == 10
    with pytest.raises(UserError, match=r"digits.private: expected fewer nodes"):
        task("digits", nodes=2000, private=True)


def test_hashed_noise_is_uniform_normal_and_independent():
    keys = np.arange(300)[:, None], np.arange(300)
    u, n = uniform(5, *keys), normal(5, *keys)
    assert np.bincount((10 * u.ravel()).astype(int)) == pytest.approx([9000] * 10, rel=0.05)
    assert (n.mean(), n.std(), (n**3).mean(), (n**4).mean()) == pytest.approx((0, 1, 0, 3), abs=0.1)
    shifted = [np.corrcoef(n[:-1].ravel(), n[1:].ravel()), np.corrcoef(n.ravel(), n.T.ravel())]
    assert max(abs(c[0, 1]) for c in shifted) < 0.02
    assert not np.allclose(n, normal(6, *keys))
