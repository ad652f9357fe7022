"""What a configuration writes, it reads back."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from dpwa.config import Config, NodeConfig, load_config
from dpwa.config.schema import config_text, local_nodes, setting_names

LABELS = st.one_of(
    st.sampled_from(["on", "off", "no", "1", "1e-3", "0x1", "-", "--", ".", "1_0", "2020-01-01"]),
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
)
HOSTS = st.one_of(
    st.sampled_from(["localhost", "::1", "fe80::1%eth0", "no", "1.5", "_x"]),
    st.from_regex(r"[a-z0-9.-]{1,30}", fullmatch=True),
)
CODECS = st.sampled_from(["none", "fp16", "bf16", "int8"])
SHARES = st.floats(0.0, 1.0, exclude_min=True)
FRACTIONS = st.floats(0.0, 1.0)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "fetch_probability": FRACTIONS,
        "timeout_ms": st.integers(1, 3_600_000),
        "interpolation": st.sampled_from(["constant", "clock", "loss", "leader"]),
        "divergence_threshold": st.floats(0.0, allow_nan=False, allow_infinity=False),
        "merge": st.sampled_from(["interpolate", "delta"]),
        "buffers": st.sampled_from(["average", "keep"]),
        "transport": st.sampled_from(["auto", "tcp", "shm"]),
        "slots": st.integers(2, 16),
        "codec": CODECS,
        "checkpoint": st.sampled_from([0, None, "off"])
        | st.fixed_dictionaries(
            {"keep": st.integers(1, 9)}, optional={"every_steps": st.integers(1)}
        ),
        "fraction": SHARES,
        "guard": st.sampled_from(["finite", "off", False]),
        "seed": st.none() | st.integers(0, 2**63 - 1),
        "log_level": st.sampled_from(["debug", "info", "warning", "error"]),
        "constant": st.just(0) | st.fixed_dictionaries({"value": FRACTIONS}),
        "leader": st.none() | st.fixed_dictionaries({"strength": FRACTIONS}),
        "robust": st.just("none"),
        "quarantine_s": st.floats(0.0, 1e9),
        "loss_window": st.integers(1, 100_000),
        "leader_silence_s": st.floats(1e-3, 1e9),
        "lr_spread": st.sampled_from(["none", "linear", "power"]),
        "topology": st.sampled_from(["random", "full", "ring", "torus", "star", "small_world"]),
        "lsgd": st.fixed_dictionaries({}, optional={"c1": FRACTIONS, "global_period": st.just(8)}),
        "push_sum": st.fixed_dictionaries({"probability": FRACTIONS}),
        "noloco": st.fixed_dictionaries({"alpha": st.floats(0.0, 0.8), "period": st.integers(1)}),
        "elastic": st.fixed_dictionaries({"beta": st.floats(0.01, 0.99), "period": st.integers(1)}),
        "local": st.fixed_dictionaries({"lr": st.floats(0.1, 0.7), "momentum": st.floats(0, 0.9)}),
        "torus": st.fixed_dictionaries({"columns": st.none() | st.integers(1, 5)}),
        "small_world": st.fixed_dictionaries({"rewired": FRACTIONS, "neighbours": st.just(2)}),
        "clip": st.just(0) | st.fixed_dictionaries({"quantile": FRACTIONS}),
    },
)
# What each of these has no use for, in place of what is drawn.
WHOLE = {"fraction": 1.0}
OWN_RULE = {"interpolation": "constant", "divergence_threshold": 0.0, "merge": "delta"}
JUMPS = {**WHOLE, **OWN_RULE, "quarantine_s": 0.0}
OTHERS = st.sampled_from(
    [
        {},
        {"algorithm": "gossip"},
        {"robust": "clip", "fraction": 1.0},
        {"algorithm": "lsgd", "topology": "random", **JUMPS},
        {"algorithm": "noloco", "robust": "clip", **JUMPS},
        {"algorithm": "local", **JUMPS},
        {"algorithm": "elastic", **JUMPS},
    ]
)
EXACT = st.sampled_from(["symmetric", "push_sum"])


@st.composite
def addresses(draw: st.DrawFn, index: int) -> dict[str, object]:
    host_and_port = {
        "host": draw(HOSTS),
        "port": 1 + index,
        "bind": draw(st.none() | st.sampled_from(["*", "0.0.0.0"]) | HOSTS),
    }
    path = draw(st.from_regex(r"(/[a-z .:'#-]{1,9}){1,5}x", fullmatch=True))
    endpoints = [
        f"ipc://{path}{index}",
        f"tcp://10.0.0.1:{101 + index}",
        f"tcp://[::2]:{1 + index}",
    ]
    return draw(st.sampled_from([host_and_port, *({"endpoint": found} for found in endpoints)]))


@st.composite
def configs(draw: st.DrawFn) -> Config:
    names = draw(st.lists(LABELS, min_size=1, max_size=4, unique=True))
    nodes = [
        {
            "name": name,
            "group": draw(st.none() | LABELS),
            "codec": draw(st.none() | CODECS),
            **draw(addresses(index)),
        }
        for index, name in enumerate(names)
    ]
    pairs = list(itertools.combinations(names, 2))
    linked = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    links = [{"between": list(pair), "codec": draw(CODECS)} for pair in linked]
    chosen = {"nodes": nodes, "links": links, **draw(SETTINGS), **draw(OTHERS)}
    return load_config(chosen, environ={})


@st.composite
def exact_configs(draw: st.DrawFn) -> Config:
    names = draw(st.lists(LABELS, min_size=1, max_size=4, unique=True))
    nodes = [{"name": name, "port": 1 + index} for index, name in enumerate(names)]
    plain = {"codec": "none", **OWN_RULE, **WHOLE}
    chosen = {"nodes": nodes, **draw(SETTINGS), **plain, "algorithm": draw(EXACT)}
    return load_config(chosen, environ={})


def reload(text: str) -> Config:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, environ={})


@examples(50)
@given(configs() | exact_configs())
def test_yaml_loads_to_an_equal_object(config: Config) -> None:
    assert reload(config.to_yaml()) == config


@examples(50)
@given(configs() | exact_configs())
def test_the_mapping_loads_to_an_equal_object_in_both_forms(config: Config) -> None:
    mapping = config.to_mapping()
    assert load_config(mapping, environ={}) == config
    assert load_config([{key: value} for key, value in mapping.items()], environ={}) == config


@examples(50)
@given(configs())
def test_a_new_configuration_holds_the_nodes_it_was_made_for(config: Config) -> None:
    assert reload(config_text(config.nodes)) == Config(nodes=config.nodes, merge="delta")


def test_defaults_are_filled_in() -> None:
    config = Config(nodes=(NodeConfig(name="w1", port=1),), interpolation="leader")
    written = yaml.safe_load(config.to_yaml())
    assert list(written) == [*setting_names(), "leader"]
    assert written["leader"] == {"strength": 0.1}
    assert written["nodes"] == [{"name": "w1", "host": "localhost", "port": 1}]


def test_options_of_what_is_selected_are_written() -> None:
    nodes = (NodeConfig(name="w1", port=1), NodeConfig(name="w2", port=2))
    config = Config(nodes=nodes, algorithm="noloco", topology="star", robust="clip")
    written = yaml.safe_load(config.to_yaml())
    assert list(written)[-4:] == ["constant", "noloco", "star", "clip"]
    assert written["noloco"] == {"period": 50, "alpha": 0.5, "beta": 0.7, "gamma": 0.7}
    assert (written["star"], written["clip"]) == ({"center": 0}, {"quantile": 0.5, "window": 50})
    assert reload(config.to_yaml()) == config


def test_a_new_configuration_explains_every_setting() -> None:
    lines = config_text(local_nodes([7000, 7001])).splitlines()
    keys = [index for index, line in enumerate(lines) if line[:1].isalpha()]
    assert len(keys) == len(setting_names()) + 1  # and the options of the rule in use
    assert all(lines[index - 1].startswith("# ") for index in keys)
    assert "  - {name: w2, host: localhost, port: 7001}" in lines
