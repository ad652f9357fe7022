"""The code of the documentation fits the code of dpwa: names, commands, configurations.

`test_snippets_run.py` runs it.
"""

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
import yaml
from support.launched import dpwa as run_dpwa
from support.snippets import SHELL, SPAN, Snippet, blocks, commands, is_among, words

import dpwa
from dpwa import DpwaConnection
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.cli.main import COMMAND
from dpwa.config import load_config
from dpwa.dataset import SharedSampler
from dpwa.errors import ConfigError, UserError

# What names stand for in all pages, where a block does not say so itself.
OBJECTS = {
    "gossip": DpwaPyTorchAdapter,
    "connection": DpwaConnection,
    "sampler": SharedSampler,
}
NO_COMMANDS = {
    "dpwa COMMAND --help": "stands for all of them",
    "dpwa report needs matplotlib": "a message",
}
NO_CONFIGURATIONS = {
    ("docs/launch.md", "run: |"): "a part of a task of SkyPilot",
    ("docs/simulator.md", "# ours.yaml"): "a scenario, which tests/sim loads",
}
WITH_MISTAKES = {
    ("docs/configuration.md", "- nodes:\n  - {name: w1, host: localhost, port: 20470}")
}


def test_python_compiles_and_its_names_of_dpwa_exist():
    missing = [f"{block}: {name}" for block in blocks("python") for name in missing_names(block)]
    assert missing == []


def missing_names(block):
    """Yield the attributes in a block that a module or a class of dpwa does not have."""
    tree = ast.parse(block.code, str(block))
    found = dict(OBJECTS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] == "dpwa":
                    module = importlib.import_module(name.name)
                    found[name.asname or "dpwa"] = module if name.asname else dpwa
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpwa"):
            for name in node.names:
                found[name.asname or name.name] = imported(node.module, name.name)
    yield from (ast.unparse(node) for node in ast.walk(tree) if is_missing(node, found))


def imported(module, name):
    """Return what is imported; `None` if it is there, but needs a library that is not."""
    try:
        owner = importlib.import_module(module)
    except UserError:
        source = Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")
        assert re.search(rf"^class {name}\b", source, re.MULTILINE), f"{module}.{name}"
        return None
    return getattr(owner, name, None) or importlib.import_module(f"{module}.{name}")


def is_missing(node, found):
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    owner = found.get(node.value.id)
    if inspect.isclass(owner):
        return not (hasattr(owner, node.attr) or f"self.{node.attr} = " in inspect.getsource(owner))
    return inspect.ismodule(owner) and not hasattr(owner, node.attr)


def test_commands_and_options_exist():
    told = [command for command in commands(SPAN, *SHELL) if command.code not in NO_COMMANDS]
    missing = [f"{command}: {word}" for command in told for word in unknown_words(COMMAND, command)]
    assert missing == []


def unknown_words(found, command):
    """Yield the words of a command line that are no command and no option."""
    _, (_, *rest) = words(command)
    if "|" in rest:  # what reads from it is no part of this one
        rest = rest[: rest.index("|")]
    while rest and rest[0] in getattr(found, "commands", {}):
        found = found.commands[rest.pop(0)]
    takes_arguments = any(p.param_type_name == "argument" for p in found.params)
    if hasattr(found, "commands") and not takes_arguments:
        yield from (word for word in rest[:1] if not word.startswith("-"))
    options = {name for parameter in found.params for name in parameter.opts} | {"--help", "-h"}
    own = rest[: rest.index("--")] if "--" in rest else rest
    for word in own:
        if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options:
            yield word


def yaml_blocks():
    found = [block for block in blocks("yaml") if not is_among(block, NO_CONFIGURATIONS)]
    return [block for block in found if "plugins:" not in block.code]


def plugin_blocks():
    return [block for block in blocks("yaml") if "plugins:" in block.code]


def test_configurations_load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.txt").write_text("w1 w2\n")
    path = tmp_path / "run.yaml"
    for block in yaml_blocks():
        path.write_text(with_nodes(block.code))
        if is_among(block, WITH_MISTAKES):
            with pytest.raises(ConfigError):
                load_config(str(path), environ={})
        else:
            load_config(str(path), environ={})


def with_nodes(code):
    """Return a configuration that has nodes: its own, or two, and those that its links name."""
    content = yaml.safe_load(code)
    if not isinstance(content, dict) or {"nodes", "join"} & content.keys():
        return code
    names = {"w1", "w2"}.union(*(link["between"] for link in content.get("links", ())))
    nodes = [{"name": name, "port": port} for port, name in enumerate(sorted(names), 45000)]
    return f"nodes: {nodes}\n{code}"


def test_configurations_with_plugins_load(tmp_path):
    # Names are registered for the whole process, so it is one of its own.
    for block in plugin_blocks():
        (module,) = yaml.safe_load(block.code)["plugins"]
        (code,) = [other for other in blocks("python") if is_plugin_for(other, block)]
        (tmp_path / f"{module}.py").write_text(code.code)
        (tmp_path / "run.yaml").write_text(with_nodes(block.code))
        found = run_dpwa("config", "check", str(tmp_path / "run.yaml"))
        assert (found.returncode, found.stderr) == (0, ""), block


def is_plugin_for(code, block):
    return code.page == block.page and "\n@register_" in code.code


def test_the_tables_name_code_that_is_there():
    everything = [*blocks("python", "yaml")]
    for page, text in [*NO_CONFIGURATIONS, *WITH_MISTAKES]:
        assert [block for block in everything if is_among(block, [(page, text)])]
    assert NO_COMMANDS.keys() <= {command.code for command in commands(SPAN)}


def test_code_is_found_in_all_forms():
    assert len(blocks("python")) > 40
    assert len(yaml_blocks()) > 15
    assert {found.language for found in commands(SPAN, *SHELL)} >= {SPAN, "", "console"}
    assert any(found.code.startswith("DPWA_") for found in commands(*SHELL))


def test_what_is_not_there_is_found():
    tree = "import dpwa\ndpwa.conect(net)\ngossip.stop()\ngossip.step()"
    assert [*missing_names(Snippet("", 1, "python", tree))] == ["dpwa.conect", "gossip.stop"]
    command = Snippet("", 1, "console", "dpwa config chek --josn")
    assert [*unknown_words(COMMAND, command)] == ["chek", "--josn"]
