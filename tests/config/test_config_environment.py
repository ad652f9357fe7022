"""Overrides from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpwa.algorithms.lsgd import LSGDOptions
from dpwa.config import load_config
from dpwa.config.methods import ClipOptions
from dpwa.config.model import CheckpointOptions
from dpwa.config.schema import variables
from dpwa.errors import ConfigError
from dpwa.policy.interpolation import ConstantOptions, LeaderOptions
from dpwa.policy.topology import StarOptions

SOURCE = {"nodes": [{"name": "w1", "port": 1}], "timeout_ms": 100, "constant": {"value": 0.2}}


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("DPWA_FETCH_PROBABILITY", "1e-1", "fetch_probability", 0.1),
        ("DPWA_TIMEOUT_MS", "500", "timeout_ms", 500),
        ("DPWA_INTERPOLATION", "loss", "interpolation", "loss"),
        ("DPWA_DIVERGENCE_THRESHOLD", "off", "divergence_threshold", 0.0),
        ("DPWA_MERGE", "delta", "merge", "delta"),
        ("DPWA_BUFFERS", "keep", "buffers", "keep"),
        ("DPWA_TRANSPORT", "SHM", "transport", "shm"),
        ("DPWA_SLOTS", "5", "slots", 5),
        ("DPWA_CODEC", "int8", "codec", "int8"),
        ("DPWA_CHECKPOINT__KEEP", "7", "checkpoint", CheckpointOptions(keep=7)),
        ("DPWA_FRACTION", "0.25", "fraction", 0.25),
        ("DPWA_GUARD", "off", "guard", "off"),
        ("DPWA_SEED", "7", "seed", 7),
        ("DPWA_LOG_LEVEL", "INFO", "log_level", "info"),
        ("DPWA_ALGORITHM", "lsgd", "algorithm", "lsgd"),
        ("DPWA_TOPOLOGY", "ring", "topology", "ring"),
        ("DPWA_ROBUST", "CLIP", "robust", "clip"),
        ("DPWA_QUARANTINE_S", "60", "quarantine_s", 60.0),
        ("DPWA_LOSS_WINDOW", "10", "loss_window", 10),
        ("DPWA_LEADER_SILENCE_S", "2.5", "leader_silence_s", 2.5),
        ("DPWA_LR_SPREAD", "linear", "lr_spread", "linear"),
    ],
)
def test_every_single_setting_can_be_overridden(
    variable: str, text: str, key: str, value: object
) -> None:
    config = load_config(SOURCE, environ={variable: text})
    assert getattr(config, key) == value
    assert config.model_copy(update={key: None}) == load_config(SOURCE, environ={}).model_copy(
        update={key: None}
    )


@pytest.mark.parametrize("written", [{}, {"constant": 0}, {"constant": {"value": 0.9}}])
def test_options_of_rules_can_be_overridden(written: dict[str, object]) -> None:
    environ = {"DPWA_CONSTANT__VALUE": "0.3", "DPWA_LEADER__STRENGTH": "1"}
    config = load_config({"nodes": SOURCE["nodes"], **written}, environ=environ)
    assert config.options_of("constant") == ConstantOptions(value=0.3)
    assert config.options_of("leader") == LeaderOptions(strength=1.0)


@pytest.mark.parametrize("written", [{}, {"lsgd": 0}, {"lsgd": {"c1": 0.9}}])
def test_options_of_algorithms_topologies_and_clipping_can_be_overridden(
    written: dict[str, object],
) -> None:
    environ = {
        "DPWA_LSGD__C1": "0.3",
        "DPWA_LSGD__GLOBAL_PERIOD": "32",
        "DPWA_STAR__CENTER": "5",
        "DPWA_CLIP__WINDOW": "9",
    }
    config = load_config({"nodes": SOURCE["nodes"], **written}, environ=environ)
    assert config.options_of("lsgd") == LSGDOptions(c1=0.3, global_period=32)
    assert config.options_of("star") == StarOptions(center=5)
    assert config.options_of("clip") == ClipOptions(window=9)


@pytest.mark.parametrize("written", [{}, {"checkpoint": 0}, {"checkpoint": {"keep": 9}}])
def test_options_of_a_setting_can_be_overridden_one_by_one(written: dict[str, object]) -> None:
    environ = {"DPWA_CHECKPOINT__KEEP": "5"}
    config = load_config({"nodes": SOURCE["nodes"], **written}, environ=environ)
    assert config.checkpoint == CheckpointOptions(keep=5, every_steps=1000)


def test_a_file_is_overridden_by_the_environment_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("- nodes: [{name: w1, port: 1}]\n- timeout_ms: 100\n")
    monkeypatch.setenv("DPWA_TIMEOUT_MS", "200")
    assert load_config(path).timeout_ms == 200
    assert load_config(path, environ={}).timeout_ms == 100


def test_variables_of_the_launcher_and_empty_ones_change_nothing() -> None:
    reserved = {"DPWA_NAME": "w1", "DPWA_CONFIG": "x", "DPWA_RANK": "0", "DPWA_WORLD_SIZE": "1"}
    environ = {**reserved, "DPWA_SEED": "", "DPWA_MERGE": " ", "PATH": "x", "XDPWA_FOO": "1"}
    assert load_config(SOURCE, environ=environ) == load_config(SOURCE, environ={})


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("DPWA_TIMEOT_MS", "5", "unknown variable. Did you mean DPWA_TIMEOUT_MS?"),
        ("DPWA_timeout_ms", "5", "unknown variable. Did you mean DPWA_TIMEOUT_MS?"),
        ("DPWA_CONSTANT_VALUE", "1", "unknown variable. Did you mean DPWA_CONSTANT__VALUE?"),
        ("DPWA_NODES", "1", "unknown variable, expected this list in the configuration file"),
        ("DPWA_LINKS", "1", "unknown variable, expected this list in the configuration file"),
        ("DPWA_NOLOCO_GAMA", "1", "unknown variable. Did you mean DPWA_NOLOCO__GAMMA?"),
        (
            "DPWA_ALGORITHM",
            "lsdg",
            "expected one of elastic, gossip, local, lsgd, noloco, outer, push_sum, "
            "symmetric, together (got lsdg). Did you mean lsgd?",
        ),
        (
            "DPWA_LSGD__LOCAL_PERIOD",
            "0",
            "expected a whole number of at least 1 or nothing (got 0)",
        ),
        (
            "DPWA_LOCAL__LR",
            "2",
            "expected a number below 2, the limit for momentum 0, because otherwise the outer "
            "steps diverge if the inner steps reach a minimum (got 2)",
        ),
        (
            "DPWA_CODEC",
            "topk",
            "expected fraction: 0.05 with codec: int8, because the codec topk was removed (got "
            "topk)",
        ),
        (
            "DPWA_CONSENSUS_CONTROL",
            "1",
            "unknown variable, expected algorithm: symmetric or together, which keep nodes closer, "
            "because consensus_control was removed",
        ),
        ("DPWA_AVG_SIZE", "9", "unknown variable, expected loss_window (see docs/migration.md)"),
        ("DPWA_CHECKPOINT_KEEP", "1", "unknown variable. Did you mean DPWA_CHECKPOINT__KEEP?"),
        ("DPWA_SLOTS", "off", "expected a whole number from 2 to 16 (got off)"),
        (
            "DPWA_XYZZY",
            "",
            "unknown variable, expected one of DPWA_FETCH_PROBABILITY, DPWA_TIMEOUT_MS, "
            "DPWA_ALGORITHM, DPWA_TOPOLOGY, DPWA_INTERPOLATION, DPWA_DIVERGENCE_THRESHOLD, "
            "DPWA_MERGE, DPWA_BUFFERS, DPWA_TRANSPORT, DPWA_SLOTS, DPWA_CODEC, DPWA_FRACTION, "
            "DPWA_GUARD, DPWA_ROBUST, DPWA_REPEAT, DPWA_QUARANTINE_S, "
            "DPWA_LOSS_WINDOW, DPWA_LEADER_SILENCE_S, DPWA_LR_SPREAD, DPWA_COLLECTIVE_TIMEOUT_S "
            f"and {len(variables()) - 20} more",
        ),
        ("DPWA_TIMEOUT_MS", "fast", "expected a whole number from 1 to 3600000 (got fast)"),
        ("DPWA_CONSTANT__VALUE", "2", "expected a number from 0 to 1 (got 2)"),
        (
            "DPWA_INTERPOLATION",
            "clok",
            "expected one of constant, clock, loss, leader (got clok). Did you mean clock?",
        ),
    ],
)
def test_a_wrong_variable_is_refused(variable: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(SOURCE, environ={variable: text})
    assert caught.value.problems == (f"environment: {variable}: {problem}",)


def test_variables_are_reported_together_with_the_file_and_after_it(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("nodes: [{name: w1, port: 0}]\nmerge: x\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={"DPWA_TIMEOT_MS": "1", "DPWA_SEED": "x"})
    heads = [problem.removeprefix(f"{path}:").split(": ")[:2] for problem in caught.value.problems]
    assert heads == [
        ["1:26", "nodes[0].port"],
        ["2:8", "merge"],
        ["environment", "DPWA_SEED"],
        ["environment", "DPWA_TIMEOT_MS"],
    ]


def test_unknown_variables_are_reported_even_if_the_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "none", environ={"DPWA_TIMEOT_MS": "1", "DPWA_OWN_RULE__X": "1"})
    assert len(caught.value.problems) == 2
    assert caught.value.problems[1].startswith("environment: DPWA_TIMEOT_MS: unknown variable")
