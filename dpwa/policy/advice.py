"""Settings that can work and are known to work badly: what to tell whoever starts a node.

What cannot work at all is refused by the configuration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpwa.policy.mixing import (
    is_connected,
    period_adjacency,
    pull_matrix,
    stationary_weights,
)
from dpwa.policy.outer import nesterov_limit, nesterov_radius, noloco_limit, noloco_radius
from dpwa.policy.topology import Topology
from dpwa.types import StrictModel

NEAR_LIMIT = 0.9  # of the limit of an outer step
LEAST_KEPT = 0.5  # of the distance to a leader, from one update to the next
MOST_WEIGHT = 1.5  # of a node in what all agree on, times its fair share
MOST_NODES = 512  # weights of more take seconds to work out
GOOD_PULL = 0.1  # what LSGD starts from
GOOD_WINDOW = 50
GOOD_PROBABILITY = 0.4
FEW_NODES = 4  # whose periods of LSGD may be as short as anybody likes


@dataclass(frozen=True)
class Plan:
    algorithm: str
    algorithm_options: Any
    interpolation: str
    interpolation_options: Any
    topology: Topology  # with its edges, if they are from a file
    topology_options: StrictModel
    names: Sequence[str]  # of all nodes, in the order of their positions
    group_of: Sequence[str] = ()  # of each node, empty for none; or nothing, if there are no groups
    fetch_probability: float = 1.0
    loss_window: int = GOOD_WINDOW

    @property
    def groups(self) -> int:
        return max(1, len(set(self.group_of)))

    @property
    def nodes(self) -> int:
        return len(self.names)

    @property
    def follows_rule(self) -> bool:
        """Whether the interpolation rule decides how far nodes move."""
        return self.algorithm == "gossip"


def advice(plan: Plan) -> list[str]:
    """Return one warning for everything that is known to work badly."""
    if plan.nodes < 2:
        return []
    return [
        *_lonely(plan),
        *_collapse(plan),
        *_too_often(plan),
        *_noise_decides(plan),
        *_nothing_moves(plan),
        *_near_limit(plan),
        *_biased_mean(plan),
        *_no_exact_mean(plan),
    ]


def lsgd_kept(options: Any, nodes: int, groups: int) -> float:
    """Return what is left, on average, of a worker's distance to the leaders after an update.

    With periods L and G in updates of all N workers, a worker jumps to the global leader
    g = min(1, N/G) times an update of its own, and to the local one l = min(1, N/L) times; so

        (1 - c2)^g * (1 - g*p2) * (1 - c1)^l * (1 - l*p1)

    where the local part is there only if there are several groups and L < G. Both leaders are taken
    to be at one place.
    """
    o = options
    local_period, global_period = o.periods(nodes)
    jumps, local_jumps = min(1.0, nodes / global_period), min(1.0, nodes / local_period)
    kept: float = (1.0 - o.c2) ** jumps * (1.0 - jumps * o.p2)
    if groups > 1 and local_period < global_period:
        kept *= (1.0 - o.c1) ** local_jumps * (1.0 - local_jumps * o.p1)
    return kept


def _too_often(plan: Plan) -> Iterator[str]:
    """Periods of LSGD count the updates of all nodes: the more nodes, the shorter they are."""
    if plan.algorithm != "lsgd":
        return
    _, period = plan.algorithm_options.periods(plan.nodes)
    local, good = type(plan.algorithm_options)().periods(plan.nodes)
    if period <= plan.nodes and plan.nodes > FEW_NODES:
        yield (
            f"lsgd.global_period {period} counts the updates of all {plan.nodes} nodes together: "
            "every node jumps to the leader at each of its own; recommended is "
            f"local_period {local} and global_period {good}, which is what you get if you set none"
            " [DPWA-W052]"
        )


def _collapse(plan: Plan) -> Iterator[str]:
    """Nodes that lose most of their distance with every update explore nothing of their own.

    With independent steps of length s, d' = k d + s keeps them s / sqrt(1 - k^2) from the leader.
    """
    options = plan.algorithm_options
    if plan.algorithm == "lsgd":
        kept = lsgd_kept(options, plan.nodes, plan.groups)
        pulls = dict.fromkeys(("c1", "c2", "p1", "p2"), GOOD_PULL)
        good = lsgd_kept(options.model_copy(update=pulls), plan.nodes, plan.groups)
        what = f"lsgd with c1 {options.c1:g}, c2 {options.c2:g}, p1 {options.p1:g}, "
        what += f"p2 {options.p2:g}"
    elif plan.follows_rule and plan.interpolation == "leader":
        strength = plan.interpolation_options.strength
        kept = 1.0 - plan.fetch_probability * strength
        good = 1.0 - plan.fetch_probability * GOOD_PULL
        what = f"leader.strength {strength:g}"
    else:
        return
    if kept < LEAST_KEPT:
        yield (
            f"{what}: a node keeps {kept:.0%} of its distance to the leader from one update to the "
            f"next, and so stays about {_reach(kept):.2g} steps from it; recommended is "
            f"{GOOD_PULL:g}, which keeps {good:.0%} and makes it {_reach(good):.2g} steps"
            " [DPWA-W053]"
        )


def _reach(kept: float) -> float:
    return 1.0 / math.sqrt(1.0 - kept**2)


def _noise_decides(plan: Plan) -> Iterator[str]:
    by_rule = plan.follows_rule and plan.interpolation == "leader"
    if plan.loss_window == 1 and (by_rule or plan.algorithm == "lsgd"):
        yield (
            "loss_window 1: the noise of a single batch decides who leads, unless leader_loss is "
            f"that of a whole validation batch; recommended is {GOOD_WINDOW}, with a "
            f"{GOOD_WINDOW**0.5:.0f}th of the noise [DPWA-W054]"
        )


def _lonely(plan: Plan) -> Iterator[str]:
    """Warn of groups of one beside larger ones: as a rule a name that is misspelt or left out."""
    sizes = Counter(plan.group_of)
    if plan.algorithm != "lsgd" or max(sizes.values(), default=1) < 2:
        return
    for group, size in sizes.items():
        if size == 1:
            node = plan.names[list(plan.group_of).index(group)]
            of_what = f"the only one of group {group}" if group else "the only one without a group"
            yield (
                f"{node} is {of_what}, and other groups have up to {max(sizes.values())} nodes"
                " [DPWA-W055]"
            )


def _nothing_moves(plan: Plan) -> Iterator[str]:
    if plan.algorithm == "push_sum" and plan.algorithm_options.probability == 0.0:
        yield (
            "push_sum.probability 0: nobody ever asks for anything, so each node trains alone; "
            f"recommended is {GOOD_PROBABILITY:g} [DPWA-W056]"
        )


def _near_limit(plan: Plan) -> Iterator[str]:
    """Near the limit of an outer step the nodes come together slowly; half of it is far better."""
    o = plan.algorithm_options
    if plan.algorithm == "noloco":
        what, step, limit = "noloco.gamma", o.gamma, noloco_limit(o.alpha)
        radius, good = noloco_radius(o.alpha, step), noloco_radius(o.alpha, limit / 2)
        where = f"alpha {o.alpha:g}"
    elif plan.algorithm == "local":
        what, step, limit = "local.lr", o.lr, nesterov_limit(o.momentum)
        radius, good = nesterov_radius(step, o.momentum), nesterov_radius(limit / 2, o.momentum)
        where = f"momentum {o.momentum:g}"
    else:
        return
    if step > NEAR_LIMIT * limit:
        yield (
            f"{what} {step:g} is {step / limit:.0%} of the limit {limit:.3g} for {where}: an outer "
            f"step leaves {radius:.0%} of the disagreement of the nodes; recommended is "
            f"{limit / 2:.2g}, which leaves {good:.0%} [DPWA-W057]"
        )


def _biased_mean(plan: Plan) -> Iterator[str]:
    """Pulls keep a mean that is weighted by the topology.

    The weights p with p W = p are those of W = A/d: the factor, or the size of an outer step, does
    not matter, as W(f) - I = f (W - I).
    """
    by_constant = plan.follows_rule and plan.interpolation == "constant"
    pulls = by_constant or plan.algorithm in ("noloco", "local", "elastic")
    everybody = plan.topology.name in ("random", "full")
    if not pulls or everybody or plan.nodes > MOST_NODES or _rounds(plan) > 1:
        return
    edges = period_adjacency(plan.topology, plan.topology_options, plan.nodes)
    if not is_connected(edges):
        return
    weights = stationary_weights(pull_matrix(edges, 0.5))
    heaviest = int(np.argmax(np.round(weights, 12)))
    weight, fair = float(weights[heaviest]), 1.0 / plan.nodes
    if weight > (MOST_WEIGHT - 1e-9) * fair:
        yield (
            f"topology {plan.topology.name}: {plan.names[heaviest]} counts for {weight:.1%} of "
            f"what all {plan.nodes} nodes agree on, in place of {fair:.1%}; recommended is "
            "algorithm push_sum or symmetric, which keep the plain mean [DPWA-W058]"
        )


def _no_exact_mean(plan: Plan) -> Iterator[str]:
    """A period of the one-peer exponential graph is exact only for powers of two."""
    is_power = plan.nodes & (plan.nodes - 1) == 0
    if plan.topology.name != "one_peer_exponential" or is_power or not plan.follows_rule:
        return
    below = 1 << (plan.nodes.bit_length() - 1)
    yield (
        f"topology one_peer_exponential with {plan.nodes} nodes: {_rounds(plan)} rounds do not "
        f"give the exact mean; recommended are {below} or {2 * below} nodes, with which they do at "
        "factor 0.5 [DPWA-W059]"
    )


def _rounds(plan: Plan) -> int:
    return plan.topology.period(plan.topology_options, plan.nodes)
