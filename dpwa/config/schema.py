"""The keys of a configuration, their environment variables, a JSON Schema and a commented file."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence

import yaml
from pydantic.json_schema import models_json_schema

from dpwa.config.methods import KINDS, Method, methods
from dpwa.config.model import Config, NodeConfig
from dpwa.data.codecs import codec_names
from dpwa.types import JsonObject, StrictModel

# Settings about addresses, files, access and monitoring, which a simulation does not use.
OF_REAL_RUNS = (
    "advertise",
    "allow",
    "alone",
    "checkpoint",
    "join",
    "keys",
    "listen",
    "metrics",
    "run_log",
    "security",
    "state_dir",
)

PREFIX = "DPWA_"

# Settings that are paths. In a configuration file, they are relative to the folder of the file.
PATHS = (("keys",), ("state_dir",), ("run_log",), ("checkpoint", "dir"), ("file", "path"))
# Settings without an environment variable.
LISTS = ("nodes", "join", "links", "plugins", "allow", "statistics")

_HEADER = """\
# The configuration of a dpwa run. Every node reads the same file.
# `dpwa config check FILE` finds mistakes. docs/settings.md explains every key.

"""


def setting_names() -> tuple[str, ...]:
    """Return the keys of a configuration, without the names of methods."""
    return tuple(name for name in Config.model_fields if name != "options")


def options_model(setting: str) -> type[StrictModel] | None:
    """Return the model of a setting that is a mapping of options, or `None` for other settings."""
    kind: object = Config.model_fields[setting].annotation
    return kind if isinstance(kind, type) and issubclass(kind, StrictModel) else None


def variables() -> dict[str, tuple[str, ...]]:
    paths: list[tuple[str, ...]] = []
    for name in setting_names():
        model = options_model(name)
        if model:
            paths += [(name, option) for option in model.model_fields]
        elif name not in LISTS:
            paths.append((name,))
    for method in methods():
        paths += [(method.name, option) for option in method.options.model_fields]
    return {variable_of(path): path for path in paths}


def variable_of(path: Iterable[str]) -> str:
    return PREFIX + "__".join(re.sub(r"\W", "_", name).upper() for name in path)


def config_schema() -> JsonObject:
    """Return the JSON Schema of configurations (mapping or list), with all methods' options."""
    found_methods = list(methods())
    models: list[type[StrictModel]] = [Config, *(method.options for method in found_methods)]
    references, found = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)]
    )
    definitions: JsonObject = found["$defs"]
    settings: JsonObject = definitions["Config"]
    del settings["required"]
    settings["anyOf"] = [{"required": ["nodes"]}, {"required": ["join"]}]
    for kind in KINDS:
        settings["properties"][kind.setting].setdefault("enum", list(kind.names()))
    codecs: JsonObject = {"enum": list(codec_names())}
    settings["properties"]["codec"].update(codecs)
    definitions["LinkConfig"]["properties"]["codec"].update(codecs)
    definitions["NodeConfig"]["properties"]["codec"]["anyOf"] = [codecs, {"type": "null"}]
    for name, setting in settings["properties"].items():
        settings["properties"][name] = _with_off(setting)
        if options_model(name):
            settings["properties"][name] = _or_defaults(setting)
    for method in found_methods:
        settings["properties"].setdefault(
            method.name,
            {
                "description": f"options of {method.name}: {_first_line(method.described_by)}",
                **_options_schema(method, references[method.options, "validation"]),
            },
        )
    single = {key: value for key, value in settings.items() if key != "anyOf"}
    definitions["Setting"] = {
        **single,
        "title": "Setting",
        "description": "One setting in the list form of 2017.",
        "minProperties": 1,
        "maxProperties": 1,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of dpwa",
        "anyOf": [
            {"$ref": "#/$defs/Config"},
            {"type": "array", "items": {"$ref": "#/$defs/Setting"}},
        ],
        "$defs": definitions,
    }


def config_text(nodes: Sequence[NodeConfig]) -> str:
    """Return the YAML of a configuration with these nodes, default settings and comments."""
    config = Config(nodes=tuple(nodes))
    values = config.to_mapping()
    described = {key: field.description or "" for key, field in Config.model_fields.items()}
    parts = [_HEADER, yaml_comment(described["nodes"]) + "nodes:\n"]
    parts += [f"  - {yaml_flow(node.to_mapping())}\n" for node in config.nodes]
    for key in setting_names()[1:]:
        parts.append(f"\n{yaml_comment(described[key])}{key}: {yaml_flow(values[key])}\n")
    rule = config.interpolation
    parts.append(
        f"\n# options of the rule {rule} (0 = defaults)\n{rule}: {yaml_flow(values[rule])}\n"
    )
    return "".join(parts)


def local_nodes(ports: Sequence[int], host: str = "localhost") -> tuple[NodeConfig, ...]:
    """Return nodes w1, w2, ... on one host, one node for each port."""
    return tuple(
        NodeConfig(name=f"w{number}", host=host, port=port) for number, port in enumerate(ports, 1)
    )


def _with_off(setting: JsonObject) -> JsonObject:
    """Return a setting's schema, extended to allow `off` and false if the setting can be off."""
    if "off" in setting.get("enum", ()):
        return {**setting, "enum": [*setting["enum"], False]}
    if setting.get("type") not in ("integer", "number") or setting.get("minimum", 1) > 0:
        return setting
    texts = ("title", "description", "default")
    about: JsonObject = {key: setting[key] for key in texts if key in setting}
    number = {key: value for key, value in setting.items() if key not in about}
    return {**about, "anyOf": [number, {"enum": ["off", False]}]}


def _options_schema(method: Method, reference: JsonObject) -> JsonObject:
    needs_some = any(field.is_required() for field in method.options.model_fields.values())
    return reference if needs_some else {**_or_defaults(reference), "default": 0}


def _or_defaults(options: JsonObject) -> JsonObject:
    """Return a schema that allows options, or 0, false, null or `off` for default options."""
    about: JsonObject = {key: options[key] for key in options if key != "$ref"}
    return {**about, "anyOf": [{"$ref": options["$ref"]}, {"enum": [0, False, None, "off"]}]}


def _first_line(method: object) -> str:
    text = inspect.getdoc(method) or "a method of a plugin"
    return " ".join(text.partition("\n")[0].split())


def yaml_comment(text: str) -> str:
    return textwrap.fill(text, 92, initial_indent="# ", subsequent_indent="# ") + "\n"


def yaml_flow(value: object) -> str:
    text: str = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=1000, allow_unicode=True
    )
    return text.removesuffix("...\n").strip()
