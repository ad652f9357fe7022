"""The interface between a training algorithm and its node, and the registry of algorithms.

An algorithm has four methods. Their defaults are plain gossip:

    publishes   returns the parameters that this node publishes now
    asks        returns the peer to ask for parameters, and the terms
    merge       merges the received parameters
    after_step  does the algorithm's work after every step of the optimizer

The training thread calls them, and none of them may wait. An algorithm sees parameters only as
`Values`. So it needs no torch, and also runs on numpy arrays in a simulation. A new algorithm is
a class in a module that the setting `plugins` names:

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

    Buffers (batch-norm statistics) are not included. `Received.merge` merges buffers.
    """

    def clone(self) -> Self:
        """Return a copy of these values."""
        ...

    def copy_(self, other: Self) -> None:
        """Copy the other values into these values, as `self = other`."""
        ...

    def lerp_(self, other: Self, weight: float) -> None:
        """Interpolate toward the other values, as `self = self + weight * (other - self)`."""
        ...

    def add_(self, other: Self, alpha: float = 1.0) -> None:
        """Add a multiple of the other values, as `self = self + alpha * other`."""
        ...

    def mul_(self, factor: float) -> None:
        """Multiply by a number. A factor of 0 clears even values that are not finite."""
        ...


class Terms(Enum):
    """The kinds of requests with which a node asks a peer for parameters."""

    PULL = "pull"  # the node reads the peer's parameters
    EXCHANGE = "exchange"  # both nodes merge the other's parameters, or neither node does
    SHARE = "share"  # the peer gives away half of its push-sum weight


@dataclass(frozen=True)
class Ask:
    """A request for the parameters of a peer.

    Attributes:
        peer: the peer's name. `None`: flow control picks a neighbour in the topology.
        terms: see `Terms`.
    """

    peer: str | None = None
    terms: Terms = Terms.PULL


class View(Protocol):
    """The interface through which an algorithm reads the state of its node."""

    @property
    def model(self) -> Values:
        """The parameters in training."""
        ...

    @property
    def name(self) -> str:
        """The name of this node."""
        ...

    @property
    def peers(self) -> Sequence[str]:
        """The names of the peers that this node knows."""
        ...

    @property
    def updates(self) -> int:
        """The number of calls of `update_send` on this node, including the current call. Merges do
        not change the number.
        """
        ...

    @property
    def now(self) -> float:
        """The time in seconds, on a clock that only runs forward."""
        ...

    @property
    def rng(self) -> random.Random:
        """The random number generator of the node, seeded by the configuration."""
        ...

    @property
    def fetch_probability(self) -> float:
        """The probability that an update fetches from a peer, from the configuration."""
        ...

    @property
    def keeps_local_step(self) -> bool:
        """Whether a merge keeps the step that the node took during the fetch (`merge: delta`)."""
        ...

    @property
    def asks_leader(self) -> bool:
        """Whether the configured interpolation rule needs the leader as the peer."""
        ...

    def leader(self, *, of_all: bool = True) -> str | None:
        """Return the node with the lowest running loss, of all nodes or of this node's group.

        The leader is known only to algorithms with `follows_leaders`. It may be this node itself.
        """
        ...

    def has_groups(self) -> bool:
        """Return whether the nodes belong to more than one group."""
        ...

    def total_updates(self) -> float:
        """Return this node's estimate of the total number of updates of all nodes."""
        ...


class Received(Protocol):
    """A peer's snapshot that has arrived."""

    @property
    def peer(self) -> str:
        """The name of the peer."""
        ...

    @property
    def standing(self) -> TrainingProgress:
        """The clock and loss of the peer at the time when it published."""
        ...

    @property
    def factor(self) -> float:
        """The factor of the merge, from 0 to 1, which the interpolation rule has computed."""
        ...

    @property
    def ahead(self) -> float:
        """The share of an update, from 0 to 1, by which the snapshot is newer than `published`."""
        ...

    @property
    def published(self) -> Values:
        """The values that this node published before it sent the request. Do not change them."""
        ...

    def merge(self, factor: float, *, delta: float = 0.0, buffers: float | None = None) -> float:
        """Merge the snapshot into the model, in one pass.

        Args:
            factor: f in x = (1-f)*x + f*peer.
            delta: the share d, from 0 to 1, of the local step that x keeps. The merge sets
                x = x + f*(peer - d*published - (1-d)*x).
            buffers: the factor for floating buffers. By default, it is the factor of the
                parameters.

        Returns:
            The factor, as a result for `Algorithm.merge`.
        """
        ...

    def values(self, into: Values | None = None) -> Values:
        """Return a copy of the peer's parameters. If `into`, an earlier copy, is given, overwrite
        it.
        """
        ...

    def merge_buffers(self, factor: float) -> None:
        """Merge only the floating-point buffers of the snapshot, with this factor."""
        ...


class Algorithm:
    """A training algorithm, as one node runs it. The default methods are gossip.

    Args:
        options: an instance of `options_model`.

    Attributes:
        name: the name under which the algorithm is registered.
        options_model: the model of its options. The configuration sets them under the name.
        terms: the terms of all its requests.
        follows_leaders: true if the node with the lowest loss leads. At every update, nodes send
            each other the name and the loss of that node.
        uses_rule: true if merges use the interpolation rule (`Received.factor`) and the setting
            `merge`.
        repeats: the default of the setting `repeat`. If true, a node merges the same snapshot again
            until the peer publishes a newer snapshot.
        needs_whole: whether it needs all values of a peer at once, not a part of them.
        has_center: whether it pulls nodes toward a center.
        averages_gradients: whether the adapter averages the gradients of the nodes in sync.
        center: this node's copy of the center. `None` before the first update, or without a center.
        more: further requests of this update, set by `asks`. A node sends each request when the
            snapshot of the request before was merged, or did not arrive.
        averages_buffers: whether floating buffers become the mean of the newest buffers of all
            nodes at the end of this update.
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
        """Return the values to publish now, or `None` to leave the last values published."""
        return view.model

    def asks(self, view: View) -> Ask | None:
        """Return the request to send now, or `None` to ask no peer."""
        return Ask() if view.rng.random() < view.fetch_probability else None

    def merge(self, view: View, received: Received) -> float:
        """Merge a snapshot. Return its factor, from 0 to 1, by which the clock is merged, too.

        With `merge: delta`, the local step is kept, except the share by which the peer is ahead.
        Otherwise nodes that read each other's snapshots half an update later would move
        1 / (1 - f/2) times as far.
        """
        kept = 1.0 - received.ahead if view.keeps_local_step else 0.0
        return received.merge(received.factor, delta=kept)

    def after_step(self, view: View) -> None:
        """Do the algorithm's work after an optimizer step, before the merge. Default: nothing."""


_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

MakeAlgorithm = TypeVar("MakeAlgorithm", bound=type[Algorithm])

_REGISTRY: Registry[type[Algorithm]] = Registry(
    "algorithm", {each.name: each.algorithm for each in FEATURES if each.algorithm}
)


def register_algorithm(name: str) -> Callable[[MakeAlgorithm], MakeAlgorithm]:
    """Return a decorator that registers an algorithm class for the setting `algorithm: NAME`.

    Raises:
        UserError: a different algorithm has this name already, or the name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"the algorithm name {name!r} is invalid. Use 1 to 64 letters, digits, dots, "
            "underscores or hyphens, because nodes send each other this name [DPWA-E020]"
        )

    def register(kind: MakeAlgorithm) -> MakeAlgorithm:
        _REGISTRY.add_item(name, kind, kind)
        kind.name = name
        return kind

    return register


def algorithm(name: str) -> type[Algorithm]:
    """Return the class of the algorithm with this name.

    Raises:
        UnknownNameError: no algorithm of this name is registered.
    """
    return _REGISTRY.get(name)


def follows_leaders(name: str, rule: str) -> bool:
    """Return whether nodes with this algorithm and interpolation rule need to know the leader."""
    return algorithm(name).follows_leaders or interpolation(rule).asks_leader


def algorithm_names() -> tuple[str, ...]:
    """Return the names of all registered algorithms, in the order of registration."""
    return _REGISTRY.names()
