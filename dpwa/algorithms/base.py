"""The protocol between a training algorithm and its node, and the registry of algorithms.

An algorithm has four methods, whose defaults are plain gossip:

    publishes   the parameters that this node publishes now
    asks        the peer that it asks for parameters, and the terms
    merge       merges the parameters that arrived
    after_step  its work after every step of the optimizer

All of them are called on the training thread, and none may wait. An algorithm sees parameters only
as `Values`. So it needs no torch, and also runs on numpy arrays in a simulation. A new one is a
class in a module that the setting `plugins` names:

>>> from dpwa.algorithms import Algorithm, register_algorithm
>>> @register_algorithm("a_quarter")
... class AQuarter(Algorithm):
...     def merge(self, view, received):
...         return received.merge(0.25)
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from dpwa.errors import UserError
from dpwa.features import FEATURES
from dpwa.policy.interpolation import interpolation
from dpwa.registry import Registry
from dpwa.types import NoOptions, StrictModel, TrainingProgress

if TYPE_CHECKING:
    from typing_extensions import Self


class Values(Protocol):
    """Numbers in the shapes of the trainable parameters, with elementwise arithmetic in place.

    Buffers (batch-norm statistics) are not included. `Received.merge` merges them.
    """

    def clone(self) -> Self:
        """Return a copy."""
        ...

    def copy_(self, other: Self) -> None:
        """Set self = other."""
        ...

    def lerp_(self, other: Self, weight: float) -> None:
        """Set self = self + weight * (other - self)."""
        ...

    def add_(self, other: Self, alpha: float = 1.0) -> None:
        """Set self = self + alpha * other."""
        ...

    def mul_(self, factor: float) -> None:
        """Set self = factor * self. A factor of 0 clears even values that are not finite."""
        ...


class Terms(Enum):
    """The terms on which a node asks for parameters."""

    PULL = "pull"  # the peer is only read
    EXCHANGE = "exchange"  # both ends merge the other's, or neither does
    SHARE = "share"  # the peer gives half of its push-sum weight away


@dataclass(frozen=True)
class Ask:
    """A request for the parameters of a peer.

    Attributes:
        peer: its name. `None`: flow control picks one of the neighbours in the topology.
        terms: see `Terms`.
    """

    peer: str | None = None
    terms: Terms = Terms.PULL


class View(Protocol):
    """A node's knowledge at this moment."""

    @property
    def model(self) -> Values:
        """The parameters in training."""
        ...

    @property
    def name(self) -> str:
        """The node's own name."""
        ...

    @property
    def peers(self) -> Sequence[str]:
        """Names of the peers in view."""
        ...

    @property
    def updates(self) -> int:
        """The number of `update_send` calls of this node, including the current one. Merges keep
        it.
        """
        ...

    @property
    def rng(self) -> random.Random:
        """Randomness, seeded by the configuration."""
        ...

    @property
    def fetch_probability(self) -> float:
        """The setting."""
        ...

    @property
    def keeps_local_step(self) -> bool:
        """Whether `merge: delta` is set."""
        ...

    @property
    def asks_leader(self) -> bool:
        """Whether the interpolation rule in use wants the leader as the peer."""
        ...

    def leader(self, *, of_all: bool = True) -> str | None:
        """Return the node with the lowest running loss, of all nodes or of this node's group.

        Known only to algorithms that declare `follows_leaders`. It may be this node itself.
        """
        ...

    def has_groups(self) -> bool:
        """Tell whether the nodes belong to more than one group."""
        ...

    def total_updates(self) -> float:
        """Return the number of updates of all nodes together, as far as this node knows it."""
        ...


class Received(Protocol):
    """A peer's snapshot that has arrived."""

    @property
    def peer(self) -> str:
        """Whose it is."""
        ...

    @property
    def standing(self) -> TrainingProgress:
        """Clock and loss of the peer when it published."""
        ...

    @property
    def factor(self) -> float:
        """The weight that the configured interpolation rule gives to it, from 0 to 1."""
        ...

    @property
    def ahead(self) -> float:
        """Share of an update that it is ahead of `published`, from 0 to 1, as it was read later."""
        ...

    @property
    def published(self) -> Values:
        """The values that this node published in the same round. They must not be changed."""
        ...

    def merge(self, factor: float, *, delta: float = 0.0, buffers: float | None = None) -> float:
        """Merge the snapshot into the model, in one pass.

        Args:
            factor: f of x = (1-f)*x + f*peer.
            delta: share d, from 0 to 1, of the local step that x keeps. The merge sets
                x = x + f*(peer - d*published - (1-d)*x).
            buffers: the factor of floating buffers. If `None`, it is the factor of the parameters.

        Returns:
            The factor, for `Algorithm.merge` to return.
        """
        ...

    def values(self, into: Values | None = None) -> Values:
        """Return a copy of the peer's parameters, in the memory of an earlier copy if `into` is
        given.
        """
        ...

    def merge_buffers(self, factor: float) -> None:
        """Interpolate the floating buffers alone."""
        ...


class Algorithm:
    """A training algorithm, as one node runs it. By default, gossip.

    Args:
        options: of the model `options_model`.

    Attributes:
        name: the name by which it is registered.
        options_model: the model of its options, which are set under its name.
        terms: the terms of all its asks.
        follows_leaders: whether, at every update, nodes pass on which node has the lowest loss.
        uses_rule: whether it uses `Received.factor` of the configured interpolation rule, and the
            setting `merge`.
        repeats: the default of `repeat`. If true, a node merges the same snapshot again until the
            peer publishes a newer snapshot.
        needs_whole: whether it needs all values of a peer at once, not a part of them.
        has_center: whether it pulls nodes toward a center.
        averages_gradients: whether the adapter averages the gradients of the nodes in sync.
        center: this node's copy of the center. `None` before the first update, and without a
            center.
        more: further asks of this update, set by `asks`. Each is sent when the snapshot of the ask
            before it was merged, or did not arrive.
        averages_buffers: whether floating buffers become the mean of the newest of all nodes at the
            end of this update.
    """

    name: ClassVar[str] = ""
    options_model: ClassVar[type[StrictModel]] = NoOptions
    terms: ClassVar[Terms] = Terms.PULL
    follows_leaders: ClassVar[bool] = False
    uses_rule: ClassVar[bool] = True
    repeats: ClassVar[bool] = False
    needs_whole: ClassVar[bool] = False
    has_center: ClassVar[bool] = False
    averages_gradients: ClassVar[bool] = False

    center: Values | None = None
    more: Sequence[Ask] = ()
    averages_buffers: bool = False

    def __init__(self, options: Any = None) -> None:
        self.options: Any = self.options_model() if options is None else options

    def publishes(self, view: View) -> Values | None:
        """Return the values to publish now. `None`: peers still read those published before."""
        return view.model

    def asks(self, view: View) -> Ask | None:
        """Return the request to send now, or `None` to ask no peer."""
        return Ask() if view.rng.random() < view.fetch_probability else None

    def merge(self, view: View, received: Received) -> float:
        """Merge a snapshot, and return the factor with which the clock is interpolated.

        With `merge: delta` the local step is kept, less the part by which the peer is ahead.
        Otherwise nodes that read each other's snapshots half an update ahead would move 1 / (1 -
        f/2) times as far.
        """
        kept = 1.0 - received.ahead if view.keeps_local_step else 0.0
        return received.merge(received.factor, delta=kept)

    def after_step(self, view: View) -> None:
        """Do the work that follows every step of the optimizer, before anything is merged."""


_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

MakeAlgorithm = TypeVar("MakeAlgorithm", bound=type[Algorithm])

_REGISTRY: Registry[type[Algorithm]] = Registry(
    "algorithm", {each.name: each.algorithm for each in FEATURES if each.algorithm}
)


def register_algorithm(name: str) -> Callable[[MakeAlgorithm], MakeAlgorithm]:
    """Return a decorator that makes a class available to configurations as `algorithm: NAME`.

    Raises:
        UserError: the name is taken by a different algorithm, or is no valid name.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"an algorithm is named {name!r}; expected 1 to 64 letters, digits, dots, underscores "
            "or hyphens, because nodes send each other this name [DPWA-E020]"
        )

    def register(kind: MakeAlgorithm) -> MakeAlgorithm:
        _REGISTRY.add_item(name, kind, kind)
        kind.name = name
        return kind

    return register


def algorithm(name: str) -> type[Algorithm]:
    """Return the algorithm of this name.

    Raises:
        UnknownNameError: no such algorithm is registered.
    """
    return _REGISTRY.get(name)


def follows_leaders(name: str, rule: str) -> bool:
    """Return whether nodes with this algorithm and interpolation rule pass on which node leads."""
    return algorithm(name).follows_leaders or interpolation(rule).asks_leader


def algorithm_names() -> tuple[str, ...]:
    """Names of all registered algorithms, in the order of registration."""
    return _REGISTRY.names()
