"""Loading: any source and the environment to one `Config`, or all mistakes at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpwa.config.clashes import Plain, clashes
from dpwa.config.combinations import combinations
from dpwa.config.environment import environment_overrides
from dpwa.config.graphs import absolute, found_from
from dpwa.config.methods import KINDS, method_names, methods
from dpwa.config.model import CLASH, Config
from dpwa.config.nodes import NodeConfig
from dpwa.config.placement import Placement, note_misfit
from dpwa.config.plugins import import_plugins
from dpwa.config.problems import UNKNOWN_CODEC, Place, Problems, joined, joined_all
from dpwa.config.python_source import ARGUMENTS, PythonSource
from dpwa.config.reading import note_duplicates, plain_values, read_model, schema_of, unknown_key
from dpwa.config.scalars import means_off
from dpwa.config.schema import options_model, setting_names
from dpwa.config.tree import BrokenNode, ConfigValue, ListNode, MapNode, Node, ScalarNode, value_at
from dpwa.config.yaml_source import read_yaml_file
from dpwa.errors import ConfigError, UserError
from dpwa.types import StrictModel

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
    variables = os.environ if environ is None else environ
    problems = Problems()
    try:
        document = read_document(source, problems)
        if beneath is not None:
            document = _laid_over(document, read_document(beneath, problems))
    except ConfigError as error:
        # Beyond reading; what is wrong with the environment can still be told.
        for _ in environment_overrides(variables, problems, rules_known=False):
            pass
        raise ConfigError([*error.problems, *problems.lines()]) from None
    config = config_of(document, problems, variables, overrides)
    if config is None or problems.lines():
        raise ConfigError(problems.lines())
    return config


def config_of(
    document: Document,
    problems: Problems,
    environ: Mapping[str, str],
    overrides: Mapping[str, Any] | None = None,
    *,
    beside: Iterable[str] = (),
) -> Config | None:
    """Return the configuration that a document is; note what is wrong, and return `None` then.

    Args:
        document: as `read_document` returns it.
        problems: where mistakes are noted.
        environ: variables that override settings.
        overrides: settings that go before all others.
        beside: keys of something else that stands in the same file, for whoever misspells one.
    """
    return _Loading(document, problems, tuple(beside)).run(environ, overrides or {})


def settings_in(source: ConfigSource) -> frozenset[str]:
    """Return the names of the settings that a source has, right or wrong.

    Raises:
        ConfigError: it cannot be read at all.
    """
    if isinstance(source, Config):
        return frozenset(source.to_mapping())
    return frozenset(entry.key for entry in read_document(source, Problems()).settings)


@dataclass(frozen=True)
class Document:
    """The settings of a source in the order written.

    Attributes:
        place: of the whole.
        settings: keys and values.
        folder: of the plugins and of relative paths; `None`: the working directory.
    """

    place: Place
    settings: tuple[ConfigValue, ...]
    folder: Path | None


def _laid_over(document: Document, beneath: Document) -> Document:
    """Return the settings of a source, and those of another that it does not have."""
    own = {entry.key for entry in document.settings}
    others = tuple(entry for entry in beneath.settings if entry.key not in own)
    folder = beneath.folder if document.folder is None else document.folder
    return Document(document.place, (*document.settings, *others), folder)


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
        raise UserError(f"peer {name!r}: {'; '.join(problems)}") from None


def read_document(source: object, problems: Problems) -> Document:
    """Read the settings of a source: a path, a mapping, or a list of single-key mappings.

    Raises:
        ConfigError: it cannot be read at all.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        root = read_yaml_file(path)
        return Document(root.place, _settings(root, problems), Path(path).parent)
    root = PythonSource().node(source)
    return Document(root.place, _settings(root, problems), None)


def _settings(root: Node, problems: Problems) -> tuple[ConfigValue, ...]:
    """Return the settings of either form: a mapping, or a list of single-key mappings."""
    if isinstance(root, MapNode):
        return root.entries
    if not isinstance(root, ListNode):
        expected = "expected a mapping, or a list of single-key mappings"
        message = root.message if isinstance(root, BrokenNode) else f"{expected} (got {root.shown})"
        raise ConfigError([f"{root.place.prefix('')}: {message}"])
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


class _Loading:
    """The steps from a document to a `Config`, over the settings collected so far."""

    def __init__(self, document: Document, problems: Problems, beside: Sequence[str]) -> None:
        self._beside = beside
        self._document = document
        self._problems = problems
        self._entries: dict[str, ConfigValue] = {}

    def run(self, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Config | None:
        """Note all problems and return the configuration, or `None` if none can be made."""
        settings = self._document.settings
        note_duplicates(MapNode(self._document.place, settings), "", self._problems)
        for entry in settings:
            self._entries.setdefault(entry.key, entry)
        argued = PythonSource(ARGUMENTS).node(overrides)
        arguments = {e.key: e for e in argued.entries} if isinstance(argued, MapNode) else {}
        self._entries.update({k: e for k, e in arguments.items() if k == "plugins"})
        complete = self._plugins(None if "plugins" in arguments else self._document.folder)
        for path, value in environment_overrides(environ, self._problems, rules_known=complete):
            self._override(path, value)
        self._entries.update(arguments)
        if not complete:
            self._forgive_methods()
        self._unknown_keys()
        self._nobody_listed()
        options = self._options()
        config = self._config(options, codecs_known=complete)
        if config is None or self._problems.lines():
            return None
        found: dict[str, object] = {"options": options}
        if config.security != "none":
            found["keys"] = absolute(self._document.folder, config.keys)
        if config.checkpoint.dir:
            folder = absolute(self._document.folder, config.checkpoint.dir)
            found["checkpoint"] = config.checkpoint.model_copy(update={"dir": folder})
        for key in ("state_dir", "run_log"):
            if folder := getattr(config, key):
                found[key] = absolute(self._document.folder, folder)
        was_set = {key: getattr(config, key) for key in config.model_fields_set}
        return Config.model_validate(was_set | found)

    def _plugins(self, folder: Path | None) -> bool:
        entry = self._entries.get("plugins")
        complete = entry is None or import_plugins(entry.value, folder, self._problems)
        place = entry.value.place if entry else self._document.place
        for name, first, second in _taken_twice():
            expected = "expected methods with names of their own"
            message = f"{expected} (got {name}, used by both {first} and {second})"
            self._problems.add(place, "plugins", message)
        return complete

    def _override(self, path: tuple[str, ...], value: ScalarNode) -> None:
        key, *option = path
        if option:
            before = self._entries.get(
                key, ConfigValue(key, value.place, ScalarNode(value.place, None, ""))
            )
            options = _with_option(before.value, ConfigValue(option[0], value.place, value))
            self._entries[key] = ConfigValue(key, before.place, options)
        else:
            self._entries[key] = ConfigValue(key, value.place, value)

    def _forgive_methods(self) -> None:
        """Drop methods that nobody knows: a plugin that cannot be imported may have them."""
        for kind in KINDS:
            name = _text(self._entries.get(kind.setting))
            if name and name not in kind.names() and kind.setting != "robust":
                self._entries.pop(name, None)
                self._entries.pop(kind.setting, None)

    def _nobody_listed(self) -> None:
        """With `join`, the list of nodes may be left out."""
        join = self._entries.get("join")
        if join and isinstance(join.value, ListNode) and "nodes" not in self._entries:
            self._entries["nodes"] = ConfigValue("nodes", join.place, ListNode(join.place, ()))

    def _unknown_keys(self) -> None:
        known = [*setting_names(), *method_names()]
        for key, entry in self._entries.items():
            if isinstance(entry.value, BrokenNode) and key not in known:
                self._problems.add(entry.value.place, joined("", key), entry.value.message)
            elif key not in known:
                message = unknown_key(key, list(dict.fromkeys([*self._beside, *known])))
                self._problems.add(entry.place, joined("", key), message)

    def _options(self) -> dict[str, StrictModel]:
        """Read the options of every method, those of selected ones even if nothing is written."""
        found: dict[str, StrictModel | None] = {}
        for method in methods():
            name, selected = method.name, self._entries.get(method.kind)
            entry = self._entries.get(name)
            if entry:
                found[name] = _read_options(entry, method.options, self._problems)
            elif selected and name == _text(selected):
                nothing = MapNode(selected.value.place, ())
                defaults = ConfigValue(name, selected.place, nothing)
                found[name] = _read_options(defaults, method.options, self._problems)
        folder = self._document.folder
        return {name: found_from(folder, read) for name, read in found.items() if read is not None}

    def _config(self, options: Mapping[str, StrictModel], *, codecs_known: bool) -> Config | None:
        entries = tuple(self._setting(key) for key in setting_names() if key in self._entries)
        settings = MapNode(self._document.place, entries)
        # An unknown codec may come from the plugin that cannot be imported.
        ignore = () if codecs_known else (UNKNOWN_CODEC,)
        plain = plain_values(schema_of(Config), settings, "", Problems())
        values = plain if isinstance(plain, dict) else {}
        if _note_clashes(settings, values, self._problems):
            ignore = (*ignore, CLASH)
        self._note_misfit(values, options)
        return read_model(Config, settings, "", self._problems, ignore=ignore)

    def _note_misfit(self, values: Plain, options: Mapping[str, StrictModel]) -> None:
        """Note a topology that does not fit the nodes, if both are known well enough to tell."""
        entry, chosen = self._entries.get("topology"), _text(self._entries.get("topology"))
        names = [node.get("name") for node in _mappings(values, "nodes")]
        known = [name for name in names if isinstance(name, str)]
        if entry is None or chosen not in options or not names or len(set(known)) < len(names):
            return
        written = self._entries.get(chosen, entry).value
        path = value_at(written, ["path"]) or written
        place = entry.value.place
        note_misfit(Placement(chosen, place, options[chosen], path.place, known), self._problems)

    def _setting(self, key: str) -> ConfigValue:
        entry = self._entries[key]
        model = options_model(key)
        return _options_map(entry, model, self._problems) if model else entry


def _taken_twice() -> Iterator[tuple[str, str, str]]:
    """Yield names that have two meanings, with both."""
    users = dict.fromkeys(setting_names(), "a setting")
    for method in methods():
        if method.name in users:
            yield method.name, users[method.name], method.kind
        users[method.name] = method.kind


def _text(entry: ConfigValue | None) -> str:
    """Return the text of a single value, empty if there is none."""
    value = entry.value if entry else None
    return value.value if isinstance(value, ScalarNode) and isinstance(value.value, str) else ""


def _with_option(options: Node, changed: ConfigValue) -> Node:
    """Return the options of a method with one of them set; what makes no sense stays as it is."""
    if means_off(options):
        return MapNode(options.place, (changed,))
    if not isinstance(options, MapNode):
        return options
    kept = tuple(entry for entry in options.entries if entry.key != changed.key)
    return MapNode(options.place, (*kept, changed))


def _read_options(
    entry: ConfigValue, model: type[StrictModel], problems: Problems
) -> StrictModel | None:
    value = _options_map(entry, model, problems).value
    return read_model(model, value, entry.key, problems)


def _options_map(entry: ConfigValue, model: type[StrictModel], problems: Problems) -> ConfigValue:
    """Return options as a mapping: an empty one for the defaults, or for what is refused."""
    value = entry.value
    if isinstance(value, (MapNode, BrokenNode)):
        return entry
    if not means_off(value):
        keys = ", ".join(model.model_fields)
        expected = f"a mapping with {keys}, or 0 for the defaults" if keys else "0, for no options"
        problems.add(value.place, entry.key, f"expected {expected} (got {value.shown})")
    return ConfigValue(entry.key, entry.place, MapNode(value.place, ()))


def _note_clashes(settings: MapNode, values: Plain, problems: Problems) -> bool:
    """Note settings that do not fit together, whatever else is wrong; tell if any do not."""
    nodes, links = _mappings(values, "nodes"), _mappings(values, "links")
    found = False
    for path, message in (*clashes(nodes, links), *combinations(values, nodes, links)):
        node = value_at(settings, path)
        if node:
            problems.add(node.place, joined_all(path), message)
            found = True
    return found


def _mappings(values: Mapping[str, object], key: str) -> list[Plain]:
    items = values.get(key)
    return (
        [item if isinstance(item, dict) else {} for item in items]
        if isinstance(items, list)
        else []
    )
