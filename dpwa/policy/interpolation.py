"""Interpolation rules decide how far a merge moves a node toward its peer.

A rule maps the progress of both nodes to a factor f in [0, 1]. The merge then moves the node by the
share f of the way to the peer. The rules constant, clock and loss, and the divergence threshold,
are from dpwa (2017). The rule leader is the pull of LSGD toward a better node.

Register your own rule under a name that configurations can use:

>>> from dpwa.policy.interpolation import register_interpolation
>>> @register_interpolation("half_if_ahead")
... def half_if_ahead(options, own, peer):
...     return 0.5 if peer.clock > own.clock else 0.0

If the rule has options, pass a `StrictModel`. Configurations set them under the name of the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from dpwa.errors import UserError
from dpwa.registry import Registry
from dpwa.types import Fraction, NoOptions, StrictModel, TrainingProgress

MAX_AHEAD = 2.0  # per update: the maximum rise of a clock at factor 1

FactorRule = Callable[[Any, TrainingProgress, TrainingProgress], float]


class ConstantOptions(StrictModel):
    """Options of `constant`."""

    value: Fraction = Field(default=0.5, description="factor of every merge")


class LeaderOptions(StrictModel):
    """Options of `leader`."""

    strength: Fraction = Field(default=0.1, description="factor if the peer has the lower loss")


@dataclass(frozen=True)
class Interpolation:
    """A named rule, with its options and the function `(options, own, peer) -> factor`.

    With `asks_leader`, the peer is the node with the lowest running loss, once it is known.
    """

    name: str
    options: type[StrictModel]
    rule: FactorRule
    asks_leader: bool = False


_REGISTRY: Registry[Interpolation] = Registry("interpolation")


def register_interpolation(
    name: str, options: type[StrictModel] = NoOptions, *, asks_leader: bool = False
) -> Callable[[FactorRule], FactorRule]:
    """Return a decorator that makes a rule available to configurations as `interpolation: NAME`.

    Raises:
        UserError: a different rule already has this name.
    """

    def register(rule: FactorRule) -> FactorRule:
        _REGISTRY.add_item(name, rule, Interpolation(name, options, rule, asks_leader))
        return rule

    return register


def interpolation(name: str) -> Interpolation:
    """Return the interpolation rule with this name, or raise `UnknownNameError`."""
    return _REGISTRY.get(name)


def interpolation_names() -> tuple[str, ...]:
    """Names of all registered rules, in the order of registration."""
    return _REGISTRY.names()


@register_interpolation("constant", ConstantOptions)
def constant(options: ConstantOptions, own: TrainingProgress, peer: TrainingProgress) -> float:  # noqa: ARG001
    """The factor f is the option `value`, for every peer.  Source: dpwa (2017)."""
    return options.value


@register_interpolation("clock")
def clock(options: NoOptions, own: TrainingProgress, peer: TrainingProgress) -> float:  # noqa: ARG001
    """The factor f is peer_clock / (clock + peer_clock), or 0.5 for 0/0.  Source: dpwa (2017)."""
    return _share(peer.clock, own.clock)


@register_interpolation("loss")
def loss(options: NoOptions, own: TrainingProgress, peer: TrainingProgress) -> float:  # noqa: ARG001
    """The factor f is loss / (loss + peer_loss). A node with a higher loss moves further.

    Source: dpwa (2017).

    A negative loss counts as 0, and 0/0 is 0.5. If one of the nodes has not measured a loss, f =
    0.5. The loss of a diverged node is `inf`: f = 1 if this node has diverged, 0 if the peer has,
    and 0.5 if both have.
    """
    if own.loss is None or peer.loss is None:
        return 0.5
    return _share(max(own.loss, 0.0), max(peer.loss, 0.0))


@register_interpolation("leader", LeaderOptions, asks_leader=True)
def leader(options: LeaderOptions, own: TrainingProgress, peer: TrainingProgress) -> float:
    """The factor f is `strength` if peer_loss < loss, and 0 if not, or if peer_loss is unknown.

    The peer is the leader of all nodes, once it is known. Source: the pull toward a leader of LSGD
    (Teng et al., 2019).
    """
    if peer.loss is None or math.isinf(peer.loss):
        return 0.0
    own_loss = math.inf if own.loss is None else own.loss
    return options.strength if peer.loss < own_loss else 0.0


def divergence_scale(own_loss: float | None, threshold: float) -> float:
    """Return the multiplier of a merge factor: loss/threshold below the threshold, else 1.

    A threshold of 0 switches the scale off. For an unknown loss, the scale is 1. A negative loss
    counts as 0.
    Source: dpwa (2017).
    """
    if own_loss is None or not threshold > 0.0 or own_loss >= threshold:
        return 1.0
    return max(own_loss, 0.0) / threshold


def merge_factor(
    method: Interpolation,
    options: StrictModel,
    own: TrainingProgress,
    peer: TrainingProgress,
    divergence_threshold: float,
) -> float:
    """Return `method`'s factor * `divergence_scale`. `UserError` if the factor is not in [0, 1]."""
    factor = float(method.rule(options, own, peer))
    if not 0.0 <= factor <= 1.0:
        raise UserError(
            f"interpolation {method.name!r} returned {factor!r} for own={own} peer={peer}, but "
            "a factor must be a number from 0 to 1 [DPWA-E120]"
        )
    return factor * divergence_scale(own.loss, divergence_threshold)


def mixed_clock(own_clock: float, peer_clock: float, factor: float) -> float:
    """Return the clock after a merge, interpolated like the parameters: f*peer + (1-f)*own."""
    return factor * peer_clock + (1.0 - factor) * own_clock


def read_ahead(ahead: float, factor: float) -> float:
    """Return how many updates a snapshot is ahead only because this node has read it late.

    A node reads the peer's shared memory at the end of an update, and has published at its
    beginning. So if both nodes are equally fast, the peer's snapshot is ahead. Clocks are
    interpolated, too, and rise by 1 + factor * ahead in each update. If a peer is further ahead,
    that has a different reason, and the result is 0.

    Args:
        ahead: the number of updates by which the peer's clock is ahead.
        factor: the factor of the interpolation.
    """
    if not 0.0 < ahead < MAX_AHEAD:
        return 0.0
    return min(1.0, ahead / (1.0 + factor * ahead))


def _share(part: float, rest: float) -> float:
    """Return part / (part + rest), or 0.5 if both are 0 or both are infinite."""
    if part == rest:
        return 0.5
    if part == 0.0:
        return 0.0
    return 1.0 / (1.0 + rest / part)
