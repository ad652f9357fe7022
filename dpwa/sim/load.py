"""A scenario file, and what goes before it, to a `RunSpec`, or all mistakes at once.

A scenario has the keys of `Scenario`, the options of its task under the name of that, and every
setting of an ordinary configuration but those about names, addresses and files. `DPWA_...`
variables are for real runs: nothing is read from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpwa.config.clashes import Clash
from dpwa.config.endpoints import is_label
from dpwa.config.graphs import absolute
from dpwa.config.load import Document, config_of, read_document
from dpwa.config.model import Config
from dpwa.config.problems import Place, Problems, joined_all, shown
from dpwa.config.reading import means_off, note_duplicates, read_model
from dpwa.config.schema import OF_REAL_RUNS
from dpwa.config.tree import (
    ARGUMENTS,
    ConfigValue,
    ListNode,
    MapNode,
    Node,
    PythonSource,
    ScalarNode,
    parse_yaml,
    value_at,
)
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
NO_OTHERS = "not allowed here: a scenario has its own nodes, addresses and files"
_MAPPINGS = ("network", "compute", "costs", "churn", "target")
_NOTHING = ("null", "~", "")  # of YAML

ScenarioSource = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]


def load_scenario(source: ScenarioSource, overrides: Mapping[str, object] | None = None) -> RunSpec:
    """Load a scenario.

    Args:
        source: path of a YAML file; or its content as a mapping, or as a list of single-key
            mappings.
        overrides: values that go before those of the source, by key, such as `nodes` or
            `network.latency_ms` or `compute.stragglers.0.slower`; text is read as in a file.

    Raises:
        ConfigError: there are mistakes; `problems` holds all of them, in order of their position,
            each as `file:line:column: key.path: what was expected (got X)`.
    """
    problems = Problems()
    document = read_document(source, problems)
    root = MapNode(document.place, document.settings)
    note_duplicates(root, "", problems)
    for key, value in (overrides or {}).items():
        root = _overridden(root, key, value, problems)
    spec = _ScenarioReading(root, document.folder, problems).spec()
    if spec is None or problems.lines():
        raise ConfigError(problems.lines())
    return spec


def scenario_keys() -> tuple[str, ...]:
    """Return the keys that a scenario has beside those of a configuration."""
    return (*Scenario.model_fields, *TASKS)


@dataclass(frozen=True)
class _ScenarioReading:
    root: MapNode
    folder: Path | None
    problems: Problems

    def spec(self) -> RunSpec | None:
        """Note all problems and return the run, or `None` if there can be none."""
        own = self._part(Scenario.model_fields)
        scenario = read_model(Scenario, own, "", self.problems)
        if scenario:
            scenario = self._with_trace(scenario)
            for path, message in impossible(scenario):
                place = (value_at(self.root, path) or self.root).place
                self.problems.add(place, joined_all(path), message)
        options = {name: self._task_options(name) for name in TASKS}
        for entry in self.root.entries:
            if entry.key in OF_REAL_RUNS:
                self.problems.add(entry.place, entry.key, NO_OTHERS)
            elif entry.key == "transport" and getattr(entry.value, "value", "") == "shm":
                expected = "expected auto or tcp, as each simulated node is on a host of its own"
                self.problems.add(entry.value.place, "transport", f"{expected} (got shm)")
        config = self._config(scenario)
        chosen = options.get(scenario.task) if scenario else None
        if scenario is None or config is None or chosen is None:
            return None
        return _with_groups(RunSpec(scenario, config, chosen))

    def _part(self, keys: Collection[str]) -> MapNode:
        """Return these keys; a mapping without anything in it is as one that is not there."""
        found = (entry for entry in self.root.entries if entry.key in keys)
        kept = (e for e in found if not (e.key in _MAPPINGS and _is_empty(e.value)))
        return MapNode(self.root.place, tuple(kept))

    def _task_options(self, name: str) -> StrictModel | None:
        found = value_at(self.root, [name])
        if found is None or means_off(found):
            found = MapNode(self.root.place, ())
        kind: Any = TASKS[name]
        model: type[StrictModel] = kind.options
        return read_model(model, found, name, self.problems)

    def _config(self, scenario: Scenario | None) -> Config | None:
        """Return the ordinary settings, with nodes; `None` if some are wrong."""
        sized = scenario or read_model(Scenario, self._part({"nodes"}), "", Problems())
        others = {*scenario_keys(), *OF_REAL_RUNS}
        if sized is None:  # then links may be between any nodes, and all topologies fit
            others.add("links")
        settings = tuple(entry for entry in self.root.entries if entry.key not in others)
        made = (*settings, *self._nodes(sized))
        document = Document(self.root.place, made, self.folder)
        return config_of(document, self.problems, {}, beside=scenario_keys())

    def _nodes(self, scenario: Scenario | None) -> Iterator[ConfigValue]:
        """Yield what the scenario decides: nodes with addresses of their own, and the seed."""
        place = (value_at(self.root, ["nodes"]) or self.root).place
        count = scenario.nodes if scenario else 0
        names = range(count)
        nodes: tuple[Node, ...] = tuple(
            _mapping(place, name=node_name(i), host=host_of(i), port=PORT) for i in names
        )
        yield ConfigValue("nodes", place, ListNode(place, nodes))
        if scenario:
            yield ConfigValue("seed", place, ScalarNode(place, scenario.seed, str(scenario.seed)))
        if scenario and scenario.membership == "open":
            first = f"tcp://{host_of(0)}:{PORT}"
            item = ScalarNode(place, first, first, quoted=True)
            yield ConfigValue("join", place, ListNode(place, (item,)))

    def _with_trace(self, scenario: Scenario) -> Scenario:
        """Return a scenario whose trace is found from any working directory."""
        if not scenario.churn.trace:
            return scenario
        trace = absolute(self.folder, scenario.churn.trace)
        try:
            read_trace(trace, scenario.nodes)
        except ConfigError as error:
            for line in str(error).splitlines():
                self.problems.add_line(line)
        churn = scenario.churn.model_copy(update={"trace": trace})
        return scenario.model_copy(update={"churn": churn})


def _is_empty(value: Node) -> bool:
    return isinstance(value, ScalarNode) and value.value is None


def _with_groups(spec: RunSpec) -> RunSpec:
    """Return a run in which the nodes of a site are a group, for algorithms that have them."""
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


def _mapping(place: Place, **values: object) -> MapNode:
    return MapNode(
        place,
        tuple(
            ConfigValue(key, place, ScalarNode(place, value, str(value), isinstance(value, str)))
            for key, value in values.items()
        ),
    )


def _overridden(root: MapNode, key: str, value: object, problems: Problems) -> MapNode:
    place = Place(ARGUMENTS)
    first, *rest = key.split(".")
    before = root.find(first)
    try:
        below = before.value if before else ScalarNode(place, None, "")
        changed = _with(below, rest, _node(value, place))
    except LookupError as error:
        problems.add(place, key, str(error.args[0]))
    except ConfigError as error:
        problems.add(place, key, str(error).splitlines()[0].partition(": ")[2])
    else:
        return _set(root, ConfigValue(first, before.place if before else place, changed))
    return root


def _set(node: MapNode, changed: ConfigValue) -> MapNode:
    kept = tuple(entry for entry in node.entries if entry.key != changed.key)
    return MapNode(node.place, (*kept, changed))


def _node(value: object, place: Place) -> Node:
    if not isinstance(value, str):
        return PythonSource(ARGUMENTS).node(value)
    if value[:1] in ("[", "{"):
        return parse_yaml(value, ARGUMENTS)
    return ScalarNode(place, None if value in _NOTHING else value, shown(value))


def _with(node: Node, steps: Sequence[str], value: Node) -> Node:
    """Return a tree with another value at the end of these steps."""
    if not steps:
        return value
    step, *rest = steps
    if isinstance(node, ListNode):
        index = int(step) if step.isdecimal() else -1
        if not 0 <= index < len(node.items):
            raise LookupError(f"expected the number of an item, below {len(node.items)}")
        items = (
            *node.items[:index],
            _with(node.items[index], rest, value),
            *node.items[index + 1 :],
        )
        return ListNode(node.place, items)
    if not isinstance(node, MapNode):  # such as `constant: 0`, or what is not there
        node = MapNode(value.place, ())
    before = node.find(step)
    below = _with(before.value if before else ScalarNode(value.place, None, ""), rest, value)
    return _set(node, ConfigValue(step, before.place if before else value.place, below))


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
    is_asynchronous = scenario.schedule == "asynchronous"
    if scenario.detail == "arrays" and is_asynchronous:
        expected = "expected lockstep beside detail: arrays, which take rounds together"
        yield ("schedule",), f"{expected} (got asynchronous)"
    elif (scenario.detail == "nodes" or is_asynchronous) and scenario.nodes > MAX_WHOLE_NODES:
        expected = f"expected at most {MAX_WHOLE_NODES} whole nodes, as more take hours"
        more = "of more, only plain gossip can be simulated, with schedule: lockstep"
        yield ("nodes",), f"{expected}; {more} (got {scenario.nodes})"


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


FOLDER = Path(__file__).parent / "presets"


def preset_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def scenario_file(name: str) -> Path:
    """Return the file of a scenario that comes with dpwa, or the one of this path.

    Raises:
        UserError: there is neither.
    """
    names = preset_names()
    if name in names:
        return FOLDER / f"{name}.yaml"
    path = Path(name)
    if path.is_file():
        return path
    from dpwa.config.problems import shown, suggestion

    known, hint = ", ".join(names), suggestion(name, names)
    raise UserError(
        f"SCENARIO: expected a file, or one of {known} (got {shown(name)}){hint} [DPWA-E288]"
    )
