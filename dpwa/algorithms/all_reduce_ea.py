"""AllReduceEA and EASGD: synchronous elastic averaging with a copy of the center on every node."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpwa.algorithms.collective import Collective, UnevenSteps
from dpwa.data.layout import Layout
from dpwa.data.payload import Payload
from dpwa.data.segments import ByteArray
from dpwa.errors import ParametersError, UserError
from dpwa.policy.elastic import elastic_warning

log = logging.getLogger("dpwa.algorithms")

MAX_ALPHA = 0.2
BETA = 0.9

_NARROW = ("float16", "bfloat16")
_WIDE = ("float32", "float64")

Floats = npt.NDArray[np.floating[Any]]


class AllReduceEA:
    """Elastic averaging, in which the parameters of all nodes and a center attract each other.

    With parameters x_i on N nodes, a node does this every `tau` steps:

        d_i = alpha*(x_i - c);    x_i -= d_i;    c += sum d_i

    Every node has its own copy of the center c. Without gradients, the sum of all x_i and c is
    conserved, and the gap between their mean and c is multiplied by 1 - (N+1)*alpha.

        ea = AllReduceEA(connection)
        ea.synchronize_parameters(params)              # all nodes start equal
        for epoch in range(epochs):
            for batch in batches:                      # the number may differ between nodes
                train_step(batch)
                ea.average_parameters(params)
            ea.synchronize_center(params)              # waits for nodes that have batches left

    A node that waits in `synchronize_center` takes part in the exchanges of nodes with steps left,
    by the same rule. So its parameters move, too. When no node has a step left, all nodes do one
    more exchange.

    Parameters are nested lists, tuples or dicts of tensors or arrays of floating-point numbers,
    which are changed in place. If parameters are narrower than float32, the center and the
    differences are in float32, because differences are small. Narrow parameters are rounded up or
    down at random, so that the mean loses no difference.

    If copies of the center differ, they stay different, because all copies get equal sums. Unless
    you synchronize first, the first `average_parameters` sets the center on all nodes to the first
    node's parameters. It does not change the parameters. Exchanges then pull them to the center.

    Nodes may die, be restarted and be left behind, with the errors and consequences described in
    `AllReduceSGD`. If a call raises an error, parameters and center do not change, and the step is
    not counted.

    Sources: AllReduceEA of torch-distlearn (2016); S. Zhang, A. Choromanska and Y. LeCun, Deep
    Learning with Elastic Averaging SGD (2015).

    Args:
        node: a connection or an adapter, for its collectives.
        tau: the number of steps between two exchanges.
        alpha: the strength of an exchange. From 2/(N+1) on, the center swings further with every
            exchange. With a large learning rate, it does so for smaller values, too (see
            `dpwa.policy.elastic`). A warning says so, once for each N. The default is
            min(0.2, 0.9/N), and follows N.

    Raises:
        UserError: `tau` is below 1, or `alpha` is not a finite number above 0.
    """

    def __init__(self, node: Collective, tau: int = 10, alpha: float | None = None) -> None:
        if tau < 1:
            raise UserError(
                f"tau: expected at least 1 step between exchanges (got {tau}) [DPWA-E161]"
            )
        self.tau = tau
        self._given = alpha
        self._steps = UnevenSteps(node, "AllReduceEA")
        self._steps.options = {"tau": tau, "alpha": alpha}
        self._center: Center | None = None
        self._warned_of = 0  # the number of nodes in the last warning
        self._check_alpha()

    @property
    def alpha(self) -> float:
        """The share of the gap to the center by which an exchange moves a node's parameters.

        The default depends on the number of nodes at the last synchronization.
        """
        return self._alpha_of(self._steps.nodes)

    def average_parameters(self, params: Any) -> None:
        """At every `tau`-th call, move the nodes' parameters and the center toward each other.

        Call this method after each training step.

        Raises:
            ParametersError: parameters are not floating-point numbers, or have other shapes or
                dtypes than the center.
        """
        if self._center is None:
            center = Center(FlatFloats(params))
            self._steps.copy_initial(center.values)
            self._center = center
            self._check_alpha()
        if (self._steps.taken + 1) % self.tau == 0:
            self._exchange(FlatFloats(params), self._center, has_ended=False)
        self._steps.taken += 1

    def synchronize_center(self, params: Any) -> None:
        """Wait until all nodes have ended their epochs. Then make all copies of the center equal.

        Until then, this node takes part in the exchanges of the other nodes. At the end, all nodes
        exchange once more. All centers become bit-identical to the center of the node with the most
        steps. A node that has started late has no center yet. It only waits, and gets the center.

        Raises:
            ParametersError: as for `average_parameters`.
        """
        flat = FlatFloats(params)
        center = Center(flat) if self._center is None else self._center
        center.check(flat.layout)
        if self._center is not None and not self._steps.is_left_behind:
            while self._exchange(FlatFloats(params), center, has_ended=True):
                pass
        self._steps.synchronize(center.values)
        self._center = center
        self._check_alpha()

    def synchronize_parameters(self, params: Any) -> None:
        """Wait until all nodes have ended their epochs. Then make parameters and centers equal.

        All nodes get the parameters of the node that has taken the most steps. Among equals, it is
        the node with the lowest rank, and without any step, the first node. This replaces the
        parameters. So a node that waits here takes no part in the exchanges of nodes with steps
        left.

        Raises:
            ParametersError: parameters are not floating-point numbers.
        """
        flat = FlatFloats(params)  # an error must come before other nodes have to wait
        center = Center(flat)
        # In the form of the center, because the peers of a restarted node may call
        # `synchronize_center`.
        self._steps.synchronize(center.values)
        flat.write(center.values)
        self._center = center
        self._check_alpha()

    def copy_center(self, into: Any) -> None:
        """Copy this node's center into tensors or arrays that have the shapes of the parameters.

        Raises:
            UserError: there is no center yet.
            ParametersError: as for `average_parameters`.
        """
        if self._center is None:
            raise UserError("there is no center yet. First call average_parameters [DPWA-E162]")
        flat = FlatFloats(into)
        self._center.check(flat.layout)
        flat.write(self._center.values)

    def _alpha_of(self, nodes: int) -> float:
        return min(MAX_ALPHA, BETA / nodes) if self._given is None else self._given

    def _check_alpha(self) -> None:
        alpha, nodes, who = self.alpha, self._steps.nodes, type(self).__name__
        if not 0.0 < alpha < math.inf:
            raise UserError(f"{who}: expected alpha above 0 (got {alpha:.3g}) [DPWA-E163]")
        warning = elastic_warning(alpha, nodes)
        if warning is not None and nodes != self._warned_of:
            self._warned_of = nodes
            log.warning(
                "%s: %s. With this alpha, the center swings further with every exchange. The "
                "recommended %s [DPWA-W029]",
                who,
                warning,
                self._recommended(nodes),
            )

    def _recommended(self, nodes: int) -> str:
        alpha = min(MAX_ALPHA, BETA / nodes)
        return f"alpha is {alpha:.2g} ({BETA}/N, at most {MAX_ALPHA})"

    def _exchange(self, flat: FlatFloats, center: Center, *, has_ended: bool) -> bool:
        """Do one exchange with all nodes, and return whether any node still has steps left."""
        center.check(flat.layout)
        alpha, xs = self.alpha, flat.copy_values()
        pulls = [alpha * (x - c) for x, c in zip(xs, center.values, strict=True)]
        sums, ended = [pull.copy() for pull in pulls], np.array([has_ended], np.int64)
        nodes = self._steps.reduce([*sums, ended], "sum", is_waiting=has_ended)
        flat.write([x - pull for x, pull in zip(xs, pulls, strict=True)], keeps_mean=True)
        for c, total in zip(center.values, sums, strict=True):
            c += total
        return int(ended[0]) < nodes


class EASGD(AllReduceEA):
    """Synchronous EASGD: elastic averaging after every step, with alpha = beta/N.

    Source: S. Zhang, A. Choromanska and Y. LeCun, Deep Learning with Elastic Averaging SGD (2015).

    Args:
        node: a connection or an adapter, for its collectives.
        beta: the share of the way that the center moves to the mean of the nodes. Values from
            2N/(N+1) on are unstable, and cause a warning.
        tau: the number of steps between two exchanges.
    """

    def __init__(self, node: Collective, beta: float = BETA, tau: int = 1) -> None:
        self.beta = beta
        super().__init__(node, tau)
        self._steps.options["beta"] = beta

    def _alpha_of(self, nodes: int) -> float:
        return self.beta / nodes

    def _recommended(self, nodes: int) -> str:  # noqa: ARG002
        return f"beta is {BETA} (alpha is beta/N)"


class FlatFloats:
    """Nested floating-point values as flat arrays, one array for each dtype.

    The arrays are float32 or float64. Do not change the values during their use. Raises
    `ParametersError` for other dtypes, and for numbers, which cannot change in place.
    """

    def __init__(self, values: Any) -> None:
        self._payload = Payload(values)
        self.layout = self._payload.layout
        for tensor in self.layout.tensors:
            if tensor.dtype not in _NARROW + _WIDE:
                expected = ", ".join(_NARROW + _WIDE)
                raise ParametersError(
                    f"elastic averaging needs a dtype of {expected} (got {tensor}) [DPWA-E164]"
                )
        if self._payload.result() is not values:
            raise ParametersError(
                "elastic averaging cannot change numbers or read-only arrays in place. Pass "
                "tensors or writable arrays [DPWA-E159]"
            )
        self._runs = self.layout.pieces(self._payload.nbytes, self._payload.nbytes)

    def copy_values(self) -> list[Floats]:
        """Return a copy of the values as flat arrays, one array for each dtype."""
        arrays = []
        for run in self._runs:
            data = np.empty(run.nbytes, np.uint8)
            self._payload.copy_into(run.start, run.stop, data)
            arrays.append(_widened(data, run.dtype))
        return arrays

    def write(self, arrays: Sequence[Floats], *, keeps_mean: bool = False) -> None:
        """Write flat arrays into the values. Narrow dtypes are rounded as in `kernels.Rounding`."""
        for run, array in zip(self._runs, arrays, strict=True):
            data = _narrowed(array, run.dtype, keeps_mean=keeps_mean)
            self._payload.assign(run.start, run.stop, data)
        self._payload.result()


class Center:
    """A node's copy of the center."""

    def __init__(self, flat: FlatFloats) -> None:
        self._layout = flat.layout
        self.values = flat.copy_values()

    def check(self, layout: Layout) -> None:
        """Raise `ParametersError` if the parameters and the center differ in shapes or dtypes."""
        descriptions = self._layout.descriptions
        difference = layout.difference(descriptions, len(descriptions))
        if difference is not None:
            raise ParametersError(
                "the parameters and the center have different shapes or dtypes: "
                f"{difference} (here: the parameters, there: the center). Call "
                "synchronize_parameters to replace the center [DPWA-E165]"
            )


def _widened(data: ByteArray, dtype: str) -> Floats:
    if dtype in _WIDE:
        return data.view(dtype)
    return _converted(data, dtype, "float32").view(np.float32)


def _narrowed(values: Floats, dtype: str, *, keeps_mean: bool) -> ByteArray:
    data = values.view(np.uint8)
    if dtype in _WIDE:
        return data
    return _converted(data, "float32", dtype, keeps_mean=keeps_mean)


def _converted(data: ByteArray, dtype: str, wanted: str, *, keeps_mean: bool = False) -> ByteArray:
    # Imports torch, so this is done only for narrow values.
    from dpwa.data.kernels import BY_CHANCE, convert

    size = data.nbytes * 2 if wanted == "float32" else data.nbytes // 2
    converted = np.empty(size, np.uint8)
    convert(data, dtype, converted, wanted, BY_CHANCE if keeps_mean else None)
    return converted
