"""Updaters apply additions to the rows of a table.

dpwa has the four updaters of Multiverso (Microsoft, 2016). Each updater is a formula on whole
arrays. An addition to some rows changes the values and the state of only these rows. Additions to
the same row are summed first. You can register an updater of your own, under a name for tables:

>>> from dpwa.tables.updaters import Updater, register_updater
>>> @register_updater("halved")
... class Halved(Updater):
...     def step(self, values, state, delta):
...         values += 0.5 * delta

If an updater raises an error, its changes are not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import Field, ValidationError

from dpwa.config.validation import mistakes
from dpwa.errors import UserError, without_codes
from dpwa.policy.range_leases import COLUMNS, change_rows
from dpwa.registry import Registry
from dpwa.types import NoOptions, StrictModel

Rows = slice | np.ndarray  # rows of one array: a slice, or int64 indices without duplicates
State = dict[str, np.ndarray]


class Updater:
    """Base class of updaters, which apply additions to rows. The default is x += d.

    Args:
        options: an instance of `options_model`.

    Attributes:
        name: the name under which the updater is registered.
        options_model: the model of the updater's options.
        state_names: the names of arrays with the shape and dtype of the values. They start at 0.
        form: the number of columns and the dtype that tables must have. `None` means any.
        is_in_place: whether `step` may change the table itself instead of a copy. Set it only if
            `step` cannot fail after its first change.
    """

    name: ClassVar[str] = ""
    options_model: ClassVar[type[StrictModel]] = NoOptions
    state_names: ClassVar[tuple[str, ...]] = ()
    form: ClassVar[tuple[int, str] | None] = None
    is_in_place: ClassVar[bool] = False

    def __init__(self, options: Any = None) -> None:
        self.options: Any = self.options_model() if options is None else options

    def new_state(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> State:
        """Return the state for new values of this shape and dtype."""
        return {name: np.zeros(shape, dtype) for name in self.state_names}

    def step(self, values: np.ndarray, state: State, delta: np.ndarray) -> None:  # noqa: ARG002
        """Apply an addition to `values` and `state` in place.

        Args:
            values: x, with the shape and dtype of the `state` arrays and `delta`.
            state: the arrays of `state_names`.
            delta: d. Do not change it.
        """
        values += delta

    def apply(self, values: np.ndarray, state: State, rows: Rows, delta: np.ndarray) -> None:
        """Apply an addition in place to the given rows of a shard.

        Args:
            values: all rows of the shard.
            state: the updater's arrays, which belong to `values`.
            rows: the rows to change. No row may occur twice.
            delta: the addition to these rows, in their order.
        """
        arrays = {"": values, **state}
        is_in_place = isinstance(rows, slice) and self.is_in_place
        if isinstance(rows, slice):
            parts = {n: a[rows] if is_in_place else a[rows].copy() for n, a in arrays.items()}
        else:
            parts = {name: array.take(rows, axis=0) for name, array in arrays.items()}
        # Sums may overflow. Then the table holds inf, and the update is still complete.
        with np.errstate(all="ignore"):
            self.step(parts[""], {name: parts[name] for name in state}, delta)
        if not is_in_place:
            for name, array in arrays.items():
                array[rows] = parts[name]


MakeUpdater = TypeVar("MakeUpdater", bound=type[Updater])

_REGISTRY: Registry[type[Updater]] = Registry("updater")


def register_updater(name: str) -> Callable[[MakeUpdater], MakeUpdater]:
    """Return a decorator that registers an updater class under `name`, for use in tables.

    Raises:
        UserError: a different updater has this name already.
    """

    def register(kind: MakeUpdater) -> MakeUpdater:
        _REGISTRY.add_item(name, kind, kind)
        kind.name = name
        return kind

    return register


def updater_names() -> tuple[str, ...]:
    """Return the names of all registered updaters, in the order of registration."""
    return _REGISTRY.names()


def make_updater(name: str, options: Mapping[str, Any] | None = None) -> Updater:
    """Return a new updater with the given options.

    Raises:
        UnknownNameError: no updater of this name is registered.
        UserError: an option is unknown, or its value is invalid.
    """
    kind = _REGISTRY.get(name)
    try:
        return kind(kind.options_model.model_validate(dict(options or {})))
    except ValidationError:
        wrong = without_codes(mistakes(kind.options_model, dict(options or {}), name))
        raise UserError(f"the options of the updater are wrong: {wrong} [DPWA-E180]") from None


@register_updater("default")
class Default(Updater):
    """Adds each addition to the values: x += d. Source: Multiverso."""

    is_in_place = True


@register_updater("sgd")
class Sgd(Updater):
    """x -= d, where d is the gradient times the worker's learning rate. Source: Multiverso."""

    is_in_place = True

    def step(self, values: np.ndarray, state: State, delta: np.ndarray) -> None:  # noqa: ARG002
        values -= delta


class MomentumOptions(StrictModel):
    momentum: float = Field(
        default=0.9, ge=0.0, lt=1.0, description="factor m, by which the previous s counts in s"
    )


@register_updater("momentum")
class Momentum(Updater):
    """s = m*s + (1-m)*d, then x -= s. Source: the smoothed gradient of Multiverso."""

    options_model = MomentumOptions
    is_in_place = True  # allocates all memory before the first change
    state_names = ("s",)

    def step(self, values: np.ndarray, state: State, delta: np.ndarray) -> None:
        share = (1.0 - self.options.momentum) * delta
        smooth = state["s"]
        smooth *= self.options.momentum
        smooth += share
        values -= smooth


class AdagradOptions(StrictModel):
    learning_rate: float = Field(
        default=0.1, gt=0.0, allow_inf_nan=False, description="learning rate lr"
    )
    epsilon: float = Field(default=1e-6, gt=0.0, allow_inf_nan=False, description="eps")


@register_updater("adagrad")
class Adagrad(Updater):
    """g2 += d*d, then x -= lr * d / sqrt(g2 + eps).

    Source: Duchi, Hazan and Singer (2011). Multiverso uses g2 -= d*d, whose root is NaN.
    """

    options_model = AdagradOptions
    is_in_place = True  # allocates all memory before the first change
    state_names = ("g2",)

    def step(self, values: np.ndarray, state: State, delta: np.ndarray) -> None:
        scratch = delta * delta
        squares = state["g2"]
        squares += scratch
        np.sqrt(np.add(squares, self.options.epsilon, out=scratch), out=scratch)
        np.divide(delta, scratch, out=scratch)
        scratch *= self.options.learning_rate
        values -= scratch


class LeaseOptions(StrictModel):
    """Options of `lease`. They change nothing, but all nodes must have the same options."""

    dataset_size: int = Field(default=1, ge=1, description="number of items of the data set")
    range_size: int = Field(default=1, ge=1, description="number of items of a range")
    shuffle: bool = Field(default=True, description="whether each epoch has a different order")
    seed: int = Field(default=0, ge=0, description="random seed of the orders")


@register_updater("lease")
class LeaseUpdater(Updater):
    """Treats each row as a lease. An addition changes the holder of a lease.

    See `dpwa.policy.range_leases`. `dpwa.dataset.SharedSampler` uses this updater.
    """

    options_model = LeaseOptions
    form = COLUMNS, "float64"

    def step(self, values: np.ndarray, state: State, delta: np.ndarray) -> None:  # noqa: ARG002
        """Change only leases whose current holder is the former holder that the addition names."""
        change_rows(values, delta)
