"""Rules and codecs of the user's own, registered by modules that the configuration names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest

from dpwa.algorithms import base as algorithms
from dpwa.config import Config, load_config
from dpwa.config.schema import config_schema
from dpwa.data import codecs
from dpwa.errors import ConfigError, UserError
from dpwa.policy import interpolation as registry
from dpwa.policy import topology as topologies

RULES = """\
from typing import Any
from pydantic import Field, field_validator
from dpwa.policy.interpolation import register_interpolation
from dpwa.types import StrictModel

class Options(StrictModel):
    steps: int = Field(default=3, ge=1)
    strict: bool = False
    weights: dict[str, float] = {}
    extra: Any = None

    @field_validator("steps")
    @classmethod
    def odd(cls, value):
        if value % 2 == 0:
            raise ValueError("expected an odd number of steps")
        return value

class Needy(StrictModel):
    rate: float

@register_interpolation("own-rule", Options)
def own_rule(options, own, peer):
    '''f = 1 / steps.'''
    return 1 / options.steps

@register_interpolation("needy", Needy)
def needy(options, own, peer):
    return options.rate
"""
ALGORITHMS = """\
from pydantic import Field
from dpwa.algorithms import Algorithm, Ask, Terms, register_algorithm
from dpwa.policy.topology import register_topology
from dpwa.types import StrictModel

class Options(StrictModel):
    reach: int = Field(default=1, ge=1)

@register_algorithm("own")
class Own(Algorithm):
    '''An algorithm of the user's own.'''
    options_model = Options

@register_algorithm("own-transactions")
class OwnDeals(Algorithm):
    '''Both ends merge.'''
    terms = Terms.EXCHANGE

@register_topology("chain", Options)
def chain(options, index, nodes, round_number):
    '''The nodes before and after on a line.'''
    if options.reach > 2:
        raise KeyError("reach")
    near = range(index - options.reach, index + options.reach + 1)
    return [other for other in near if 0 <= other < nodes and other != index]

@register_topology("next")
def next_one(options, index, nodes, round_number):
    '''The next on a line, which never closes.'''
    return [index + 1] if index + 1 < nodes else []

@register_topology("self")
def itself(options, index, nodes, round_number):
    return [index]
"""
CODEC = """\
from dpwa.data.codecs import Codec, register_codec

@register_codec("own")
class Own(Codec):
    def encode(self, piece, dtype):
        return piece

    def decode(self, payload, dtype, room):
        return room
"""
NODES = "nodes: [{name: w1, port: 1}]\n"


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (registry, codecs, algorithms, topologies):
        monkeypatch.setattr(module, "_REGISTRY", deepcopy(module._REGISTRY))
    before = set(sys.modules)
    path = list(sys.path)
    yield
    assert sys.path == path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(text: str, folder: Path, nodes: str = NODES, **environ: str) -> Config:
    (folder / "own_rules.py").write_text(RULES)
    (folder / "own_algorithms.py").write_text(ALGORITHMS)
    path = folder / "run.yaml"
    path.write_text(nodes + text)
    return load_config(path, environ=environ)


def problems_of(text: str, folder: Path, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, folder, **environ)
    return [problem.removeprefix(f"{folder}/run.yaml:") for problem in caught.value.problems]


def test_a_module_beside_the_file_brings_its_codecs(tmp_path: Path) -> None:
    (tmp_path / "own_codecs.py").write_text(CODEC)
    text = "codec: own\nlinks: [{between: [w1, w2], codec: own}]\nplugins: [own_codecs]\n"
    config = load(text, tmp_path, nodes=NODES.replace("]", ", {name: w2, port: 2, codec: own}]"))
    assert (config.codec, config.nodes[1].codec, config.links[0].codec) == ("own", "own", "own")


def test_codecs_get_the_benefit_of_the_doubt_while_a_plugin_is_broken(tmp_path: Path) -> None:
    text = "plugins: [missing_codecs]\ncodec: own\n"
    (problem,) = problems_of(text, tmp_path)
    assert problem.startswith("2:11: plugins[0]: expected a Python module that can be imported")


def test_a_module_beside_the_file_brings_its_rules(tmp_path: Path) -> None:
    text = "interpolation: own-rule\nown-rule: {steps: 5, strict: on}\nplugins: [own_rules]\n"
    config = load(text, tmp_path, DPWA_OWN_RULE__STEPS="7")
    options = config.options_of("own-rule")
    assert options.model_dump() == {"steps": 7, "strict": True, "weights": {}, "extra": None}
    assert config.plugins == ("own_rules",)
    assert load_config(config.to_mapping(), environ={}) == config
    assert "own-rule" in config_schema()["$defs"]["Config"]["properties"]


def test_options_of_a_plugin_are_checked_like_all_others(tmp_path: Path) -> None:
    text = """\
plugins: [own_rules]
own-rule:
  steps: 2
  strict: maybe
  weights: {a: 1e-3, b: x, a: 2}
  extra: {x: 1}
needy: 0
"""
    assert problems_of(text, tmp_path) == [
        "4:10: own-rule.steps: expected an odd number of steps (got 2)",
        "5:11: own-rule.strict: expected on or off (got maybe)",
        "6:25: own-rule.weights.b: expected a number (got x)",
        "6:28: own-rule.weights.a: duplicate key, expected the key only once (first on line 6)",
        "8:8: needy.rate: missing, expected a number",
    ]


def test_values_of_any_type_are_read_like_people_read_them(tmp_path: Path) -> None:
    text = 'plugins: [own_rules]\nown-rule: {extra: [1e-3, 22:22, "5", true, off, ~]}\n'
    assert load(text, tmp_path).options_of("own-rule").model_dump()["extra"] == [
        0.001, "22:22", "5", True, "off", None,
    ]  # fmt: skip


def test_a_selected_rule_must_get_the_options_it_needs(tmp_path: Path) -> None:
    assert problems_of("plugins: [own_rules]\ninterpolation: needy\n", tmp_path) == [
        "3:16: needy.rate: missing, expected a number"
    ]
    config = load("plugins: [own_rules]\n", tmp_path)
    with pytest.raises(UserError, match="`interpolation: needy` has an option without a default"):
        config.options_of("needy")


def test_a_module_that_cannot_be_imported_is_a_problem_at_its_position(tmp_path: Path) -> None:
    (tmp_path / "raising_rules.py").write_text("raise ValueError('two\\nlines')")
    (tmp_path / "leaving_rules.py").write_text("import sys; sys.exit()")
    text = """\
plugins:
- raising_rules
- leaving_rules
- no_such_rules
interpolation: theirs
theirs: {value: 1}
seed: x
"""
    assert problems_of(text, tmp_path, DPWA_THEIRS__VALUE="1") == [
        "3:3: plugins[0]: expected a Python module that can be imported (got raising_rules: "
        "ValueError, two lines)",
        "4:3: plugins[1]: expected a Python module that can be imported (got leaving_rules: "
        "SystemExit)",
        "5:3: plugins[2]: expected a Python module that can be imported (got no_such_rules: "
        "ModuleNotFoundError, No module named 'no_such_rules')",
        "8:7: seed: expected a whole number from 0 to 9223372036854775807 or nothing (got x)",
    ]


def test_a_rule_cannot_have_the_name_of_a_setting(tmp_path: Path) -> None:
    registry.register_interpolation("seed")(lambda options, own, peer: 0.5)
    assert problems_of("plugins: []\n", tmp_path) == [
        "2:10: plugins: expected methods with unique names (got seed, used by both a setting "
        "and interpolation)"
    ]


@pytest.mark.parametrize(
    ("register", "name", "kinds"),
    [
        ("policy.interpolation.register_interpolation", "ring", "interpolation and topology"),
        ("policy.topology.register_topology", "noloco", "algorithm and topology"),
        ("algorithms.register_algorithm", "loss", "interpolation and algorithm"),
        ("algorithms.register_algorithm", "clip", "algorithm and robust"),
        ("policy.topology.register_topology", "topology", "a setting and topology"),
    ],
)
def test_a_plugin_cannot_take_a_name_of_another_kind(
    register: str, name: str, kinds: str, tmp_path: Path
) -> None:
    module, _, function = register.rpartition(".")
    what = "type('Own', (Algorithm,), {})" if "algorithm" in register else "lambda *known: 0.5"
    (tmp_path / "taking.py").write_text(
        f"from dpwa.{module} import {function}\nfrom dpwa.algorithms import Algorithm\n"
        f"{function}({name!r})({what})\n"
    )
    assert problems_of("plugins: [taking]\n", tmp_path) == [
        f"2:10: plugins: expected methods with unique names (got {name}, used by both {kinds})"
    ]


def test_options_under_a_name_that_is_taken_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "taking.py").write_text(RULES.replace('"needy"', '"star"'))
    text = "plugins: [taking]\ntopology: star\nstar: {center: 0}\n"
    found = problems_of(text, tmp_path)
    assert "plugins: expected methods with unique names (got star, used by " in found[0]


THREE = "nodes: [{name: w1, port: 1}, {name: w2, port: 2}, {name: w3, port: 3}]\n"


def test_a_module_beside_the_file_brings_its_algorithms_and_topologies(tmp_path: Path) -> None:
    text = "plugins: [own_algorithms]\nalgorithm: own\nown: {reach: 4}\ntopology: chain\n"
    config = load(text, tmp_path, nodes=THREE, DPWA_CHAIN__REACH="2")
    assert (config.algorithm, config.topology) == ("own", "chain")
    assert config.options_of("own").model_dump() == {"reach": 4}
    assert config.options_of("chain").model_dump() == {"reach": 2}
    assert load_config(config.to_mapping(), environ={}) == config
    described = config_schema()["$defs"]["Config"]["properties"]
    assert "own" in described["algorithm"]["enum"]
    assert described["chain"]["description"].endswith("The nodes before and after on a line.")


def test_an_algorithm_of_ones_own_may_use_rules_and_parts(tmp_path: Path) -> None:
    text = "plugins: [own_algorithms]\nalgorithm: own\ninterpolation: loss\nfraction: 0.5\n"
    assert load(text, tmp_path).interpolation == "loss"


def test_transactions_of_ones_own_keep_sums_exact_too(tmp_path: Path) -> None:
    text = "plugins: [own_algorithms]\nalgorithm: own-transactions\ncodec: int8\n"
    assert problems_of(text, tmp_path) == [
        "4:8: codec: expected none, because algorithm: own-transactions must keep its sums exact "
        "(got int8)"
    ]


@pytest.mark.parametrize(
    ("topology", "problem"),
    [
        ("next", "expected a path from every node to every other node (the parameters of w1 "
         "never reach w2)"),
        ("self", "topology 'self' returned [0] for node 0 of 3 in round 0. Expected distinct other "
         "nodes from 0 to 2"),
        ("chain\nchain: {reach: 3}", "expected neighbours from chain (got KeyError: 'reach')"),
    ],
)  # fmt: skip
def test_a_topology_of_ones_own_must_work(topology: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "own_algorithms.py").write_text(ALGORITHMS)
    path = tmp_path / "run.yaml"
    path.write_text(f"{THREE}plugins: [own_algorithms]\ntopology: {topology}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    assert caught.value.problems == (f"{path}:3:11: topology: {problem}",)


def test_methods_get_the_benefit_of_the_doubt_while_a_plugin_is_broken(tmp_path: Path) -> None:
    text = "plugins: [no_such]\nalgorithm: theirs\ntheirs: {x: 1}\ntopology: also\nrobust: x\n"
    found = problems_of(text, tmp_path)
    assert [problem.split(" ")[1] for problem in found] == ["plugins[0]:", "robust:"]
