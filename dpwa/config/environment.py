"""Settings from the environment: DPWA_TIMEOUT_MS=500, DPWA_CONSTANT__VALUE=0.3."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from dpwa.config.methods import methods
from dpwa.config.problems import Place, Problems, listing, suggestion
from dpwa.config.python_source import scalar
from dpwa.config.schema import options_model, setting_names
from dpwa.config.tree import ScalarNode

PREFIX = "DPWA_"
RESERVED = ("DPWA_NAME", "DPWA_CONFIG", "DPWA_RANK", "DPWA_WORLD_SIZE", "DPWA_FAULTS")

# Settings that name files: relative to the configuration, if they stand in one.
PATHS = (("keys",), ("state_dir",), ("run_log",), ("checkpoint", "dir"), ("file", "path"))

_LISTS = ("nodes", "join", "links", "plugins", "allow")


def environment_overrides(
    environ: Mapping[str, str], problems: Problems, *, rules_known: bool
) -> Iterator[tuple[tuple[str, ...], ScalarNode]]:
    """Yield the key path and the value of every setting that the environment makes.

    A variable that is set to nothing counts as not set. Variables that name no setting are noted as
    problems.

    Args:
        environ: the environment.
        problems: where mistakes are noted.
        rules_known: whether all plugins are loaded; if not, variables that look like options of a
            method get the benefit of the doubt.
    """
    known = variables()
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        if variable in RESERVED:
            continue
        place = Place("environment", variable=variable)
        if variable not in known:
            if rules_known or "__" not in variable:
                problems.add(place, "", _unknown(variable, tuple(known)))
        elif environ[variable].strip():
            yield known[variable], scalar(place, environ[variable])


def variables() -> dict[str, tuple[str, ...]]:
    """Return the key path that each variable sets."""
    paths: list[tuple[str, ...]] = []
    for name in setting_names():
        model = options_model(name)
        if model:
            paths += [(name, option) for option in model.model_fields]
        elif name not in _LISTS:
            paths.append((name,))
    for method in methods():
        paths += [(method.name, option) for option in method.options.model_fields]
    return {variable_of(path): path for path in paths}


def variable_of(path: Iterable[str]) -> str:
    """Return the variable that sets what is at a key path."""
    return PREFIX + "__".join(map(_shouted, path))


def _shouted(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


def _unknown(variable: str, known: tuple[str, ...]) -> str:
    if variable in [PREFIX + name.upper() for name in _LISTS]:
        return "unknown variable, expected this list in the configuration itself"
    hint = suggestion(variable.removeprefix(PREFIX), [k.removeprefix(PREFIX) for k in known])
    if hint:
        return "unknown variable" + hint.replace("mean ", f"mean {PREFIX}")
    return f"unknown variable, expected one of {listing(known)}"
