"""Loading: any source and the environment become one `Config`, or one error with all mistakes.

Arguments override variables (DPWA_TIMEOUT_MS=500, DPWA_CONSTANT__VALUE=0.3), which override the
document.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpwa.algorithms import algorithm, algorithm_names
from dpwa.config.clashes import Plain, clashes
from dpwa.config.graphs import absolute, found_from, require_connected, topology_of
from dpwa.config.methods import KINDS, Kind, changed_options, method_names
from dpwa.config.model import CLASH, UNKNOWN_CODEC, Config, NodeConfig, is_module_name
from dpwa.config.problems import (
    REMOVED,
    Place,
    Problems,
    joined,
    joined_all,
    listing,
    suggestion,
)
from dpwa.config.reading import (
    means_off,
    note_duplicates,
    plain_values,
    read_model,
    unknown_key,
    validated,
)
from dpwa.config.schema import LISTS, PREFIX, options_model, setting_names, variables
from dpwa.config.tree import (
    ARGUMENTS,
    BrokenNode,
    ConfigValue,
    ListNode,
    MapNode,
    Node,
    PythonSource,
    ScalarNode,
    parse_yaml,
    read_text,
    scalar,
    value_at,
)
from dpwa.errors import ConfigError, UserError
from dpwa.lifecycle import ENDING
from dpwa.policy.topology import FileOptions
from dpwa.types import StrictModel

RESERVED = (
    "DPWA_NAME",
    "DPWA_CONFIG",
    "DPWA_RANK",
    "DPWA_WORLD_SIZE",
    "DPWA_RUN_ID",
    "DPWA_FAULTS",
    ENDING,
)
_CONNECTED = ("random", "full")  # by definition; 4096 nodes take seconds to look at

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any] | Config


def load_config(
    source: ConfigSource,
    *,
    beneath: ConfigSource | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Load a configuration.

    Args:
        source: path of a YAML file; or its content as a mapping, or as a list of single-key
            mappings; or a loaded `Config`, which is returned as it is.
        beneath: another source, for the settings that the first one does not have.
        overrides: settings that go before those of the sources and of the environment.
        environ: variables that override settings; the environment of the process by default.

    Raises:
        ConfigError: the configuration has mistakes; `problems` holds all of them, in order of their
            position, each as `file:line:column: key.path: what was expected (got X)`.
    """
    if isinstance(source, Config):
        # The environment had its say when it was loaded.
        return (
            load_config(source.to_mapping(), overrides=overrides, environ={})
            if overrides
            else source
        )
    environment = os.environ if environ is None else environ
    problems = Problems()
    try:
        document = read_document(source, problems)
        if beneath is not None:
            document = _laid_over(document, read_document(beneath, problems))
    except ConfigError as error:
        # Beyond reading; what is wrong with the environment can still be told.
        for _ in _from_environment(environment, problems, rules_known=False):
            pass
        raise ConfigError([*str(error).splitlines(), *problems.lines()]) from None
    config = config_of(document, problems, environment, overrides)
    if config is None or problems.lines():
        raise ConfigError(problems.lines())
    return config


def peer_config(name: str, host: str, port: int) -> NodeConfig:
    """Check the name and address of a peer that joins at run time.

    Raises:
        UserError: one of them is impossible; the message names each that is.
    """
    node = {"name": name, "host": host, "port": port}
    try:
        return load_config({"nodes": [node]}, environ={}).nodes[0]
    except ConfigError as error:
        problems = [problem.rpartition("nodes[0].")[2] for problem in error.problems]
        raise UserError(f"peer {name!r}: {'; '.join(problems)} [DPWA-E013]") from None


def settings_in(source: ConfigSource) -> frozenset[str]:
    if isinstance(source, Config):
        return frozenset(source.to_mapping())
    return frozenset(entry.key for entry in read_document(source, Problems()).settings)


@dataclass(frozen=True)
class Document:
    """The settings of a source in the order written."""

    place: Place  # of the whole
    settings: tuple[ConfigValue, ...]
    folder: Path | None  # of the plugins and of relative paths; None: the working directory
    is_list: bool = False  # as in 2017


def read_document(source: object, problems: Problems) -> Document:
    """Read a path, a mapping, or a list of single-key mappings.

    Raises `ConfigError` if it cannot be read at all.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        root = parse_yaml(read_text(path), path)
        folder = Path(path).parent
    else:
        root, folder = PythonSource().node(source), None
    settings = _settings(root, problems)
    return Document(root.place, settings, folder, isinstance(root, ListNode))


def _settings(root: Node, problems: Problems) -> tuple[ConfigValue, ...]:
    if isinstance(root, MapNode):
        return root.entries
    if not isinstance(root, ListNode):
        expected = "expected a mapping, or a list of single-key mappings"
        message = root.message if isinstance(root, BrokenNode) else f"{expected} (got {root.shown})"
        whole = Problems()
        whole.add(root.place, "", message)
        raise ConfigError(whole.lines())
    entries: list[ConfigValue] = []
    for index, item in enumerate(root.items):
        found = item.entries if isinstance(item, MapNode) else ()
        if isinstance(item, BrokenNode):
            problems.add(item.place, joined("", index), item.message)
        elif len(found) != 1:
            got = f"{len(found)} keys" if isinstance(item, MapNode) else item.shown
            message = f"expected a single `key: value` (got {got})"
            problems.add(item.place, joined("", index), message)
        entries += found
    return tuple(entries)


def _laid_over(document: Document, beneath: Document) -> Document:
    """Add the settings of `beneath` that `document` does not have."""
    own = {entry.key for entry in document.settings}
    others = tuple(entry for entry in beneath.settings if entry.key not in own)
    folder = beneath.folder if document.folder is None else document.folder
    return Document(document.place, (*document.settings, *others), folder, document.is_list)


def config_of(
    document: Document,
    problems: Problems,
    environ: Mapping[str, str],
    overrides: Mapping[str, Any] | None = None,
    *,
    beside: Iterable[str] = (),
) -> Config | None:
    """Return the configuration of a document, or `None` after noting what is wrong.

    `beside` has other keys allowed in the same file, to suggest for misspelt ones.
    """
    loading = _Loading(document, problems)
    complete = loading.collect(environ, overrides or {})
    loading.note_unknown_keys(beside)
    options = loading.options()
    config = loading.config(options, codecs_known=complete)
    if config is None or problems.lines():
        return None
    found: dict[str, object] = {"options": changed_options(options)}
    if config.security != "none":
        found["keys"] = absolute(document.folder, config.keys)
    if config.checkpoint.dir:
        folder = absolute(document.folder, config.checkpoint.dir)
        found["checkpoint"] = config.checkpoint.model_copy(update={"dir": folder})
    for key in ("state_dir", "run_log"):
        if folder := getattr(config, key):
            found[key] = absolute(document.folder, folder)
    return config.model_copy(update=found)


class _Loading:
    """The steps from a document to a `Config`."""

    def __init__(self, document: Document, problems: Problems) -> None:
        self._document = document
        self._problems = problems
        self._entries: dict[str, ConfigValue] = {}

    def collect(self, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> bool:
        """Collect the settings of all sources; tell whether all plugins could be imported."""
        settings = self._document.settings
        note_duplicates(MapNode(self._document.place, settings), "", self._problems)
        for entry in settings:
            self._entries.setdefault(entry.key, entry)
        argued = PythonSource(ARGUMENTS).node(overrides)
        arguments = {e.key: e for e in argued.entries} if isinstance(argued, MapNode) else {}
        self._entries.update({k: e for k, e in arguments.items() if k == "plugins"})
        complete = self._plugins(None if "plugins" in arguments else self._document.folder)
        for path, value in _from_environment(environ, self._problems, rules_known=complete):
            self._override(path, value)
        self._entries.update(arguments)
        chosen = self._text("algorithm") or "gossip"
        has_rule = chosen in algorithm_names() and algorithm(chosen).uses_rule
        if self._document.is_list and has_rule:  # its scripts rely on the rule that there was
            place, merge = self._document.place, "interpolate"
            written = ConfigValue("merge", place, ScalarNode(place, merge, merge))
            self._entries.setdefault("merge", written)
        if not complete:
            self._forgive_methods()
        join = self._entries.get("join")
        if join and isinstance(join.value, ListNode) and "nodes" not in self._entries:
            self._entries["nodes"] = ConfigValue("nodes", join.place, ListNode(join.place, ()))
        return complete

    def _plugins(self, folder: Path | None) -> bool:
        entry = self._entries.get("plugins")
        complete = entry is None or _import_plugins(entry.value, folder, self._problems)
        place = entry.value.place if entry else self._document.place
        for name, first, second in _taken_twice():
            expected = "expected methods with names of their own"
            message = f"{expected} (got {name}, used by both {first} and {second}) [DPWA-E216]"
            self._problems.add(place, "plugins", message)
        return complete

    def _override(self, path: tuple[str, ...], value: ScalarNode) -> None:
        key, *option = path
        before = self._entries.get(key)
        if option and before is None:
            before = ConfigValue(key, value.place, ScalarNode(value.place, None, ""))
        if option and before:
            options = _with_option(before.value, ConfigValue(option[0], value.place, value))
            self._entries[key] = ConfigValue(key, before.place, options)
        else:
            self._entries[key] = ConfigValue(key, value.place, value)

    def _forgive_methods(self) -> None:
        """Drop unknown methods: a plugin that cannot be imported may have them."""
        for kind in KINDS:
            name = self._text(kind.setting)
            if name and name not in kind.names() and kind.setting != "robust":
                self._entries.pop(name, None)
                self._entries.pop(kind.setting, None)

    def note_unknown_keys(self, beside: Iterable[str]) -> None:
        known = [*setting_names(), *method_names()]
        for key, entry in self._entries.items():
            if isinstance(entry.value, BrokenNode) and key not in known:
                self._problems.add(entry.value.place, joined("", key), entry.value.message)
            elif key not in known:
                message = unknown_key(key, list(dict.fromkeys([*beside, *known])))
                self._problems.add(entry.place, joined("", key), message)

    def options(self) -> dict[str, StrictModel]:
        """Read the options of every method that has some written or is selected."""
        found: dict[str, StrictModel] = {}
        for name, kind in _named():
            entry, selected = self._entries.get(name), self._entries.get(kind.setting)
            if entry is None and selected and name == self._text(kind.setting):
                entry = ConfigValue(name, selected.place, MapNode(selected.value.place, ()))
            if entry:
                method = kind.method(name)
                value = _options_map(entry, method.options, self._problems).value
                read = read_model(method.options, value, name, self._problems)
                if read is not None:
                    found[name] = found_from(self._document.folder, read)
        return found

    def config(self, options: Mapping[str, StrictModel], *, codecs_known: bool) -> Config | None:
        """Read everything but the options of methods, and note what does not fit together."""
        entries = tuple(self._setting(key) for key in setting_names() if key in self._entries)
        settings = MapNode(self._document.place, entries)
        values = plain_values(Config, settings, "", self._problems)
        # An unknown codec may come from the plugin that cannot be imported.
        ignore = () if codecs_known else (UNKNOWN_CODEC,)
        if _note_clashes(settings, values, self._problems):
            ignore = (*ignore, CLASH)
        self._note_misfit(values, options)
        return validated(Config, settings, values, "", self._problems, ignore=ignore)

    def _setting(self, key: str) -> ConfigValue:
        entry = self._entries[key]
        model = options_model(key)
        return _options_map(entry, model, self._problems) if model else entry

    def _note_misfit(self, values: Plain, options: Mapping[str, StrictModel]) -> None:
        """Note a topology that does not fit the nodes, if both are known well enough."""
        entry, chosen = self._entries.get("topology"), self._text("topology")
        names = [node.get("name") for node in _mappings(values, "nodes")]
        known = [name for name in names if isinstance(name, str)]
        if entry is None or chosen not in options or not names or len(set(known)) < len(names):
            return
        if chosen in _CONNECTED:
            return
        place = entry.value.place
        try:
            topology = topology_of(chosen, options[chosen], known)
            require_connected(topology, options[chosen], known)
        except ConfigError as error:
            self._note_file(chosen, error, options[chosen])
        except UserError as error:
            cut = error.text.removeprefix(f"topology {chosen}: ")
            message = str(error) if cut == error.text else f"{cut} [DPWA-E238]"
            self._problems.add(place, "topology", message)
        except Exception as error:  # noqa: BLE001 - whatever the rule of a plugin raises
            message = f"expected neighbours (got {type(error).__name__}: {error}) [DPWA-E239]"
            self._problems.add(place, "topology", message)

    def _note_file(self, chosen: str, error: ConfigError, options: StrictModel) -> None:
        """Note mistakes of an edge file at their lines, or at its path."""
        written = self._entries.get(chosen, self._entries["topology"]).value
        path = options.path if isinstance(options, FileOptions) else ""
        for line in str(error).splitlines():
            if line.startswith(f"{path}: "):
                place = (value_at(written, ["path"]) or written).place
                self._problems.add(place, "file.path", line)
            else:
                self._problems.add_line(line)

    def _text(self, key: str) -> str:
        """Empty if the setting has no single value."""
        value = self._entries[key].value if key in self._entries else None
        return value.value if isinstance(value, ScalarNode) and isinstance(value.value, str) else ""


def _from_environment(
    environ: Mapping[str, str], problems: Problems, *, rules_known: bool
) -> Iterator[tuple[tuple[str, ...], ScalarNode]]:
    """Yield key path and value of every setting in the environment; empty variables are unset.

    Variables that name no setting are noted, unless plugins are still missing and they look like an
    option of a method.
    """
    given = [name for name in environ if name.startswith(PREFIX) and name not in RESERVED]
    known = variables() if given else {}  # which takes longer than all else here
    for variable in sorted(given):
        place = Place("environment", variable=variable)
        if variable not in known:
            if rules_known or "__" not in variable:
                problems.add(place, "", _unknown_variable(variable, tuple(known)))
        elif environ[variable].strip():
            yield known[variable], scalar(place, environ[variable])


def _unknown_variable(variable: str, known: tuple[str, ...]) -> str:
    if variable in [PREFIX + name.upper() for name in LISTS]:
        return "unknown variable, expected this list in the configuration itself [DPWA-E207]"
    if instead := REMOVED.get(variable.removeprefix(PREFIX).lower()):
        return f"unknown variable, expected {instead} [DPWA-E207]"
    hint = suggestion(variable.removeprefix(PREFIX), [k.removeprefix(PREFIX) for k in known])
    if hint:
        return f"unknown variable{hint.replace('mean ', f'mean {PREFIX}')} [DPWA-E207]"
    return f"unknown variable, expected one of {listing(known)} [DPWA-E207]"


def _import_plugins(node: Node, folder: Path | None, problems: Problems) -> bool:
    """Import the modules of `plugins`, from the folder first; tell whether all could be.

    What is no module name is left to validation.
    """
    complete = True
    items = node.items if isinstance(node, ListNode) else ()
    with _search(folder):
        for index, item in enumerate(items):
            name = item.value if isinstance(item, ScalarNode) else None
            if not isinstance(name, str) or not is_module_name(name):
                complete = False
                continue
            fault = _import_fault(name)
            if fault:
                complete = False
                message = (
                    f"expected a Python module that can be imported (got {name}: {fault})"
                    " [DPWA-E215]"
                )
                problems.add(item.place, joined("plugins", index), message)
    return complete


def _import_fault(name: str) -> str:
    try:
        with redirect_stdout(sys.stderr):  # what it prints must not end up among the results
            importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises
        reason = " ".join(str(error).split())
        return f"{type(error).__name__}, {reason}" if reason else type(error).__name__
    return ""


@contextmanager
def _search(folder: Path | None) -> Iterator[None]:
    if folder is None:
        yield
        return
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(entry)


def _named() -> Iterator[tuple[str, Kind]]:
    """Yield the names of all methods, with their kinds."""
    for kind in KINDS:
        for name in kind.names():
            yield name, kind


def _taken_twice() -> Iterator[tuple[str, str, str]]:
    """Yield names that have two meanings, with both."""
    users = dict.fromkeys(setting_names(), "a setting")
    for name, kind in _named():
        if name in users:
            yield name, users[name], kind.setting
        users[name] = kind.setting


def _with_option(options: Node, changed: ConfigValue) -> Node:
    if means_off(options):
        return MapNode(options.place, (changed,))
    if not isinstance(options, MapNode):
        return options
    kept = tuple(entry for entry in options.entries if entry.key != changed.key)
    return MapNode(options.place, (*kept, changed))


def _options_map(entry: ConfigValue, model: type[StrictModel], problems: Problems) -> ConfigValue:
    """Return options as a mapping, an empty one for the defaults or if refused."""
    value = entry.value
    if isinstance(value, (MapNode, BrokenNode)):
        return entry
    if not means_off(value):
        keys = ", ".join(model.model_fields)
        expected = f"a mapping with {keys}, or 0 for the defaults" if keys else "0, for no options"
        problems.add(value.place, entry.key, f"expected {expected} (got {value.shown})")
    return ConfigValue(entry.key, entry.place, MapNode(value.place, ()))


def _note_clashes(settings: MapNode, values: Plain, problems: Problems) -> bool:
    """Note settings that do not fit together; tell if any do not."""
    nodes, links = _mappings(values, "nodes"), _mappings(values, "links")
    found = False
    for path, message in clashes(values, nodes, links):
        node = value_at(settings, path)
        if node:
            problems.add(node.place, joined_all(path), message)
            found = True
    return found


def _mappings(values: Plain, key: str) -> list[Plain]:
    items = values.get(key)
    items = items if isinstance(items, list) else []
    return [item if isinstance(item, dict) else {} for item in items]
