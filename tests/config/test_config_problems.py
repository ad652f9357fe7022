"""Mistakes: all at once, in order, with positions and words for people."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.examples import examples
from support.times import at_most

from dpwa.algorithms import algorithm_names
from dpwa.config import Config, NodeConfig, load_config
from dpwa.config.methods import method_names, methods
from dpwa.config.model import CheckpointOptions, LinkConfig
from dpwa.config.schema import LISTS, options_model, setting_names
from dpwa.errors import ConfigError, without_codes
from dpwa.policy.topology import topology_names

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "configuration.md"
SETTINGS = DOCUMENTATION.with_name("settings.md")

NODES = "nodes: [{name: w1, port: 1}]\n"


def problems_of(text: str | bytes, folder: Path) -> list[str]:
    """Load a file that has mistakes and return them, without the folder."""
    path = folder / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    lines = str(caught.value).splitlines()
    assert all(re.search(r" \[DPWA-E\d{3}\]$", line) for line in lines)
    assert [without_codes(line) for line in lines] == list(caught.value.problems)
    return [problem.removeprefix(f"{folder}{os.sep}") for problem in caught.value.problems]


def test_five_planted_mistakes_are_all_reported_with_line_and_column(tmp_path: Path) -> None:
    text = """\
- nodes:
  - {name: w1, host: localhost, port: 45000}
  - {name: w1, host: localhost, port: 99999}
- timeot_ms: 2500
- fetch_probability: 1.5
- interpolation: los
- constant: {value: half}
"""
    assert problems_of(text, tmp_path) == [
        "run.yaml:3:12: nodes[1].name: expected a unique name (got w1, already used by nodes[0])",
        "run.yaml:3:39: nodes[1].port: expected a whole number from 1 to 65535 (got 99999)",
        "run.yaml:4:3: timeot_ms: unknown key. Did you mean timeout_ms?",
        "run.yaml:5:22: fetch_probability: expected a number from 0 to 1 (got 1.5)",
        "run.yaml:6:18: interpolation: expected one of constant, clock, loss, leader (got los). "
        "Did you mean loss?",
        "run.yaml:7:21: constant.value: expected a number from 0 to 1 (got half)",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("timeout_ms: 0", "2:13: timeout_ms: expected a whole number from 1 to 3600000 (got 0)"),
        ("timeout_ms: .5", "2:13: timeout_ms: expected a whole number from 1 to 3600000 (got .5)"),
        ("timeout_ms: on", "2:13: timeout_ms: expected a whole number from 1 to 3600000 (got on)"),
        (
            "timeout_ms: ",
            "2:12: timeout_ms: expected a whole number from 1 to 3600000 (got nothing)",
        ),
        (
            "timeout_ms: {a: 1}",
            "2:13: timeout_ms: expected a whole number from 1 to 3600000 (got a mapping)",
        ),
        (
            "timeout_ms: " + "9" * 5000,
            f"2:13: timeout_ms: expected a whole number from 1 to 3600000 (got {'9' * 57}...)",
        ),
        (
            "fetch_probability: true",
            "2:20: fetch_probability: expected a number from 0 to 1 (got true)",
        ),
        (
            "fetch_probability: [1]",
            "2:20: fetch_probability: expected a number from 0 to 1 (got a list)",
        ),
        (
            "divergence_threshold: .inf",
            "2:23: divergence_threshold: expected a finite number of at least 0 (got .inf)",
        ),
        (
            "divergence_threshold: .NaN",
            "2:23: divergence_threshold: expected a finite number of at least 0 (got .NaN)",
        ),
        (
            "divergence_threshold: 22:22",
            "2:23: divergence_threshold: expected a number of at least 0 (got 22:22)",
        ),
        (
            "merge: delat",
            "2:8: merge: expected one of interpolate, delta (got delat). Did you mean delta?",
        ),
        ("transport: rdma", "2:12: transport: expected one of auto, tcp, shm (got rdma)"),
        ("slots: 17", "2:8: slots: expected a whole number from 2 to 16 (got 17)"),
        (
            "codec: int7",
            "2:8: codec: expected one of none, fp16, bf16, int8 (got int7). Did you mean int8?",
        ),
        (
            "codec: topk",
            "2:8: codec: expected fraction: 0.05 with codec: int8, because the codec topk was "
            "removed "
            "(got topk)",
        ),
        (
            "topk: {keep: 0.1}",
            "2:1: topk: unknown key, expected fraction: 0.05 with codec: int8, because the codec "
            "topk "
            "was removed",
        ),
        ("checkpoint: 5", "2:13: checkpoint: expected a mapping with dir, every_steps, keep, or 0 "
         "for the defaults (got 5)"),
        ("checkpoint: {keeps: 1}", "2:14: checkpoint.keeps: unknown key. Did you mean keep?"),
        ("fraction: off", "2:11: fraction: expected a number above 0 and of at most 1 (got off)"),
        ("guard: nan", "2:8: guard: expected one of finite, off (got nan)"),
        ("links: {}", "2:8: links: expected a list (got a mapping)"),
        ("buffers: off", "2:10: buffers: expected one of average, keep (got off)"),
        ("log_level: 3", "2:12: log_level: expected one of debug, info, warning, error (got 3)"),
        (
            "seed: -1",
            "2:7: seed: expected a whole number from 0 to 9223372036854775807 or nothing (got -1)",
        ),
        ("plugins: rules", "2:10: plugins: expected a list (got rules)"),
        (
            "plugins: [a-b]",
            "2:11: plugins[0]: expected the name of a Python module, such as my_rules or "
            "package.rules (got a-b)",
        ),
        (
            "constant: 5",
            "2:11: constant: expected a mapping with value, or 0 for the defaults (got 5)",
        ),
        (
            "constant: on",
            "2:11: constant: expected a mapping with value, or 0 for the defaults (got on)",
        ),
        ("constant: {valeu: 1}", "2:12: constant.valeu: unknown key. Did you mean value?"),
        ("clock: [0]", "2:8: clock: expected 0, for no options (got a list)"),
        ("clock: {value: 1}", "2:9: clock.value: unknown key, expected none"),
        ("leader: {strength: 2}", "2:20: leader.strength: expected a number from 0 to 1 (got 2)"),
        (
            "quite_else: 1",
            "2:1: quite_else: unknown key, expected one of nodes, fetch_probability, timeout_ms, "
            "algorithm, topology, interpolation, divergence_threshold, merge, buffers, transport, "
            "slots, codec, links, fraction, guard, robust, repeat, "
            "quarantine_s, loss_window, leader_silence_s and ",
        ),
        (
            "algorithm: push-sum",
            "2:12: algorithm: expected one of elastic, gossip, local, lsgd, noloco, outer, "
            "push_sum, symmetric, together (got push-sum). Did you mean push_sum?",
        ),
        ("algorithm: clip", "2:12: algorithm: expected one of elastic, gossip, "),
        (
            "topology: rnig",
            "2:11: topology: expected one of random, full, ring, grid, torus, exponential, "
            "one_peer_exponential, star, small_world, file (got rnig). Did you mean ring?",
        ),
        ("robust: clib", "2:9: robust: expected one of none, clip (got clib). Did you mean clip?"),
        ("lr_spread: log", "2:12: lr_spread: expected one of none, linear, power (got log)"),
        (
            "consensus_control: 0",
            "2:1: consensus_control: unknown key, expected algorithm: symmetric or together, which "
            "keep nodes closer, because consensus_control was removed",
        ),
        ("quarantine_s: .inf", "2:15: quarantine_s: expected a finite number of at least 0 (got "
         ".inf)"),
        ("loss_window: off", "2:14: loss_window: expected a whole number from 1 to 100000 (got "
         "off)"),
        ("leader_silence_s: 0", "2:19: leader_silence_s: expected a number above 0 (got 0)"),
        ("lsgd: {c1: 1.5}", "2:12: lsgd.c1: expected a number from 0 to 1 (got 1.5)"),
        ("lsgd: {local_period: 0}", "2:22: lsgd.local_period: expected a whole number of at least "
         "1 or nothing (got 0)"),
        ("lsgd: {global_period: 18}", "2:23: lsgd.global_period: expected a multiple of "
         "local_period (4) (got 18)"),
        ("lsgd: {local_period: 5}", "2:7: lsgd.global_period: missing, expected a multiple of "
         "local_period (5)"),
        ("lsgd: {gobal_period: 8}", "2:8: lsgd.gobal_period: unknown key. Did you mean "
         "global_period?"),
        ("push_sum: {probability: 2}", "2:25: push_sum.probability: expected a number from 0 to 1 "
         "(got 2)"),
        ("symmetric: {factor: 1}", "2:13: symmetric.factor: unknown key, expected none"),
        ("gossip: 1", "2:9: gossip: expected 0, for no options (got 1)"),
        ("noloco: {gamma: 1.5}", "2:17: noloco.gamma: expected a number below 1.5, which is "
         "2(1 - alpha^2) for alpha 0.5, so that nodes do not diverge from each other (got 1.5)"),
        ("noloco: {gamma: .4, alpha: .9}", "2:17: noloco.gamma: expected a number below 0.38, "
         "which is 2(1 - alpha^2) for alpha 0.9, so that nodes do not diverge from each other "
         "(got .4)"),
        ("noloco: {alpha: .9}", "2:9: noloco.gamma: missing, expected a number below 0.38, which "
         "is 2(1 - alpha^2) for alpha 0.9, so that nodes do not diverge from each other"),
        ("noloco: {alpha: 1}", "2:17: noloco.alpha: expected a number of at least 0 and below 1 "
         "(got 1)"),
        ("noloco: {beta: 0}", "2:16: noloco.beta: expected a number above 0 (got 0)"),
        ("local: {momentum: .9, lr: 1.4}", "2:27: local.lr: expected a number below 1.357, the "
         "limit for momentum 0.9, because otherwise the outer steps diverge if the inner steps "
         "reach a minimum (got 1.4)"),
        ("local: {lr: 2}", "2:13: local.lr: expected a number below 2, the limit for momentum 0, "
         "because otherwise the outer steps diverge if the inner steps reach a minimum (got 2)"),
        ("small_world: {neighbours: 3}", "2:27: small_world.neighbours: expected an even number of "
         "at least 2 (got 3)"),
        ("file: {}", "2:7: file.path: missing, expected text"),
        ("topology: file", "2:11: file.path: missing, expected text"),
        ("clip: {window: 4}", "2:16: clip.window: expected a whole number of at least 5 (got 4)"),
        ("avg_size: 10", "2:1: avg_size: unknown key, expected loss_window (see "
         "docs/migration.md)"),
        ("lsgd: {l_comm: 4}", "2:8: lsgd.l_comm: unknown key, expected lsgd.local_period, this "
         "value times the number of nodes (see docs/migration.md)"),
        ("allow: {a b: '%s'}" % ("0" * 40), "2:9: allow.a b: expected 1 to 64 letters, digits, "
         "dots, underscores or hyphens (got a b)"),
        ("zzz: 1", "2:1: zzz: unknown key, expected one of nodes, "),
        ("Seed: 1", "2:1: Seed: unknown key. Did you mean seed?"),
        ('"of two\\nlines": 1', '2:1: "of two\\nlines": unknown key, expected one of nodes, '),
        ("? [a, b]\n: 1", '2:3: ?: expected text as the key (got a list)'),
        (
            "merge: !!python/object/apply:os.system [ls]",
            "2:8: merge: expected a value without a tag (got !!python/object/apply:os.system)",
        ),
        ("seed: !secret 5", "2:7: seed: expected a value without a tag (got !secret)"),
        ("<<: 5", '2:5: <<: expected an alias of a mapping, or a list of such aliases'),
        (
            "constant: &a {value: *a}",
            "2:11: constant.value: expected a value that does not contain itself",
        ),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_explained(line: str, problem: str, tmp_path: Path) -> None:
    found = problems_of(NODES + line, tmp_path)
    assert len(found) == 1
    assert found[0].startswith(f"run.yaml:{problem}")
    if not problem.endswith(" "):
        assert found[0] == f"run.yaml:{problem}"


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("{name: a b, port: 1}", "1:16: nodes[0].name: expected 1 to 64 letters, digits, dots, "
         "underscores or hyphens (got a b)"),
        ("{name: '', port: 1}", "1:16: nodes[0].name: expected 1 to 64 letters, digits, dots, "
         'underscores or hyphens (got "")'),
        ("{name: a}", "1:9: nodes[0].port: missing, expected a whole number from 1 to 65535, "
         "or an endpoint"),
        ("{port: 1}", "1:9: nodes[0].name: missing, expected text"),
        ("{name: a, port: 22:22}", "1:25: nodes[0].port: expected a whole number from 1 to 65535 "
         "(got 22:22)"),
        ("{name: a, port: off}", "1:25: nodes[0].port: expected a whole number from 1 to 65535 "
         "(got off)"),
        ("{name: a, port: 1, host: 'h:2'}", "1:34: nodes[0].host: expected a host name or IP "
         "address without scheme, port or brackets (got h:2)"),
        ("{name: a, port: 1, bind: 'tcp://*'}", "1:34: nodes[0].bind: expected a host name or IP "
         "address without scheme, port or brackets (got tcp://*)"),
        ("{name: a, port: 1, host: ~}", "1:34: nodes[0].host: expected text (got nothing)"),
        ("{name: a, prot: 1, port: 2}", "1:19: nodes[0].prot: unknown key. Did you mean port?"),
        ("{name: a, port: 1, port: 2}", "1:28: nodes[0].port: duplicate key, expected the key "
         "only once "
         "(first on line 1)"),
        ("{name: a, endpoint: ipc://run}", "1:29: nodes[0].endpoint: expected ipc:// and an "
         "absolute path of at most 100 bytes, or tcp://host:port (got ipc://run)"),
        ("{name: a, endpoint: ipc:///run/}", "1:29: nodes[0].endpoint: expected ipc:// and an "
         "absolute path of at most 100 bytes, or tcp://host:port (got ipc:///run/)"),
        ("{name: a, endpoint: tcp://h:65536}", "1:29: nodes[0].endpoint: expected ipc:// and an "
         "absolute path of at most 100 bytes, or tcp://host:port (got tcp://h:65536)"),
        ("{name: a, endpoint: ipc:///a, port: 1}", "1:45: nodes[0].port: expected either a port "
         "or an endpoint (got 1)"),
        ("{name: a, endpoint: tcp://h:1, host: h}", "1:29: nodes[0].endpoint: expected either "
         "host and port or an endpoint (got tcp://h:1)"),
        ("{name: a, endpoint: ipc:///a, bind: 0.0.0.0}", "1:45: nodes[0].bind: expected either "
         "bind or an endpoint (got 0.0.0.0)"),
        ("{name: a, host: 0.0.0.0, port: 1}", "1:25: nodes[0].host: expected an address that peers "
         "can reach (to listen on all addresses, set bind) (got 0.0.0.0)"),
        ("{name: a, host: '0:0:0:0:0:0:0:0', port: 1}", "1:25: nodes[0].host: expected an address "
         "that peers can reach (to listen on all addresses, set bind) (got 0:0:0:0:0:0:0:0)"),
        ("{name: a, endpoint: ~}", "1:9: nodes[0].port: missing, expected a whole number from 1 "
         "to 65535, or an endpoint"),
        ("{name: a, port: 1, codec: fp1}", "1:35: nodes[0].codec: expected one of none, fp16, "
         "bf16, int8 (got fp1). Did you mean fp16?"),
        ("{name: a, port: 1, codec: topk}", "1:35: nodes[0].codec: expected fraction: 0.05 with "
         "codec: int8, because the codec topk was removed (got topk)"),
        ("w1", "1:9: nodes[0]: expected a mapping with name, host, endpoint, port, group, "
         "bind, codec (got w1)"),
    ],
)  # fmt: skip
def test_a_wrong_node_is_explained(node: str, problem: str, tmp_path: Path) -> None:
    assert problems_of(f"nodes: [{node}]", tmp_path) == [f"run.yaml:{problem}"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "run.yaml:1:1: expected settings (the file is empty)"),
        ("# only a comment\n", "run.yaml:1:1: expected settings (the file is empty)"),
        ("nodes", "run.yaml:1:1: expected a mapping, or a list of single-key mappings (got nodes)"),
        ("!!set {a}", "run.yaml:1:1: expected a value without a tag (got !!set)"),
        ("{}", "run.yaml:1:1: nodes: missing, expected a list with at least 1 item"),
        ("[]", "run.yaml:1:1: nodes: missing, expected a list with at least 1 item"),
        ("nodes: []", "run.yaml:1:8: nodes: expected a list with at least 1 item (got a list)"),
        ("nodes:", "run.yaml:1:7: nodes: expected a list with at least 1 item (got nothing)"),
        ("nodes: [\n  {a: b", "run.yaml:2:8: expected valid YAML (while parsing a flow mapping "),
        ("a: b: c", "run.yaml:1:5: expected valid YAML (mapping values are not allowed here)"),
        ("nodes: *nobody", "run.yaml:1:8: expected valid YAML (found undefined alias 'nobody')"),
        ("a: 1\n---\nb: 1\n", "run.yaml:2:1: expected valid YAML (expected a single document"),
        ("a: b\nc: \x00", "run.yaml:2:4: expected printable text (got the character U+0000)"),
        (b"a: b\nc: d\xff", "run.yaml:2:5: expected text in UTF-8 (got the byte 0xff)"),
        (b"\xef\xbb\xbfa: \xff", "run.yaml:1:4: expected text in UTF-8 (got the byte 0xff)"),
        ("[" * 600, "run.yaml:1:100: expected settings (lists and mappings are nested too deeply)"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_configuration_is_explained(
    content: str | bytes, problem: str, tmp_path: Path
) -> None:
    found = problems_of(content, tmp_path)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_duplicate_keys_are_found_in_the_mapping_form(tmp_path: Path) -> None:
    assert problems_of(f"seed: 1\n{NODES}seed: 1\n", tmp_path) == [
        "run.yaml:3:1: seed: duplicate key, expected the key only once (first on line 1)"
    ]


def test_duplicate_keys_are_found_across_items_of_the_list_form(tmp_path: Path) -> None:
    text = "- nodes: [{name: w1, port: 1}]\n- seed: 1\n- merge: delta\n- seed: 2\n- seed: 3\n"
    assert problems_of(text, tmp_path) == [
        "run.yaml:4:3: seed: duplicate key, expected the key only once (first on line 2)",
        "run.yaml:5:3: seed: duplicate key, expected the key only once (first on line 2)",
    ]


def test_items_of_the_list_form_hold_one_key_each(tmp_path: Path) -> None:
    text = "- nodes: [{name: w1, port: 1}]\n- seed: x\n  merge: delta\n- constant\n-\n"
    assert problems_of(text, tmp_path) == [
        "run.yaml:2:3: [1]: expected a single `key: value` (got 2 keys)",
        "run.yaml:2:9: seed: expected a whole number from 0 to 9223372036854775807 or nothing "
        "(got x)",
        "run.yaml:4:3: [2]: expected a single `key: value` (got constant)",
        "run.yaml:5:2: [3]: expected a single `key: value` (got nothing)",
    ]


def test_two_nodes_cannot_share_an_address(tmp_path: Path) -> None:
    text = "nodes:\n- {name: a, port: 7}\n- {name: b, port: 7.0, host: LOCALHOST}\n"
    assert problems_of(text, tmp_path) == [
        "run.yaml:3:19: nodes[1].port: expected a unique address (got LOCALHOST:7.0, already "
        "used by nodes[0])"
    ]


@pytest.mark.parametrize(
    ("first", "second", "got"),
    [
        ("port: 7", "endpoint: 'tcp://127.0.0.1:7'", "endpoint: tcp://127.0.0.1:7"),
        ("host: '::1', port: 7", "port: 7", "port: localhost:7"),
        ("host: 'fd00::1', port: 7", "host: 'FD00:0::1', port: 7", "port: FD00:0::1:7"),
        ("endpoint: ipc:///run/a", "endpoint: 'ipc:///run/./a'", "endpoint: ipc:///run/./a"),
    ],
)
def test_an_address_in_another_spelling_is_the_same(
    first: str, second: str, got: str, tmp_path: Path
) -> None:
    (problem,) = problems_of(f"nodes:\n- {{name: a, {first}}}\n- {{name: b, {second}}}", tmp_path)
    key, _, address = got.partition(": ")
    column = 13 + second.rindex(f"{key}: ") + len(f"{key}: ")
    assert problem == (
        f"run.yaml:3:{column}: nodes[1].{key}: expected a unique address (got {address}, "
        "already used by nodes[0])"
    )


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("{between: [w1, w22], codec: int8}", "4:25: links[1].between[1]: expected one of w1, w2 "
         "(got w22). Did you mean w2?"),
        ("{between: [w2, w2], codec: int8}", "4:20: links[1].between: expected two different "
         "nodes (got w2 twice)"),
        ("{between: [w2, w1], codec: int8}", "4:20: links[1].between: expected each pair of "
         "nodes once "
         "(got w2 and w1, already used by links[0])"),
        ("{between: [w1], codec: int8}", "4:20: links[1].between: expected a list with 2 items "
         "(got a list)"),
        ("{between: w1, codec: int8}", "4:20: links[1].between: expected a list with 2 items "
         "(got w1)"),
        ("{between: [{}, w1], codec: int8}", "4:21: links[1].between[0]: expected text "
         "(got a mapping)"),
        ("{codec: int8}", "4:10: links[1].between: missing, expected a list with 2 items"),
        ("{between: [w1, w2], codec: int9}", "4:37: links[1].codec: expected one of none, fp16, "
         "bf16, int8 (got int9). Did you mean int8?"),
        ("{between: [w2, w1], codec: topk}", "4:37: links[1].codec: expected fraction: 0.05 with "
         "codec: int8, because the codec topk was removed (got topk)"),
    ],
)  # fmt: skip
def test_a_wrong_link_is_explained(link: str, problem: str, tmp_path: Path) -> None:
    nodes = "nodes: [{name: w1, port: 1}, {name: w2, port: 2}]"
    text = f"{nodes}\nlinks: [\n         {{between: [w1, w2], codec: fp16}},\n         {link}]\n"
    found = problems_of(text, tmp_path)
    assert f"run.yaml:{problem}" in found
    assert len(found) == 1 + ("int9" in link or "topk" in link)


def test_nodes_and_links_made_in_python_must_fit_too() -> None:
    nodes = (NodeConfig(name="a", port=1), NodeConfig(name="b", endpoint="tcp://localhost:1"))
    link = LinkConfig(between=("a", "c"), codec="none")
    with pytest.raises(ValidationError) as caught:
        Config(nodes=nodes, links=(link,))
    (error,) = caught.value.errors()
    assert error["msg"] == (
        "nodes[1].port: expected a unique address (got localhost:1, already used by "
        "nodes[0]); links[0].between[1]: expected one of a, b (got c)"
    )


def test_aliases_of_aliases_do_not_explode(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (problem,) = problems_of("\n".join(levels), tmp_path)
    assert "expected at most 100000 values, including those of aliases" in problem


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing.yaml", "No such file or directory"), (".", "Is a directory")],
)
def test_an_unreadable_file_is_named(name: str, reason: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/{name}"
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    assert caught.value.problems == (f"{path}: expected a readable file ({reason})",)


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: expected a file of at most"):
        load_config("/dev/zero", environ={})


def test_mistakes_in_a_mapping_have_key_paths() -> None:
    source = {
        "nodes": [{"name": "a", "port": True}, {"name": 5.5, "port": 1}],
        "timeout_ms": float("nan"),
        "seed": object,
        "fetch_probability": False,
        "mrege": "delta",
    }
    with pytest.raises(ConfigError) as caught:
        load_config(source, environ={})
    assert sorted(caught.value.problems) == [
        "<config>: mrege: unknown key. Did you mean merge?",
        "<config>: nodes[0].port: expected a whole number from 1 to 65535 (got True)",
        "<config>: nodes[1].name: expected text (got 5.5)",
        "<config>: seed: expected a whole number from 0 to 9223372036854775807 or nothing "
        "(got \"<class 'object'>\")",
        "<config>: timeout_ms: expected a whole number from 1 to 3600000 (got nan)",
    ]


def test_a_mapping_that_contains_itself_is_refused() -> None:
    nodes: list[object] = [{"name": "a", "port": 1}]
    nodes.append(nodes)
    with pytest.raises(ConfigError, match=r"nodes\[1\]: expected a value that does not contain it"):
        load_config({"nodes": nodes}, environ={})


def test_a_mapping_that_is_nested_too_deeply_is_refused() -> None:
    nodes: list[object] = []
    for _ in range(5000):
        nodes = [nodes]
    with pytest.raises(ConfigError, match=r"^<config>: expected settings .* nested too deeply"):
        load_config({"nodes": nodes}, environ={})


@pytest.mark.parametrize("depth", [150, 600, 5000])
def test_an_override_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    nodes: list[object] = []
    for _ in range(depth):
        nodes = [nodes]
    with pytest.raises(ConfigError, match=r"expected settings .* nested too deeply"):
        load_config({"nodes": [{"name": "a", "port": 1}]}, environ={}, overrides={"nodes": nodes})


def test_a_chain_of_aliases_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    lines = [f"- &a{n} {{x: {f'*a{n - 1}' if n else 1}}}" for n in range(600)]
    (tmp_path / "run.yaml").write_text("nodes:\n" + "\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_config(tmp_path / "run.yaml", environ={})


def test_a_number_that_is_too_long_to_be_shown_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"seed: expected a whole number .*got a very large"):
        load_config({"nodes": [{"name": "a", "port": 1}], "seed": 10**5000}, environ={})


SNIPPETS = [
    "nodes", "name", "port", "constant", "plugins", "seed", "<<", "*a", "&a ", ": ", ", ", "- ",
    "\n", "\n  ", "{", "}", "[", "]", "!!x ", "!", "? ", "| ", "> ", "'", '"', "#", "%", "~", "0",
    "w1", "1e9", ".inf", "off", "\t", "---\n", "...", "\x85", "\ud7ff", "é", "\x07", "@", "`",
]  # fmt: skip


@examples(150)
@given(st.lists(st.sampled_from(SNIPPETS), max_size=25).map("".join) | st.text())
def test_any_text_is_a_configuration_or_explained(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        problems: tuple[str, ...] | None = None
        try:
            load_config(path, environ={})
        except ConfigError as error:
            problems = error.problems
    assert problems is None or problems
    for problem in problems or ():
        assert re.fullmatch(r".*run\.yaml:\d+:\d+: .+", problem)


def test_the_documentation_shows_what_is_printed(tmp_path: Path) -> None:
    section = DOCUMENTATION.read_text(encoding="utf-8").partition("\n## Mistakes\n")[2]
    _, example, _, printed, *_ = section.split("```")
    (tmp_path / "run.yaml").write_text(example.removeprefix("yaml\n"))
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "run.yaml", environ={})
    assert str(caught.value).replace(f"{tmp_path}{os.sep}", "") == printed.strip()


def test_stability_is_judged_even_beside_other_mistakes(tmp_path: Path) -> None:
    text = f"{NODES}noloco: {{alpha: 2, gamma: 3}}\nlocal: {{momentum: x, lr: 5}}\nseed: x\n"
    assert [problem.split(" ")[1] for problem in problems_of(text, tmp_path)] == [
        "noloco.alpha:", "noloco.gamma:", "local.momentum:", "local.lr:", "seed:",
    ]  # fmt: skip


def test_the_page_of_settings_has_every_key() -> None:
    text = SETTINGS.read_text(encoding="utf-8")
    for key in (name for name in setting_names() if name not in method_names()):
        assert f"\n### {key}\n" in text
    for method in methods():
        assert f"\n### `{method.kind}: {method.name}`\n" in text
    for key in (
        *(option for method in methods() for option in method.options.model_fields),
        *NodeConfig.model_fields,
        *LinkConfig.model_fields,
        *CheckpointOptions.model_fields,
    ):
        assert f"| `{key}` |" in text


def test_the_page_of_settings_has_every_variable_and_others_name_every_method() -> None:
    text = SETTINGS.read_text(encoding="utf-8")
    single = set(setting_names()) - set(LISTS)
    for setting in (name for name in single if not options_model(name)):
        section = text.partition(f"\n### {setting}\n")[2].partition("\n### ")[0]
        assert f"variable `DPWA_{setting.upper()}`" in section
    for page, names in (("algorithms.md", algorithm_names()), ("topologies.md", topology_names())):
        table = (DOCUMENTATION.parent / page).read_text(encoding="utf-8")
        for name in names:
            assert re.search(rf"^\| [^|]*`{name}`[^|]* \|", table, flags=re.MULTILINE)


def test_a_value_of_a_million_digits_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("nodes: [{name: a, port: 1}]\nseed: " + "1" * 1_000_000 + "x\n")
    start = time.monotonic()
    with pytest.raises(ConfigError, match="seed: expected a whole number"):
        load_config(path, environ={})
    assert time.monotonic() - start < at_most(5.0)
