import numpy as np
import pytest
from support.updaters import OF_ANY_FORM

from dpwa.errors import UnknownNameError, UserError
from dpwa.tables.updaters import Updater, make_updater, register_updater, updater_names

DTYPES = ["float32", "float64"]
ALL = slice(None)


class Table:
    def __init__(self, name, values, options=None):
        self.updater = make_updater(name, options)
        self.values = values
        self.state = self.updater.new_state(values.shape, values.dtype)

    def add(self, delta, rows=ALL):
        self.updater.apply(self.values, self.state, rows, np.asarray(delta, self.values.dtype))


def test_the_updaters_of_multiverso_are_there():
    assert updater_names()[:4] == ("default", "sgd", "momentum", "adagrad")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "expected"), [("default", [3, 6]), ("sgd", [-1, -2])])
def test_default_adds_and_sgd_subtracts(name, expected, dtype):
    table = Table(name, np.array([1, 2], dtype))
    table.add([2, 4])
    np.testing.assert_array_equal(table.values, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_momentum_follows_its_formula(dtype):
    table = Table("momentum", np.array([10, 20], dtype), {"momentum": 0.75})
    table.add([4, 8])  # s = 0.25*d = 1, 2
    np.testing.assert_array_equal(table.values, [9, 18])
    table.add([8, 0])  # s = 0.75*(1, 2) + 0.25*(8, 0) = 2.75, 1.5
    np.testing.assert_array_equal(table.values, [6.25, 16.5])


def test_momentum_of_zero_is_sgd():
    table = Table("momentum", np.array([1.0, 2.0]), {"momentum": 0.0})
    table.add([2, 4])
    np.testing.assert_array_equal(table.values, [-1, -2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_adagrad_follows_its_formula(dtype):
    table = Table("adagrad", np.array([1.0], dtype), {"learning_rate": 0.5, "epsilon": 1.0})
    x, g2 = 1.0, 0.0
    for d in (2.0, -3.0, 0.5):
        table.add([d])
        g2 += d * d
        x -= 0.5 * d / (g2 + 1.0) ** 0.5
    np.testing.assert_allclose(table.values, x, rtol=8 * np.finfo(dtype).eps)


def test_adagrad_goes_down_a_quadratic():
    scales = np.array([1.0, 100.0])  # the gradient of 0.5 * scale * x^2 is scale * x
    table = Table("adagrad", np.array([1.0, -1.0]), {"learning_rate": 0.5})
    for _ in range(100):
        table.add(scales * table.values)
    assert np.abs(table.values).max() < 1e-3
    assert np.isfinite(table.values).all()


@pytest.mark.parametrize("name", OF_ANY_FORM)
@pytest.mark.parametrize("columns", [None, 3])
def test_rows_are_updated_as_if_they_were_alone(name, columns):
    rng = np.random.default_rng(3)
    shape = (6,) if columns is None else (6, columns)
    start = rng.normal(size=shape)
    whole, rows = Table(name, start.copy()), np.array([1, 4])
    alone = Table(name, start[rows].copy())
    for _ in range(3):
        delta = rng.normal(size=(2, *shape[1:]))
        kept = delta.copy()
        whole.add(delta, rows)
        alone.add(delta)
        np.testing.assert_array_equal(delta, kept)
    np.testing.assert_array_equal(whole.values[rows], alone.values)
    for key, array in whole.state.items():
        np.testing.assert_array_equal(array[rows], alone.state[key])
        assert not np.delete(array, rows, axis=0).any()
    others = np.delete(np.arange(6), rows)
    np.testing.assert_array_equal(whole.values[others], start[others])


@pytest.mark.parametrize("name", OF_ANY_FORM)
def test_what_is_not_finite_is_applied_even_where_numpy_raises(name):
    table = Table(name, np.array([1.0, 1.0], "float32"))
    with np.errstate(all="raise"):
        table.add([3e38, np.inf])
        table.add([3e38, -np.inf])
    assert not np.isfinite(table.values[1])


def test_options_that_cannot_be_are_refused_by_name():
    with pytest.raises(UserError, match=r"momentum: expected a number .* \(got 2\)"):
        make_updater("momentum", {"momentum": 2})
    with pytest.raises(UserError, match="rate"):
        make_updater("sgd", {"rate": 0.1})
    with pytest.raises(UnknownNameError, match="known: default, sgd, momentum, adagrad"):
        make_updater("adam")


def test_a_name_stands_for_one_updater():
    with pytest.raises(UserError, match="an updater named 'sgd' is already registered"):
        register_updater("sgd")(type("Other", (Updater,), {}))
