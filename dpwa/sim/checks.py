"""Scenarios whose values are fine one by one, and that cannot be simulated."""

from __future__ import annotations

from collections.abc import Iterator

from dpwa.config.clashes import Clash
from dpwa.config.endpoints import is_label
from dpwa.config.problems import shown
from dpwa.sim.conditions.draws import share_of_nodes
from dpwa.sim.scenario import ChurnSpec, ComputeSpec, NetworkSpec, Scenario

MOST_WHOLE_NODES = 2000  # with every message: some MB and some 10 ms of a core for each step


def impossible(scenario: Scenario) -> Iterator[Clash]:
    """Find what makes a scenario impossible, endless or useless."""
    yield from _end(scenario)
    yield from _engine(scenario)
    yield from _target(scenario)
    yield from _network(scenario.network, scenario.nodes)
    yield from _compute(scenario.compute, scenario.nodes)
    yield from _churn(scenario.churn, scenario.nodes)
    yield from _without_effect(scenario)


def _end(scenario: Scenario) -> Iterator[Clash]:
    if scenario.rounds is None and scenario.seconds is None:
        expected = "expected `rounds` or `seconds`, as it never ends without"
        target = " (a target may never be reached)" if _targets(scenario) else ""
        yield (), f"{expected}{target}"
    elif scenario.rounds is None and _takes_no_time(scenario.compute):
        expected = "expected a number above 0, or `rounds`: with steps that take no time it may"
        yield ("compute", "step_ms"), f"{expected} never end (got 0)"


def _takes_no_time(compute: ComputeSpec) -> bool:
    return compute.step_ms == 0.0 and not compute.steps_ms


def _engine(scenario: Scenario) -> Iterator[Clash]:
    if scenario.detail == "nodes" and scenario.nodes > MOST_WHOLE_NODES:
        expected = f"expected rules or auto, as more than {MOST_WHOLE_NODES} whole nodes take hours"
        yield ("detail",), f"{expected} (got nodes, for {scenario.nodes} of them)"


def _targets(scenario: Scenario) -> list[str]:
    return [name for name, value in scenario.target if value is not None]


def _target(scenario: Scenario) -> Iterator[Clash]:
    target, task = scenario.target, scenario.task
    if target.accuracy is not None and task != "digits":
        reason = f"as task: {task} has no accuracy, only digits does"
        yield ("target", "accuracy"), f"expected nothing, {reason} (got {target.accuracy:g})"
    if target.loss is not None and task == "consensus":
        reason = "as nothing is trained with task: consensus"
        yield ("target", "loss"), f"expected nothing, {reason} (got {target.loss:g})"
    ratio = target.variance_ratio
    if ratio is not None and ratio >= 1.0 and task == "consensus":
        expected = "expected a number below 1, which is where it begins"
        yield ("target", "variance_ratio"), f"{expected} (got {ratio:g})"


def _network(network: NetworkSpec, nodes: int) -> Iterator[Clash]:
    if nodes > 1 and share_of_nodes(nodes, network.unreachable) >= nodes:
        expected = f"expected a share that leaves one of {nodes} nodes for the others to connect to"
        yield ("network", "unreachable"), f"{expected} (got {network.unreachable:g})"
    if len(network.sites) > nodes:
        expected = f"expected at most {nodes} sites, one for each node"
        yield ("network", "sites"), f"{expected} (got {len(network.sites)})"
    first: dict[str, int] = {}
    for index, site in enumerate(network.sites):
        path = ("network", "sites", index, "name")
        if first.setdefault(site.name, index) != index:
            taken = f"already taken by sites[{first[site.name]}]"
            yield path, f"expected a unique name (got {site.name}, {taken})"
        elif not is_label(site.name):
            expected = "expected 1 to 64 letters, digits, dots, underscores or hyphens"
            yield path, f"{expected} (got {shown(site.name)})"


def _compute(compute: ComputeSpec, nodes: int) -> Iterator[Clash]:
    for index, stragglers in enumerate(compute.stragglers):
        path = ("compute", "stragglers", index)
        if stragglers.nodes is not None and stragglers.nodes > nodes:
            expected = f"expected at most {nodes}, as there are no more nodes"
            yield (*path, "nodes"), f"{expected} (got {stragglers.nodes})"
        elif stragglers.nodes is None and not stragglers.share:
            yield path, "expected how many there are: nodes or share (got neither)"


def _churn(churn: ChurnSpec, nodes: int) -> Iterator[Clash]:
    for index, loss in enumerate(churn.lost):
        if share_of_nodes(nodes, loss.share) >= nodes and churn.return_after_s is None:
            expected = "expected a share that leaves a node, or `return_after_s`"
            yield ("churn", "lost", index, "share"), f"{expected} (got {loss.share:g})"


def _without_effect(scenario: Scenario) -> Iterator[Clash]:
    """Find what would be left out without a word."""
    churn, costs, network = scenario.churn, scenario.costs, scenario.network
    if churn.return_after_s is not None and churn.kill_every_s is None and not churn.lost:
        expected = "expected `kill_every_s` or `lost` beside it, as nobody is killed"
        yield ("churn", "return_after_s"), f"{expected} (got {churn.return_after_s:g})"
    for key in ("publish_ms_per_mb", "merge_ms_per_mb"):
        value = getattr(costs, key)
        if value and scenario.model_mb is None:
            yield ("costs", key), f"expected `model_mb` beside it (got {value:g})"
    is_limited = network.between_sites_mbps is not None
    if is_limited and not network.sites:
        expected = "expected `sites` beside it"
        yield ("network", "between_sites_mbps"), f"{expected} (got {network.between_sites_mbps:g})"
