"""What loads, and to which values."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from dpwa.algorithms.lsgd import LSGDOptions
from dpwa.config import Config, NodeConfig, load_config
from dpwa.config.methods import ClipOptions
from dpwa.errors import ConfigError, UnknownNameError
from dpwa.policy.interpolation import ConstantOptions, NoOptions
from dpwa.policy.topology import StarOptions

LIST_FORM = """\
- nodes:
  - {name: w1, host: localhost, port: 45000}
  - {name: w2, host: 10.0.0.2, port: 45000}
- fetch_probability: 1        # Bernoulli trial at every update_send
- timeout_ms: 2500            # bound on waiting for a peer
- interpolation: constant     # or clock, loss
- divergence_threshold: 0.2   # 0 = off
- constant: {value: 0.25}
- clock: 0                    # 0 = no options
- loss: 0
"""
MAPPING_FORM = """\
constant: {value: 0.25}
timeout_ms: 2500
fetch_probability: 1.0
divergence_threshold: 0.2
nodes:
- name: w1
  port: 45000
- name: w2
  host: 10.0.0.2
  port: 45000
"""
TWO_NODES = "nodes: [{name: w1, port: 1}, {name: w2, port: 2}]\n"
CONFIGS = Path(__file__).parents[2] / "configs"


def load_text(text: str, folder: Path) -> Config:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environ={})


def test_both_forms_load_to_the_same_object_but_for_the_rule_of_2017(tmp_path: Path) -> None:
    loaded = load_text(LIST_FORM, tmp_path)
    mapping = load_text(MAPPING_FORM, tmp_path)
    assert (loaded.merge, mapping.merge) == ("interpolate", "delta")
    assert loaded == mapping.model_copy(update={"merge": "interpolate"})
    assert load_text(LIST_FORM + "- merge: delta\n", tmp_path) == mapping
    assert loaded.nodes[1] == NodeConfig(name="w2", host="10.0.0.2", port=45000)
    assert loaded.divergence_threshold == 0.2
    assert loaded.options_of("constant") == ConstantOptions(value=0.25)


@pytest.mark.parametrize("text", [LIST_FORM, MAPPING_FORM])
def test_what_yaml_loads_can_be_passed_as_well(text: str, tmp_path: Path) -> None:
    assert load_config(yaml.safe_load(text), environ={}) == load_text(text, tmp_path)


def test_defaults_are_those_of_2017_but_for_the_merge(tmp_path: Path) -> None:
    config = load_text(TWO_NODES, tmp_path)
    assert config == Config(
        nodes=(NodeConfig(name="w1", port=1), NodeConfig(name="w2", port=2)),
        fetch_probability=1.0,
        timeout_ms=2500,
        algorithm="gossip",
        topology="random",
        interpolation="constant",
        divergence_threshold=0.0,
        merge="delta",
        buffers="average",
        robust="none",
        quarantine_s=0.0,
        loss_window=50,
        leader_silence_s=10.0,
        lr_spread="none",
        seed=None,
        log_level="warning",
        plugins=(),
    )
    assert config.nodes[0].host == "localhost"
    assert (config.nodes[0].group, config.nodes[0].bind) == (None, None)


def test_a_loaded_config_is_returned_as_it_is() -> None:
    config = Config(nodes=(NodeConfig(name="w1", port=1),))
    assert load_config(config, environ={"DPWA_SEED": "5", "DPWA_TYPO": "1"}) is config


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("divergence_threshold: 1e-3", "divergence_threshold", 0.001),
        ("divergence_threshold: off", "divergence_threshold", 0.0),
        ("divergence_threshold: No", "divergence_threshold", 0.0),
        ("fetch_probability: .5", "fetch_probability", 0.5),
        ("fetch_probability: off", "fetch_probability", 0.0),
        ('fetch_probability: "0.5"', "fetch_probability", 0.5),
        ("timeout_ms: 2500.0", "timeout_ms", 2500),
        ("timeout_ms: 1_000", "timeout_ms", 1000),
        ("timeout_ms: 1e3", "timeout_ms", 1000),
        ("timeout_ms: 0500", "timeout_ms", 500),
        ("seed: off", "seed", None),
        ("seed: ~", "seed", None),
        ("seed: 9223372036854775807", "seed", 2**63 - 1),
        ("log_level: DEBUG", "log_level", "debug"),
        ("merge: 'delta'", "merge", "delta"),
        ("algorithm: noloco", "algorithm", "noloco"),
        ("topology: 'ring'", "topology", "ring"),
        ("robust: Clip", "robust", "clip"),
        ("quarantine_s: off", "quarantine_s", 0.0),
        ("quarantine_s: 1e2", "quarantine_s", 100.0),
        ("loss_window: 1_000", "loss_window", 1000),
        ("leader_silence_s: .5", "leader_silence_s", 0.5),
        ("lr_spread: POWER", "lr_spread", "power"),
    ],
)
def test_scalars_mean_what_a_person_means(
    line: str, key: str, value: object, tmp_path: Path
) -> None:
    found = getattr(load_text(TWO_NODES + line, tmp_path), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("name", ["on", "no", "off", "null_", "1", "1e-3", "007", "0x10", "y"])
def test_names_keep_their_text(name: str, tmp_path: Path) -> None:
    config = load_text(f"nodes: [{{name: {name}, port: 1, group: {name}}}]", tmp_path)
    assert (config.nodes[0].name, config.nodes[0].group) == (name, name)


class Picked(str, Enum):
    GOSSIP = "gossip"


def test_a_text_enum_stands_for_its_text() -> None:
    nodes = [{"name": "w1", "port": 4000}]
    assert load_config({"nodes": nodes, "algorithm": Picked.GOSSIP}).algorithm == "gossip"


def test_an_array_in_place_of_a_name_is_one_mistake() -> None:
    nodes = [{"name": "w1", "port": 4000}]
    for key in ("algorithm", "topology", "interpolation", "codec"):
        with pytest.raises(ConfigError, match=key):
            load_config({"nodes": nodes, key: np.array(["gossip", "ring"])})


def test_a_program_may_teach_the_loader_of_its_own_files(monkeypatch, tmp_path: Path) -> None:
    resolvers = {None: [("!env", re.compile(r".*\$\{.*"))]}
    monkeypatch.setattr(yaml.SafeLoader, "yaml_implicit_resolvers", resolvers)
    monkeypatch.setattr(yaml.SafeLoader, "yaml_path_resolvers", {((), None): "!root"})
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes: [{name: w1, port: 4000}]\nrun_log: a${x}\n")
    assert load_config(file).run_log.endswith("a${x}")


def test_numbers_of_python_can_name_groups() -> None:
    config = load_config({"nodes": [{"name": "a", "port": 1.0, "group": 0}]}, environ={})
    assert config.nodes == (NodeConfig(name="a", port=1, group="0"),)


def test_numbers_of_python_can_name_folders() -> None:
    config = load_config({"nodes": [{"name": "a", "port": 1}], "run_log": 7}, environ={})
    assert config.run_log == str(Path("7").absolute())


@pytest.mark.parametrize("options", ["0", "", "off", "~", "{}", "0.0", "false", '"off"'])
def test_no_options_can_be_written_in_many_ways(options: str, tmp_path: Path) -> None:
    names = (
        "constant",
        "clock",
        "lsgd",
        "push_sum",
        "noloco",
        "local",
        "elastic",
        "star",
        "ring",
        "clip",
    )
    config = load_text(TWO_NODES + "\n".join(f"{n}: {options}" for n in names), tmp_path)
    assert config.options_of("lsgd") == LSGDOptions(c1=0.1, c2=0.1, p1=0.1, p2=0.1)
    assert config.options_of("star") == StarOptions(center=0)
    assert config.options_of("clip") == ClipOptions(quantile=0.5, window=50)
    assert config.options_of("constant") == ConstantOptions(value=0.5)
    assert config.options_of("clock") == NoOptions()
    assert config == load_text(TWO_NODES, tmp_path)


def test_aliases_and_merge_keys_are_followed(tmp_path: Path) -> None:
    text = """\
nodes:
- &first {name: w1, host: 10.0.0.1, port: 45000, group: left}
- {<<: *first, name: w2, port: 45001}
- {name: w3, port: 45002, <<: [*first, {bind: "*"}]}
"""
    nodes = load_text(text, tmp_path).nodes
    assert [(n.name, n.host, n.port, n.group, n.bind) for n in nodes] == [
        ("w1", "10.0.0.1", 45000, "left", None),
        ("w2", "10.0.0.1", 45001, "left", None),
        ("w3", "10.0.0.1", 45002, "left", "*"),
    ]


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + LIST_FORM.replace("\n", "\r\n").encode())
    assert load_config(str(path), environ={}) == load_text(LIST_FORM, tmp_path / ".")


def test_peers_are_all_the_others() -> None:
    config = load_config({"nodes": [{"name": n, "port": p} for p, n in enumerate("abc", 1)]})
    assert config.node("b").port == 2
    assert [peer.name for peer in config.peers_of("b")] == ["a", "c"]


def test_an_unknown_node_is_refused_with_the_known_names() -> None:
    config = load_config({"nodes": [{"name": "worker1", "port": 1}, {"name": "b", "port": 2}]})
    expected = r"no node is named 'worker'. Did you mean worker1\? \(known: worker1, b\)"
    for ask in (config.node, config.peers_of):
        with pytest.raises(UnknownNameError, match=expected):
            ask("worker")


def test_options_of_an_unknown_name_are_refused_with_the_known_names() -> None:
    config = load_config({"nodes": [{"name": "a", "port": 1}]}, environ={})
    expected = (
        r"^no interpolation rule, algorithm, topology or kind of robust merging is named "
        r"'nolocco'. Did you mean noloco\? \(known: constant, .*, gossip, .*, random, .*, clip\) "
        r"\[DPWA-E015\]$"
    )
    with pytest.raises(UnknownNameError, match=expected):
        config.options_of("nolocco")


def test_a_config_is_a_frozen_value() -> None:
    config = load_config({"nodes": [{"name": "a", "port": 1}], "constant": {"value": 0.1}})
    with pytest.raises(ValidationError, match="frozen"):
        config.timeout_ms = 1  # type: ignore[misc]
    assert hash(config) == hash(config.model_copy())
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_config_built_by_hand_is_checked_too() -> None:
    node = NodeConfig(name="a", port=1)
    with pytest.raises(ValidationError, match="unique name"):
        Config(nodes=(node, node))
    with pytest.raises(ValidationError, match="one of constant"):
        Config(nodes=(node,), interpolation="typo")


def test_the_samples_load() -> None:
    files = sorted(CONFIGS.glob("*.yaml"))
    assert len(files) >= 4
    for file in files:
        assert len(load_config(file, environ={}).nodes) == 4


def test_importing_the_configuration_does_not_import_torch() -> None:
    code = "import dpwa.config, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("source", [None, 5, b"run.yaml", {1, 2}])
def test_other_sources_are_refused(source: object) -> None:
    with pytest.raises(ConfigError, match=r"^<config>: expected a mapping, or"):
        load_config(source, environ={})  # type: ignore[arg-type]


def node(**values: object) -> NodeConfig:
    return load_config({"nodes": [{"name": "w1", **values}]}, environ={}).nodes[0]


@pytest.mark.parametrize(
    ("values", "connect", "listen"),
    [
        ({"port": 1}, "tcp://localhost:1", "tcp://localhost:1"),
        ({"host": "h.example", "port": 1, "bind": "*"}, "tcp://h.example:1", "tcp://*:1"),
        ({"host": "::1", "port": 1}, "tcp://[::1]:1", "tcp://[::1]:1"),
        ({"endpoint": "tcp://[::1]:1", "bind": "::"}, "tcp://[::1]:1", "tcp://[::]:1"),
        ({"endpoint": "ipc:///run/w1"}, "ipc:///run/w1", "ipc:///run/w1"),
    ],
)
def test_a_node_says_where_to_connect_and_where_to_listen(
    values: dict[str, object], connect: str, listen: str
) -> None:
    assert (node(**values).connect_endpoint, node(**values).listen_endpoint) == (connect, listen)


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [("tcp://[::1]:45000", "::1"), ("tcp://h.example:45000", "h.example")],
)
def test_a_tcp_endpoint_is_the_same_as_host_and_port(endpoint: str, host: str) -> None:
    assert node(endpoint=endpoint) == node(host=host, port=45000)
    assert node(endpoint=endpoint).port == 45000


def test_the_path_of_an_endpoint_has_at_most_100_bytes() -> None:
    assert node(endpoint="ipc:///" + "é" * 49 + "x").port is None
    with pytest.raises(ConfigError, match="at most 100 bytes"):
        node(endpoint="ipc:///" + "é" * 50)


def test_the_codec_is_that_of_the_link_then_of_the_serving_node_then_of_the_run() -> None:
    nodes = [{"name": f"w{n}", "port": n, "codec": "int8" if n == 1 else None} for n in (1, 2, 3)]
    links = [{"between": ["w1", "w2"], "codec": "bf16"}]
    config = load_config({"nodes": nodes, "links": links, "codec": "fp16"}, environ={})
    names = ["w1", "w2", "w3"]
    used = {(s, r): config.codecs_for(r)(s) for s in names for r in names}
    assert used["w1", "w2"] == used["w2", "w1"] == "bf16"
    assert used["w1", "w3"] == "int8"
    assert used["w3", "w1"] == used["w2", "w3"] == used["w3", "w2"] == "fp16"
    assert config.codecs_for("w1")("joined later") == "fp16"
    assert config.codecs_for("joined later")("w1") == "int8"


@pytest.mark.parametrize("nothing", [0, False, None, "off", {}])
def test_a_setting_without_options_has_its_defaults(nothing: object) -> None:
    config = load_config({"nodes": [{"name": "w1", "port": 1}], "checkpoint": nothing}, environ={})
    assert (config.checkpoint.keep, config.checkpoint.every_steps) == (3, 1000)


def test_off_as_other_readers_of_yaml_understand_it_switches_the_guard_off() -> None:
    source = yaml.safe_load("{nodes: [{name: w1, port: 1}], guard: off}")
    assert source["guard"] is False
    assert load_config(source, environ={}).guard == "off"
