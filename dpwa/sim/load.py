"""Read a scenario file and overrides into a `RunSpec`, or report all mistakes at once.

A scenario has the keys of `Scenario`, the options of its task under the name of the task, and every
setting of an ordinary configuration except those about names, addresses and files. `DPWA_...`
variables are for real runs, so a scenario ignores the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpwa.config.clashes import Clash
from dpwa.config.document import ARGUMENTS, Document, Scalar, compose
from dpwa.config.endpoints import is_label
from dpwa.config.graphs import absolute
from dpwa.config.load import config_of
from dpwa.config.model import Config
from dpwa.config.problems import Loc, Place, shown
from dpwa.config.schema import OF_REAL_RUNS
from dpwa.config.validation import means_off, read_model
from dpwa.errors import ConfigError, UserError
from dpwa.sim.churn import read_trace
from dpwa.sim.conditions import Conditions
from dpwa.sim.draws import share_of_nodes
from dpwa.sim.scenario import (
    MAX_WHOLE_NODES,
    ChurnSpec,
    ComputeSpec,
    NetworkSpec,
    RunSpec,
    Scenario,
    node_name,
)
from dpwa.sim.tasks import TASKS
from dpwa.types import StrictModel

PORT = 7000
NO_OTHERS = "not allowed here, because a scenario has its own nodes, addresses and files"
_MAPPINGS = ("network", "compute", "costs", "churn", "target")
_NOTHING = ("null", "~", "")  # values of YAML that mean null

ScenarioSource = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]


def load_scenario(source: ScenarioSource, overrides: Mapping[str, object] | None = None) -> RunSpec:
    """Load a scenario.

    Args:
        source: path of a YAML file, or its content as a mapping, or as a list of single-key
            mappings.
        overrides: values that replace those of the source, by key, such as `nodes` or
            `network.latency_ms` or `compute.stragglers.0.slower`. Text is read as in a file.

    Raises:
        ConfigError: there are mistakes. `problems` holds all of them, in order of their position,
            each as `file:line:column: key.path: what was expected (got X)`.
    """
    document = Document()
    document.read(source)
    for key, value in (overrides or {}).items():
        _override(document, key, value)
    spec = _run_spec(document)
    if spec is None or document.problems.lines():
        raise ConfigError(document.problems.lines())
    return spec


def scenario_keys() -> tuple[str, ...]:
    """Return the keys that a scenario has in addition to those of a configuration."""
    return (*Scenario.model_fields, *TASKS)


def _run_spec(document: Document) -> RunSpec | None:
    """Return the run that a document describes, or note its mistakes and return `None`."""
    values = document.values
    for key in _MAPPINGS:  # an empty key counts as left out
        if values.get(key, 0) is None:
            del values[key]
    scenario = read_model(Scenario, document, keys=Scenario.model_fields)
    if scenario:
        scenario = _with_trace(scenario, document)
        for loc, message in impossible(scenario):
            document.note(loc, message)
    options = {name: _task_options(name, document) for name in TASKS}
    for key in values.keys() & OF_REAL_RUNS:
        document.note_key((key,), NO_OTHERS)
    if values.get("transport") == "shm":
        expected = "expected auto or tcp, because each simulated node has its own host"
        document.note(("transport",), f"{expected} (got shm)")
    config = _config(scenario, document)
    chosen = options.get(scenario.task) if scenario else None
    if scenario is None or config is None or chosen is None:
        return None
    return _with_groups(RunSpec(scenario, config, chosen))


def _task_options(name: str, document: Document) -> StrictModel | None:
    kind: Any = TASKS[name]
    if means_off(document.values.get(name)):
        document.imply(name, {})
    model: type[StrictModel] = kind.options
    return read_model(model, document, (name,))


def _config(scenario: Scenario | None, document: Document) -> Config | None:
    """Return the configuration of the simulated nodes, or `None` if some settings are wrong."""
    values, others = document.values, {*scenario_keys(), *OF_REAL_RUNS}
    sized = scenario or _sized(values.get("nodes"))
    if sized is None:  # without a number of nodes, links and topologies cannot be checked
        others.add("links")
    for key in others & values.keys():
        del values[key]
    names = range(sized.nodes if sized else 0)
    nodes = [{"name": node_name(i), "host": host_of(i), "port": PORT} for i in names]
    document.imply("nodes", nodes, by="nodes")
    if sized:
        document.imply("seed", sized.seed)
    if sized and sized.membership == "open":
        document.imply("join", [f"tcp://{host_of(0)}:{PORT}"], by="nodes")
    return config_of(document, {}, beside=scenario_keys())


def _sized(nodes: object) -> Scenario | None:
    """Return a scenario with this number of nodes, or `None` if the number is invalid."""
    document = Document()
    document.values["nodes"] = nodes
    return read_model(Scenario, document)


def _with_trace(scenario: Scenario, document: Document) -> Scenario:
    """Return a scenario whose trace has an absolute path."""
    if not scenario.churn.trace:
        return scenario
    trace = absolute(document.folder, scenario.churn.trace)
    try:
        read_trace(trace, scenario.nodes)
    except ConfigError as error:
        document.problems.add_lines(str(error).splitlines())
    churn = scenario.churn.model_copy(update={"trace": trace})
    return scenario.model_copy(update={"churn": churn})


def _with_groups(spec: RunSpec) -> RunSpec:
    """Return the run with each node's site as its group, for algorithms with groups."""
    if not spec.scenario.network.sites:
        return spec
    conditions = Conditions(spec)
    nodes = tuple(
        node.model_copy(update={"group": conditions.sites[conditions.site(index)]})
        for index, node in enumerate(spec.config.nodes)
    )
    return replace(spec, config=spec.config.model_copy(update={"nodes": nodes}))


def host_of(index: int) -> str:
    """Return the address of a simulated node: 10.0.0.1 for the first."""
    number = index + 1
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def _override(document: Document, key: str, value: object) -> None:
    """Set a value in the document at a key path such as `compute.stragglers.0.slower`."""
    loc: Loc = ()
    for step in key.split("."):
        items = document.at(loc)
        if not isinstance(items, list):
            loc = (*loc, step)
        elif step.isdecimal() and int(step) < len(items):
            loc = (*loc, int(step))
        else:
            expected = f"expected the number of an item, below {len(items)}"
            document.problems.add(Place(ARGUMENTS), (key,), expected)
            return
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            value = compose(value, ARGUMENTS)
        except ConfigError as error:
            document.problems.add(Place(ARGUMENTS), (key,), str(error).partition(": ")[2])
            return
    elif isinstance(value, str):
        value = None if value in _NOTHING else Scalar(value)
    document.write(loc, value)


def impossible(scenario: Scenario) -> Iterator[Clash]:
    """Yield the mistakes of a scenario that is impossible, endless or without effect."""
    yield from _end(scenario)
    yield from _engine(scenario)
    yield from _target(scenario)
    yield from _network(scenario.network, scenario.nodes)
    yield from _compute(scenario.compute, scenario.nodes)
    yield from _churn(scenario.churn, scenario.nodes)
    yield from _without_effect(scenario)


def _end(scenario: Scenario) -> Iterator[Clash]:
    if scenario.rounds is None and scenario.seconds is None:
        expected = "expected `rounds` or `seconds`, because the run never ends without them"
        target = " (the run may never reach its target)" if _targets(scenario) else ""
        yield (), f"{expected}{target}"
    elif scenario.rounds is None and _takes_no_time(scenario.compute):
        expected = "expected a number above 0, or `rounds`, because a run whose steps take no"
        yield ("compute", "step_ms"), f"{expected} time may never end (got 0)"


def _takes_no_time(compute: ComputeSpec) -> bool:
    return compute.step_ms == 0.0 and not compute.steps_ms


def _engine(scenario: Scenario) -> Iterator[Clash]:
    is_asynchronous = scenario.schedule == "asynchronous"
    if scenario.detail == "arrays" and is_asynchronous:
        expected = "expected lockstep, because with detail: arrays all nodes do each round together"
        yield ("schedule",), f"{expected} (got asynchronous)"
    elif (scenario.detail == "nodes" or is_asynchronous) and scenario.nodes > MAX_WHOLE_NODES:
        expected = f"expected at most {MAX_WHOLE_NODES} whole nodes, because more take hours"
        more = "For more nodes, use plain gossip with schedule: lockstep"
        yield ("nodes",), f"{expected}. {more} (got {scenario.nodes})"


def _targets(scenario: Scenario) -> list[str]:
    return [name for name, value in scenario.target if value is not None]


def _target(scenario: Scenario) -> Iterator[Clash]:
    target, task = scenario.target, scenario.task
    if target.accuracy is not None and task != "digits":
        reason = f"because only task: digits has an accuracy, and task: {task} has none"
        yield ("target", "accuracy"), f"expected nothing, {reason} (got {target.accuracy:g})"
    if target.loss is not None and task == "consensus":
        reason = "because nothing is trained with task: consensus"
        yield ("target", "loss"), f"expected nothing, {reason} (got {target.loss:g})"
    ratio = target.variance_ratio
    if ratio is not None and ratio >= 1.0 and task == "consensus":
        expected = "expected a number below 1, because the run starts at 1"
        yield ("target", "variance_ratio"), f"{expected} (got {ratio:g})"


def _network(network: NetworkSpec, nodes: int) -> Iterator[Clash]:
    if nodes > 1 and share_of_nodes(nodes, network.unreachable) >= nodes:
        expected = f"expected a share that leaves one of {nodes} nodes reachable for the others"
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
            expected = f"expected at most {nodes}, the number of all nodes"
            yield (*path, "nodes"), f"{expected} (got {stragglers.nodes})"
        elif stragglers.nodes is None and not stragglers.share:
            yield path, "expected `nodes` or `share` of the slow nodes (got neither)"


def _churn(churn: ChurnSpec, nodes: int) -> Iterator[Clash]:
    for index, loss in enumerate(churn.lost):
        if share_of_nodes(nodes, loss.share) >= nodes and churn.return_after_s is None:
            expected = "expected a share that leaves one node alive, or `return_after_s`"
            yield ("churn", "lost", index, "share"), f"{expected} (got {loss.share:g})"


def _without_effect(scenario: Scenario) -> Iterator[Clash]:
    """Yield a mistake for each key that has no effect without another key."""
    churn, costs, network = scenario.churn, scenario.costs, scenario.network
    if churn.return_after_s is not None and churn.kill_every_s is None and not churn.lost:
        expected = "expected `kill_every_s` or `lost` as well, because no node is killed"
        yield ("churn", "return_after_s"), f"{expected} (got {churn.return_after_s:g})"
    for key in ("publish_ms_per_mb", "merge_ms_per_mb"):
        value = getattr(costs, key)
        if value and scenario.model_mb is None:
            yield ("costs", key), f"expected `model_mb` as well (got {value:g})"
    is_limited = network.between_sites_mbps is not None
    if is_limited and not network.sites:
        expected = "expected `sites` as well"
        yield ("network", "between_sites_mbps"), f"{expected} (got {network.between_sites_mbps:g})"


FOLDER = Path(__file__).parent / "presets"


def preset_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def scenario_file(name: str) -> Path:
    """Return the file of a scenario that comes with dpwa, or the scenario file at a path.

    Raises:
        UserError: there is neither.
    """
    names = preset_names()
    if name in names:
        return FOLDER / f"{name}.yaml"
    path = Path(name)
    if path.is_file():
        return path
    from dpwa.config.problems import suggestion

    known, hint = ", ".join(names), suggestion(name, names)
    raise UserError(
        f"SCENARIO: expected a file, or one of {known} (got {shown(name)}){hint} [DPWA-E288]"
    )
