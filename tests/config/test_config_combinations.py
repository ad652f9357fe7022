"""Settings that cannot work together: told where they stand, together with all other mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from dpwa.config import Config, NodeConfig, load_config
from dpwa.config.model import LinkConfig
from dpwa.errors import ConfigError

NODES = "nodes: [{name: w1, port: 1}, {name: w2, port: 2}]\n"


def problems_of(text: str, folder: Path, **environ: str) -> list[str]:
    path = folder / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ=environ)
    return [problem.removeprefix(f"{path}:") for problem in caught.value.problems]


EXACT, WHOLE = ("symmetric", "push_sum", "outer"), ("lsgd", "noloco", "local", "elastic")
WRONG = [  # algorithms, and what is wrong with each of them
    (EXACT, "codec: fp16", "3:8: codec: expected none, because algorithm: {} must keep its sums "
     "exact (got fp16)"),
    (EXACT, "codec: int8", "3:8: codec: expected none, because algorithm: {} must keep its sums "
     "exact (got int8)"),
    (EXACT, "links: [{between: [w1, w2], codec: int8}]",
     "3:36: links[0].codec: expected none, because algorithm: {} must keep its sums exact "
     "(got int8)"),
    (EXACT, "robust: clip", "3:9: robust: expected none, because algorithm: {} must keep its sums "
     "exact (got clip)"),
    (EXACT, "fraction: 0.5", "3:11: fraction: expected 1, because algorithm: {} needs whole "
     "snapshots (got 0.5)"),
    (EXACT, "interpolation: clock", "3:16: interpolation: expected constant, because rules have no "
     "effect with algorithm: {} (got clock)"),
    (WHOLE, "fraction: .25", "3:11: fraction: expected 1, because algorithm: {} needs whole "
     "snapshots (got 0.25)"),
    (WHOLE, "fraction: .25\nrobust: clip", "3:11: fraction: expected 1, because algorithm: {} "
     "needs whole snapshots (got 0.25)"),
    (WHOLE, "interpolation: leader", "3:16: interpolation: expected constant, because rules have "
     "no effect with algorithm: {} (got leader)"),
    ((*WHOLE, "together"), "quarantine_s: 2.5", "3:15: quarantine_s: expected 0, because the loss "
     "cannot identify a bad peer with algorithm: {} (got 2.5)"),
    (["together"], "robust: clip", "3:9: robust: expected none, because gradients are not clipped "
     "with algorithm: {} (got clip)"),
    (["together"], "lr_spread: linear", "3:12: lr_spread: expected none, because all nodes take "
     "equal steps with algorithm: {} (got linear)"),
    (["together"], "fraction: 0.4", "3:11: fraction: expected 1, because algorithm: {} needs whole "
     "snapshots (got 0.4)"),
    (["gossip"], "state_dir: kept", "3:12: state_dir: expected `join` to be set, too (got kept)"),
    (["gossip"], "robust: clip\nfraction: 0.5", "4:11: fraction: expected 1, because robust: clip "
     "needs whole snapshots (got 0.5)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "lines", "problem"),
    [(name, lines, problem) for names, lines, problem in WRONG for name in names],
)
def test_what_does_not_fit_is_told_where_it_is_written_as_it_is_written(
    algorithm: str, lines: str, problem: str, tmp_path: Path
) -> None:
    found = problems_of(f"{NODES}algorithm: {algorithm}\n{lines}\n", tmp_path)
    assert found == [problem.format(algorithm)]


def test_the_codec_of_a_node_is_told_at_the_node(tmp_path: Path) -> None:
    text = (
        "nodes:\n- {name: w1, port: 1}\n- {name: w2, port: 2, codec: bf16}\nalgorithm: push_sum\n"
    )
    assert problems_of(text, tmp_path) == [
        "3:30: nodes[1].codec: expected none, because algorithm: push_sum must keep its sums "
        "exact (got bf16)"
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "symmetric", "codec": "none", "interpolation": "constant", "fraction": 1},
        {"algorithm": "push_sum", "merge": "delta", "robust": "none", "quarantine_s": "off"},
        {"algorithm": "lsgd", "codec": "int8", "robust": "clip"},
        {"algorithm": "noloco", "codec": "int8", "constant": {"value": 0.3}},
        {"algorithm": "local", "codec": "bf16", "robust": "clip"},
        {"interpolation": "leader", "fraction": 0.1, "codec": "int8"},
        {"robust": "clip", "quarantine_s": 60, "codec": "fp16"},
    ],
)
def test_what_works_together_is_let_alone(settings: dict[str, object]) -> None:
    nodes = [{"name": "w1", "port": 1}, {"name": "w2", "port": 2}]
    config = load_config({"nodes": nodes, **settings}, environ={})
    assert load_config(config.to_mapping(), environ={}) == config


VALUES = {
    "timeout_ms": [100],
    "fetch_probability": [0.5],
    "topology": ["ring"],
    "interpolation": ["clock", "leader"],
    "divergence_threshold": [0.5],
    "merge": ["interpolate"],
    "buffers": ["keep"],
    "transport": ["tcp", "shm"],
    "slots": [5],
    "codec": ["bf16", "int8"],
    "fraction": [0.5],
    "guard": ["off"],
    "robust": ["clip"],
    "repeat": ["skip", "merge"],
    "quarantine_s": [5.0],
    "lr_spread": ["linear"],
    "initial_state": ["own", "peers"],
    "join": [[]],
    "max_upload_mbps": [10.0],
}
RULES = {"interpolation", "divergence_threshold", "merge", "fraction"}
REFUSED = {
    "gossip": set(),
    "together": RULES | {"robust", "quarantine_s", "lr_spread"},
    "symmetric": RULES | {"codec", "robust", "repeat"},
    "push_sum": RULES | {"codec", "robust", "repeat"},
    "lsgd": RULES | {"quarantine_s", "topology"},
    "noloco": RULES | {"quarantine_s"},
    "outer": RULES | {"codec", "robust", "repeat", "quarantine_s"},
    "local": RULES | {"quarantine_s"},
    "elastic": RULES | {"quarantine_s"},
}


@pytest.mark.parametrize("algorithm", REFUSED)
@pytest.mark.parametrize("setting", VALUES)
def test_what_has_no_effect_with_an_algorithm_is_refused_in_one_line(
    algorithm: str, setting: str
) -> None:
    nodes = [{"name": "w1", "port": 1}, {"name": "w2", "port": 2}]
    for value in VALUES[setting]:
        given = {"nodes": nodes, "algorithm": algorithm, setting: value}
        if setting not in REFUSED[algorithm]:
            load_config(given, environ={})
            continue
        with pytest.raises(ConfigError) as caught:
            load_config(given, environ={})
        (problem,) = caught.value.problems
        assert f"{setting}: expected " in problem
        assert f"(got {value})" in problem
        in_order = [{key: each} for key, each in given.items() if key != setting]
        load_config(in_order, environ={})  # the old rule of a list is not said to be a mistake


def test_all_is_told_beside_other_mistakes(tmp_path: Path) -> None:
    text = """\
- nodes: [{name: w1, port: 0, codec: fp16}, {name: w1, port: 2}]
- seed: x
- algorithm: symmetric
- codec: int9
- fraction: 0.5
- interpolation: los
"""
    found = problems_of(text, tmp_path, DPWA_ROBUST="clip")
    assert [" ".join(problem.split(" ")[:2]) for problem in found] == [
        "1:28: nodes[0].port:",
        "1:38: nodes[0].codec:",
        "1:52: nodes[1].name:",
        "2:9: seed:",
        "4:10: codec:",
        "5:13: fraction:",
        "6:18: interpolation:",
        "environment: DPWA_ROBUST:",
    ]
    assert found[6].endswith("(got los). Did you mean loss?")


def test_an_unknown_algorithm_is_told_alone(tmp_path: Path) -> None:
    (found,) = problems_of(f"{NODES}algorithm: symetric\nfraction: 0.5\n", tmp_path)
    assert found.endswith("(got symetric). Did you mean symmetric?")


def test_settings_made_in_python_must_fit_together_too() -> None:
    nodes = (NodeConfig(name="a", port=1), NodeConfig(name="b", port=2, codec="fp16"))
    link = LinkConfig(between=("a", "b"), codec="none")
    with pytest.raises(ValidationError) as caught:
        Config(nodes=nodes, links=(link,), algorithm="push_sum", fraction=0.5)
    (error,) = caught.value.errors()
    assert error["msg"] == (
        "nodes[1].codec: expected none, because algorithm: push_sum must keep its sums exact "
        "(got fp16); "
        "fraction: expected 1, because algorithm: push_sum needs whole snapshots (got 0.5)"
    )
