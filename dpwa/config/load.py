"""Loads a configuration from a source and the environment, or raises one error with all mistakes.

Arguments override environment variables (DPWA_TIMEOUT_MS=500, DPWA_CONSTANT__VALUE=0.3). Variables
override the source.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from dpwa.algorithms import algorithm, algorithm_names
from dpwa.config.clashes import clashes, mappings
from dpwa.config.document import Document
from dpwa.config.graphs import absolute, found_from, require_connected, topology_of
from dpwa.config.methods import KINDS, changed_options, method_names, named
from dpwa.config.model import CLASH, UNKNOWN_NAME, Config, NodeConfig, is_module_name
from dpwa.config.problems import REMOVED, Place, got, listing, suggestion, unknown_key
from dpwa.config.schema import LISTS, PREFIX, options_model, setting_names, variables
from dpwa.config.validation import means_off, plain_values, read_model
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
_CONNECTED = ("random", "full")  # always; a check of 4096 nodes takes seconds

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
        source: the path of a YAML file. Or the settings themselves, as a mapping or as a list of
            mappings with one key each. Or a `Config`, which is returned unchanged.
        beneath: another source. Its settings apply if `source` does not have them.
        overrides: settings that override the sources and the environment.
        environ: variables that override settings. The default is the environment of the process.

    Raises:
        ConfigError: the configuration has mistakes. `problems` has all of them in order of their
            position, each as `file:line:column: key.path: expected X (got Y)`.
    """
    if isinstance(source, Config):
        if not overrides:
            return source
        environ = {}  # the variables were applied when the source was loaded
    document, environment = Document(), os.environ if environ is None else environ
    try:
        for each in [source] if beneath is None else [beneath, source]:
            document.read(_plain(each))
    except ConfigError as error:
        # The source cannot be read. Report mistakes in the environment, too.
        told = Document()
        _write_variables(told, environment, (), methods_known=False)
        raise ConfigError([*str(error).splitlines(), *told.problems.lines()]) from None
    config = config_of(document, environment, overrides)
    if config is None:
        raise ConfigError(document.problems.lines())
    return config


def peer_config(name: str, host: str, port: int) -> NodeConfig:
    """Check the name and address of a peer that joins at run time.

    Raises:
        UserError: the name or the address is invalid. The message names each mistake.
    """
    node = {"name": name, "host": host, "port": port}
    try:
        return load_config({"nodes": [node]}, environ={}).nodes[0]
    except ConfigError as error:
        problems = [problem.rpartition("nodes[0].")[2] for problem in error.problems]
        raise UserError(f"peer {name!r}: {'; '.join(problems)} [DPWA-E013]") from None


def settings_in(source: ConfigSource) -> frozenset[str]:
    document = Document()
    document.read(_plain(source))
    return frozenset(document.values)


def config_of(
    document: Document,
    environ: Mapping[str, str],
    overrides: Mapping[str, Any] | None = None,
    *,
    beside: Sequence[str] = (),
) -> Config | None:
    """Return the configuration in a document, or record its mistakes there and return `None`.

    `beside` has other keys that the file may have. They are suggested for misspelt keys.
    """
    values, overrides = document.values, overrides or {}
    for key, value in overrides.items():
        document.write((key,), value)
    complete = _import_plugins(document, None if "plugins" in overrides else document.folder)
    _write_variables(document, environ, overrides, methods_known=complete)
    chosen = values.get("algorithm", "gossip")
    has_rule = (
        isinstance(chosen, str) and chosen in algorithm_names() and algorithm(chosen).uses_rule
    )
    if document.is_list and has_rule and "merge" not in values:
        document.imply("merge", "interpolate")  # scripts of 2017 rely on this rule
    if isinstance(values.get("join"), list) and "nodes" not in values:
        document.imply("nodes", [], by="join")
    # An unknown method or codec may belong to a plugin that cannot be imported.
    forgiven = () if complete else _picked(document).values()
    known = [*setting_names(), *method_names()]
    for key in values:
        if key not in known and key not in forgiven:
            document.note_key((key,), unknown_key(key, [*beside, *known]))
    plain = plain_values(Config, document, (), setting_names())
    for loc, message in clashes(plain):
        document.note(loc, message)
    options = _options(document)
    _note_misfit(document, plain, options)
    ignored = () if complete else (UNKNOWN_NAME,)
    if document.problems.lines():
        ignored = (*ignored, CLASH)
    config = read_model(Config, document, keys=setting_names(), ignored=ignored)
    if config is None or document.problems.lines():
        return None
    return _with_absolute_paths(config, options, document.folder)


def _with_absolute_paths(
    config: Config, options: Mapping[str, StrictModel], folder: Path | None
) -> Config:
    found: dict[str, object] = {"options": changed_options(options)}
    for key in ("state_dir", "run_log"):
        if path := getattr(config, key):
            found[key] = absolute(folder, path)
    if config.security != "none":
        found["keys"] = absolute(folder, config.keys)
    if config.checkpoint.dir:
        path = absolute(folder, config.checkpoint.dir)
        found["checkpoint"] = config.checkpoint.model_copy(update={"dir": path})
    return config.model_copy(update=found)


def _plain(source: ConfigSource) -> object:
    return source.to_mapping() if isinstance(source, Config) else source


def _picked(document: Document) -> dict[str, str]:
    """Return the name of the selected method for each setting that selects a method."""
    written = {kind.setting: document.values.get(kind.setting) for kind in KINDS}
    return {setting: name for setting, name in written.items() if isinstance(name, str)}


def _options(document: Document) -> dict[str, StrictModel]:
    """Read the options of each selected method, and of each method with options in the document."""
    found: dict[str, StrictModel] = {}
    picked = _picked(document)
    for key in setting_names():
        if model := options_model(key):
            _check_options(document, key, model)
    for name, kind in named():
        if name not in document.values and picked.get(kind.setting) == name:
            document.imply(name, {}, by=kind.setting)
        if name in document.values:
            method = kind.method(name)
            _check_options(document, name, method.options)
            read = read_model(method.options, document, (name,))
            if read is not None:
                found[name] = found_from(document.folder, read)
    return found


def _check_options(document: Document, key: str, model: type[StrictModel]) -> None:
    """Replace options that are `off` by an empty mapping, and refuse a value that is no mapping."""
    value = document.values.get(key, {})
    if means_off(value):
        document.values[key] = {}
    elif not isinstance(value, dict):
        keys = ", ".join(model.model_fields)
        expected = f"a mapping with {keys}, or 0 for the defaults" if keys else "0, for no options"
        document.note((key,), f"expected {expected} (got {got(value)})")


def _note_misfit(
    document: Document, plain: Mapping[str, Any], options: Mapping[str, StrictModel]
) -> None:
    """Record a mistake if the topology and the nodes can be read, but do not work together."""
    chosen = str(plain.get("topology"))
    nodes = mappings(plain, "nodes")
    names = {name: None for node in nodes if isinstance(name := node.get("name"), str)}
    if chosen in _CONNECTED or chosen not in options or not nodes or len(names) < len(nodes):
        return
    message = ""
    try:
        topology = topology_of(chosen, options[chosen], tuple(names))
        require_connected(topology, options[chosen], tuple(names))
    except ConfigError as error:
        _note_file(document, error, options[chosen])
    except UserError as error:
        cut = error.text.removeprefix(f"topology {chosen}: ")
        message = str(error) if cut == error.text else f"{cut} [DPWA-E238]"
    except Exception as error:  # noqa: BLE001 - the topology of a plugin may raise anything
        got_it = f"got {type(error).__name__}: {error}"
        message = f"expected neighbours from {chosen} ({got_it}) [DPWA-E239]"
    if message:
        document.note(("topology",), message)


def _note_file(document: Document, error: ConfigError, options: StrictModel) -> None:
    """Record the mistakes in an edge file, at their lines or at the option `file.path`."""
    path = options.path if isinstance(options, FileOptions) else ""
    for line in str(error).splitlines():
        if line.startswith(f"{path}: "):
            document.note(("file", "path"), line)
        else:
            document.problems.add_lines([line])


def _write_variables(
    document: Document,
    environ: Mapping[str, str],
    overrides: Collection[str],
    *,
    methods_known: bool,
) -> None:
    """Set values from environment variables in the document. Ignore overridden and empty variables.

    Variables that name no setting are recorded as mistakes, unless a plugin is missing and they may
    be options of its methods.
    """
    given = [name for name in environ if name.startswith(PREFIX) and name not in RESERVED]
    known = variables() if given else {}  # slow, so only if needed
    for variable in sorted(given):
        if variable in known:
            path = known[variable]
            before = document.values.get(path[0])
            is_free = len(path) == 1 or isinstance(before, dict) or means_off(before)
            if environ[variable].strip() and path[0] not in overrides and is_free:
                document.write(path, environ[variable], variable=variable)
        elif methods_known or "__" not in variable:
            message = _unknown_variable(variable, tuple(known))
            document.problems.add(Place("environment", variable=variable), (), message)


def _unknown_variable(variable: str, known: tuple[str, ...]) -> str:
    if variable in [PREFIX + name.upper() for name in LISTS]:
        return "unknown variable, expected this list in the configuration file [DPWA-E207]"
    if instead := REMOVED.get(variable.removeprefix(PREFIX).lower()):
        return f"unknown variable, expected {instead} [DPWA-E207]"
    hint = suggestion(variable.removeprefix(PREFIX), [k.removeprefix(PREFIX) for k in known])
    if hint:
        return f"unknown variable{hint.replace('mean ', f'mean {PREFIX}')} [DPWA-E207]"
    return f"unknown variable, expected one of {listing(known)} [DPWA-E207]"


def _import_plugins(document: Document, folder: Path | None) -> bool:
    """Import the modules in `plugins`, and search `folder` first. Return whether all were imported.

    Validation reports values that are not names of modules.
    """
    complete = True
    named = document.values.get("plugins")
    with _search(folder):
        for index, name in enumerate(named if isinstance(named, list) else ()):
            is_name = isinstance(name, str) and is_module_name(name)
            fault = _import_fault(name) if is_name else ""
            complete = complete and is_name and not fault
            if fault:
                expected = "expected a Python module that can be imported"
                message = f"{expected} (got {name}: {fault}) [DPWA-E215]"
                document.note(("plugins", index), message)
    for name, first, second in _taken_twice():
        expected = "expected methods with unique names"
        message = f"{expected} (got {name}, used by both {first} and {second}) [DPWA-E216]"
        document.note(("plugins",), message)
    return complete


def _import_fault(name: str) -> str:
    try:
        with redirect_stdout(sys.stderr):  # keeps the output of the module out of the results
            importlib.import_module(str(name))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
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


def _taken_twice() -> Iterator[tuple[str, str, str]]:
    """Yield each name shared by two methods, or by a setting and a method, with both uses."""
    users = dict.fromkeys(setting_names(), "a setting")
    for name, kind in named():
        if name in users:
            yield name, users[name], kind.setting
        users[name] = kind.setting
