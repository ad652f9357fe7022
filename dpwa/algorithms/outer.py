"""Outer optimizers by gossip: many inner steps, an outer step, and a mix with a random peer.

A node trains alone for `period` inner steps. What these steps changed is the pseudo-gradient of an
outer optimizer, as in DiLoCo. DiLoCo averages the pseudo-gradients of all nodes. Here, each node
takes its outer step first. Then pairs of nodes mix their parameters. With base b, parameters x and
momentum m, every `period` steps:

    d = b - x;    m = mu*m + d;    b = b - lr*(d + mu*m);    x = b        outer step (SGD, Nesterov)
    b_i = (b_i + b_j)/2,    x_i moves by the same difference              mix with a peer j

The order decides. If all nodes mix with each other, the outer steps are those of torch's SGD with
Nesterov momentum on the mean pseudo-gradient. Nodes that mix first, and step afterwards, start
their inner steps from different bases. Then the steps are others, and diverge in steep directions.

A mix moves x and b by the same difference, so no inner step is lost or counted twice, even if the
peer's parameters arrive some steps later. So nodes need not take their outer steps at the same
moment, and a straggler does not stop the others.

Sources: A. Douillard et al., DiLoCo (2023); Stich, Local SGD Converges Fast and Communicates Little
(2019); J. Kolehmainen et al., NoLoCo (2025). The order was measured for dpwa.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from dpwa.algorithms.base import Algorithm, Ask, Received, Terms, Values, View, register_algorithm
from dpwa.types import StrictModel, refusal

log = logging.getLogger("dpwa.algorithms")

MAX_GAIN = 2.0  # of lr/(1 - momentum), with the inner learning rate of a node that trains alone

Momentum = Annotated[float, Field(ge=0.0, lt=1.0)]
Rate = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class LocalOptions(StrictModel):
    """Options of `local`."""

    period: int = Field(default=50, ge=1, description="number of inner steps between outer steps")
    momentum: Momentum = Field(default=0.0, description="Nesterov momentum of the outer steps")
    lr: Rate = Field(
        default=1.0,
        validate_default=True,
        description="learning rate of the outer steps. The value 1 without momentum is local SGD",
    )

    @field_validator("lr")
    @classmethod
    def _is_stable(cls, lr: float, known: ValidationInfo) -> float:
        momentum = known.data.get("momentum", 0.0)
        limit = nesterov_limit(momentum)
        if lr >= limit:
            raise refusal(
                f"a number below {limit:.4g}, the limit for momentum {momentum:g}, because "
                "otherwise the outer steps diverge if the inner steps reach a minimum"
            )
        return lr


class OuterOptions(LocalOptions):
    """Options of `outer`."""

    period: int = Field(default=20, ge=1, description="number of inner steps between outer steps")
    period_s: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="if set, a node takes an outer step each time so many seconds have passed, and "
        "ignores `period`. So slow and fast nodes take equally many outer steps",
    )
    momentum: Momentum = Field(default=0.5, description="Nesterov momentum of the outer steps")
    lr: Rate = Field(
        default=0.7, validate_default=True, description="learning rate of the outer steps"
    )
    plain_rounds: int = Field(
        default=5,
        ge=0,
        description="number of outer steps at the start that use learning rate 1 and no momentum. "
        "The first pseudo-gradients are long and alike, so momentum would go too far",
    )


class LocalSteps(Algorithm):
    """Take inner steps, then mix with a random peer, and try again until a peer answers."""

    uses_rule = False
    repeats = True
    needs_whole = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.base: Values | None = None  # b; `None` before the first update
        self._momentum: Values | None = None  # m; `None` stands for zero
        self._inner_steps = 0
        self._mixes = False  # whether this outer step waits for a mix

    def asks(self, view: View) -> Ask | None:  # noqa: ARG002
        """Ask a random peer after each outer step, until a peer answers."""
        return Ask(terms=self.terms) if self._mixes else None

    def momentum(self, base: Values) -> Values:
        """Return the momentum of the outer steps, which is zero before the first outer step."""
        if self._momentum is None:
            self._momentum = base.clone()
            self._momentum.mul_(0.0)
        return self._momentum


@register_algorithm("local")
class Local(LocalSteps):
    """Take an outer step after every `period` inner steps, then move halfway to a random peer.

    With lr 1 and no momentum, this is local SGD, x_i = (x_i + x_j)/2. The peer need not move, so
    the mean of all nodes is kept only on average. See `Outer` for the formula and the other way.
    """

    options_model: ClassVar[type[StrictModel]] = LocalOptions

    def publishes(self, view: View) -> Values | None:
        """Take an outer step if it is due. Return the base until it is mixed, otherwise `None`."""
        if self.base is None:
            self.base = view.model.clone()
            return view.model
        self._inner_steps += 1
        if self.is_due(view):
            self._take_outer_step(view.model, self.base)
            self._inner_steps, self._mixes = 0, True
            return self.base
        # A pull needs what this node published in the same round.
        return self.base if self._mixes and self.terms is Terms.PULL else None

    def is_due(self, view: View) -> bool:  # noqa: ARG002
        """Return whether this node takes an outer step now."""
        return bool(self._inner_steps >= self.options.period)

    def merge(self, view: View, received: Received) -> float:  # noqa: ARG002
        """Move the parameters and the base by half of the difference of both nodes' bases."""
        if self.base is not None:
            peer = received.values()
            self.base.add_(peer, 0.5)
            self.base.add_(received.published, -0.5)
        self._mixes = False
        return received.merge(0.5, delta=True)

    def _take_outer_step(self, x: Values, b: Values) -> None:
        lr, mu = self.outer_optimizer()
        if (lr, mu) != (1.0, 0.0):
            d = b.clone()
            d.add_(x, -1.0)
            if mu:
                m = self.momentum(b)
                m.mul_(mu)
                m.add_(d)
                d.add_(m, mu)
            b.add_(d, -lr)
            x.copy_(b)
        else:
            b.copy_(x)

    def outer_optimizer(self) -> tuple[float, float]:
        """Return the learning rate and the momentum of this outer step."""
        return self.options.lr, self.options.momentum


@register_algorithm("outer")
class Outer(Local):
    """Take an outer step after every `period` inner steps. Then two nodes mix, or neither does.

    The formula is at the top of this file. Both nodes of a mix take the mean of their bases, or
    neither node changes. So a mix never moves the mean of all bases. A node takes part in one mix
    after each of its outer steps. If every peer is busy, the node asks again after the next step.
    """

    options_model = OuterOptions
    terms = Terms.EXCHANGE

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._rounds = 0
        self._stepped_at: float | None = None
        gain = self.options.lr / (1.0 - self.options.momentum)
        if gain > MAX_GAIN:
            log.warning(
                "outer: lr/(1 - momentum) is %.2g, so the outer steps go %.2g times as far as the "
                "inner steps. With the learning rate of a node that trains alone, that is too far. "
                "Use about a third of this learning rate, or set momentum to at most %.2g "
                "[DPWA-W105]",
                gain,
                gain,
                max(0.0, 1.0 - self.options.lr / MAX_GAIN),
            )

    def is_due(self, view: View) -> bool:
        """Return whether this node takes an outer step now."""
        if self.options.period_s is None:
            return super().is_due(view)
        if self._stepped_at is None or view.now - self._stepped_at >= self.options.period_s:
            is_first, self._stepped_at = self._stepped_at is None, view.now
            return not is_first
        return False

    def outer_optimizer(self) -> tuple[float, float]:
        """Return the learning rate and the momentum of this outer step."""
        self._rounds += 1
        is_plain = self._rounds <= self.options.plain_rounds
        return (1.0, 0.0) if is_plain else super().outer_optimizer()


class NoLoCoOptions(StrictModel):
    """Options of `noloco`."""

    period: int = Field(default=50, ge=1, description="number of inner steps between outer steps")
    alpha: Momentum = Field(default=0.5, description="momentum of the outer steps")
    beta: Rate = Field(default=0.7, description="learning rate of the outer steps")
    gamma: Rate = Field(
        default=0.7,
        validate_default=True,
        description="strength with which an outer step pulls two nodes toward each other. gamma "
        "must be below 2(1 - alpha^2)",
    )

    @field_validator("gamma")
    @classmethod
    def _is_stable(cls, gamma: float, known: ValidationInfo) -> float:
        alpha = known.data.get("alpha", 0.0)
        limit = noloco_limit(alpha)
        if gamma >= limit:
            raise refusal(
                f"a number below {limit:.4g}, which is 2(1 - alpha^2) for alpha {alpha:g}, so that "
                "nodes do not diverge from each other"
            )
        return gamma


@register_algorithm("noloco")
class NoLoCo(LocalSteps):
    """Mix with a random peer first, and take the outer step with the mean of both nodes.

    With means over the two nodes:

        m = alpha*m + beta*mean(x - b) + gamma*(mean(b) - b_i);    b = b + m;    x = b

    One published vector is enough: y = b + beta/gamma * (x - b), because beta/2 * (x_j - b_j) +
    gamma/2 * b_j = gamma/2 * y_j. The authors' code has beta = gamma, so y is x.

    Source: NoLoCo (Kolehmainen et al., No-all-reduce Low Communication Training, 2025).
    """

    options_model = NoLoCoOptions

    def publishes(self, view: View) -> Values | None:
        """Return y for an outer step that is due, the parameters at first, otherwise `None`."""
        if self.base is None:
            self.base = view.model.clone()
            return view.model
        self._inner_steps += 1
        self._mixes = self._inner_steps >= self.options.period
        if not self._mixes:
            return None
        y = self.base.clone()
        y.lerp_(view.model, self.options.beta / self.options.gamma)
        return y

    def merge(self, view: View, received: Received) -> float:
        """Take the outer step with the y of the peer."""
        if self.base is None:
            return 0.0
        o, b, peer = self.options, self.base, received.values()
        drift = received.published.clone()  # x - b at the time when y was published
        drift.add_(b, -1.0)
        drift.mul_(o.gamma / o.beta)
        m = self.momentum(b)
        m.mul_(o.alpha)
        m.add_(drift, o.beta / 2)
        m.add_(peer, o.gamma / 2)
        m.add_(b, -o.gamma / 2)
        b.add_(m)
        view.model.add_(m)  # x = b, plus the inner steps since then
        view.model.add_(drift, -1.0)
        received.merge_buffers(0.5)
        self._inner_steps, self._mixes = 0, False
        return 0.5


def nesterov_limit(momentum: float) -> float:
    """Return the smallest outer learning rate with which outer Nesterov steps diverge.

    If the inner steps reach a minimum at 0, the pseudo-gradient is d = b. Then an outer step maps
    (b, m) by a matrix of determinant mu*(1 - lr), whose eigenvalue passes -1 at this limit. If the
    inner steps go less far, the limit is higher.

    >>> [round(nesterov_limit(momentum), 2) for momentum in (0.0, 0.5, 0.9)]
    [2.0, 1.5, 1.36]
    """
    return (2.0 + 2.0 * momentum) / (1.0 + 2.0 * momentum)


def noloco_limit(alpha: float) -> float:
    """Return the smallest gamma that drives nodes apart with NoLoCo on random pairs.

    Assume that the nodes do not train. Let e be the difference of a node's base from the mean, and
    the partner an independent random node. Then a matrix A maps the moments (E ee, E em, E mm) of
    one round to those of the next. The nodes stay together in mean square if and only if the
    spectral radius of A is below 1. A maps moments to moments, so (Perron and Frobenius) its
    largest eigenvalue is real, and passes 1 where det(I - A) = 0. That is 2*(1 - alpha^2). With few
    nodes, the limit is a little higher. This is dpwa's own computation.

    >>> [round(noloco_limit(alpha), 2) for alpha in (0.0, 0.5, 0.9)]
    [2.0, 1.5, 0.38]
    """
    return 2.0 * (1.0 - alpha**2)
