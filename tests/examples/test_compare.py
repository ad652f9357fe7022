from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from examples_support import EXAMPLES, Runner, interrupted

from dpwa.algorithms import base

COMPARE, ADVERSARY = EXAMPLES / "compare.py", EXAMPLES / "adversary.py"
ALGORITHMS_PAGE = EXAMPLES.parent / "docs" / "algorithms.md"
PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def _what_the_page_registers_is_forgotten(monkeypatch):
    monkeypatch.setattr(base, "_REGISTRY", deepcopy(base._REGISTRY))


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules that both scripts share."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from comparison import node, outcome, runs, variants

    yield SimpleNamespace(node=node, outcome=outcome, runs=runs, variants=variants)
    for name in [name for name in sys.modules if name.partition(".")[0] == "comparison"]:
        del sys.modules[name]


def baseline(comparison: SimpleNamespace, name: str, steps: int = 20) -> list:
    (variant,) = comparison.variants.variants_named(name)
    plan = comparison.node.Plan(nodes=3, steps=steps, seed=1)
    (trajectories,) = comparison.runs.run_all(
        [comparison.runs.Run(variant, plan)], lambda run: None
    )
    return trajectories


def test_private_shards_keep_most_classes_from_a_node(comparison: SimpleNamespace) -> None:
    shared, private = (
        [
            comparison.node.learner_of(
                rank, comparison.node.Plan(nodes=4, steps=1, seed=3, shards=shards)
            ).task.shard.labels
            for rank in range(4)
        ]
        for shards in ("shared", "private")
    )
    assert [len(labels) for labels in shared] == [1437] * 4
    assert sum(len(labels) for labels in private) == 1437
    for labels in private:
        counts = np.sort(np.bincount(labels, minlength=10))[::-1]
        assert counts[:3].sum() > 0.9 * len(labels)


@pytest.mark.slow
def test_processes_and_baselines_stand_in_one_table_with_a_picture(
    run: Runner, tmp_path: Path
) -> None:
    done = run(
        sys.executable, "-W", "error", COMPARE, "--nodes", 2, "--steps", 40,
        "--algorithms", "delta,synchronous", "--out-dir", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if re.match("synchronous|gossip", line)]
    assert [row.split("  ")[0] for row in rows] == ["synchronous averaging", "gossip, merge: delta"]
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(PNG)
    figures = json.loads((tmp_path / "out" / "compare.json").read_text())
    # At most one snapshot of 9 866 float32 a step, with headers of a few per cent; who is faster
    # finds nothing new at times, and at the start and the end some find nobody.
    assert 0.3 < figures["delta"]["mb_sent"] / (40 * 9866 * 4 / 1e6) < 1.1
    assert figures["delta"]["steps"][-1] == 40
    assert figures["delta"]["mean"] > 0.85  # both learn; 0.1 is chance
    assert figures["synchronous"]["seconds_to_goal"] is None


def test_alone_every_node_goes_its_own_way_and_synchronous_ones_never_part(
    comparison: SimpleNamespace,
) -> None:
    alone, together = baseline(comparison, "alone"), baseline(comparison, "synchronous")
    starts = [trajectory.vectors[0] for trajectory in alone]
    assert all(np.array_equal(starts[0], start) for start in starts)
    assert not np.array_equal(alone[0].vectors[-1], alone[1].vectors[-1])
    assert all(np.array_equal(together[0].vectors, other.vectors) for other in together)
    assert [trajectory.bytes_sent for trajectory in alone] == [0.0] * 3


def test_one_synchronous_step_is_the_mean_of_the_same_steps_alone(
    comparison: SimpleNamespace,
) -> None:
    alone = np.mean([t.vectors[1] for t in baseline(comparison, "alone", steps=1)], axis=0)
    together = baseline(comparison, "synchronous", steps=1)[0].vectors[1]
    assert np.allclose(alone, together, atol=4 * np.finfo(np.float32).eps)


def test_the_outcome_says_when_the_goal_was_reached_and_how_all_ended(
    comparison: SimpleNamespace,
) -> None:
    class Jury(comparison.outcome.Jury):
        def accuracy(self, vector: np.ndarray) -> float:
            return float(vector[0])

    steps, accuracies = np.array([0, 2, 4]), ([0.1, 0.93, 0.96], [0.1, 0.92, 0.94])
    found = Jury().judge(
        [
            comparison.runs.Trajectory(steps, steps * place, np.array([[a] for a in curve]), 1e6)
            for place, curve in enumerate(accuracies, 1)
        ]
    )
    assert found.accuracy == pytest.approx([0.1, 0.925, 0.95])
    assert (found.steps_to_goal, found.seconds_to_goal, found.mb_sent) == (4, 6, 1.0)
    assert (found.mean, found.worst, found.mean_model) == pytest.approx((0.95, 0.94, 0.95))


def test_what_never_gets_there_counts_as_never_in_a_median(comparison: SimpleNamespace) -> None:
    reached, make = comparison.outcome.reached, comparison.outcome.Outcome
    assert reached(np.array([0.1, 0.9299])) is None
    assert reached(np.array([0.1, np.mean([0.93] * 3)])) == 1
    outcomes = [
        make(np.arange(2), np.array([0, a]), to, 1.0, a, a, a, 1.0)
        for to, a in ((math.inf, 0.1), (7.0, 0.95), (math.inf, 0.2))
    ]
    assert comparison.outcome.over_seeds(outcomes).steps_to_goal == math.inf
    assert comparison.outcome.over_seeds(outcomes).mean == 0.2


def test_every_variant_is_a_configuration_without_mistakes(
    comparison: SimpleNamespace, tmp_path: Path
) -> None:
    from dpwa.config import load_config

    for variant in comparison.variants.VARIANTS:
        if not variant.gossips:
            continue
        plan = comparison.node.Plan(nodes=4, steps=1, seed=0)
        nodes = [{"name": f"w{n}", "host": "127.0.0.1", "port": 2000 + n} for n in range(4)]
        folder = tmp_path / variant.name
        comparison.runs._prepare(folder, comparison.runs.Run(variant, plan), nodes)
        config = load_config(folder / "dpwa.yaml")
        groups = {node.group for node in config.nodes}
        assert len(groups) == variant.groups, variant.name
        assert config.transport == "tcp"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--nodes", "1"), "--nodes: expected a whole number from 2 to 64 (got 1)"),
        (("--steps", "x"), "--steps: expected a whole number from 1 to 100000 (got x)"),
        (("--algorithms", "delta,sgd"), "(got 'sgd')"),
    ],
)
def test_a_wrong_option_is_refused_with_what_was_expected(
    run: Runner, options: tuple[str, str], expected: str
) -> None:
    done = run(sys.executable, COMPARE, *options)
    assert done.returncode == 2
    assert expected in done.stderr.splitlines()[-1]


def test_a_folder_that_cannot_be_written_is_one_clear_line(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(sys.executable, COMPARE, "--out-dir", tmp_path / "file")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "file") in done.stderr


@pytest.mark.slow
def test_ctrl_c_stops_all_nodes_and_says_so(tmp_path: Path) -> None:
    options = ("--nodes", 2, "--steps", 10, "--seeds", 50, "--algorithms", "delta")
    code, errors = interrupted("stderr", "1/50", COMPARE, *options, "--out-dir", tmp_path)
    assert code == 130
    assert errors.endswith("Interrupted: all nodes have been stopped.\n")
    assert "Traceback" not in errors


@pytest.mark.slow
def test_one_adversary_among_eight_ruins_the_run_unless_merges_are_clipped(run: Runner) -> None:
    done = run(sys.executable, "-W", "error", ADVERSARY, timeout_s=300)
    assert done.returncode == 0, done.stderr
    pattern = r"^(.+?) +(none|clip) +([\d.]+) +[\d.]+ +[+-]"
    found = {
        (served, robust): float(mean)
        for served, robust, mean in re.findall(pattern, done.stdout, flags=re.MULTILINE)
    }
    undisturbed = found["correct values", "none"]
    for served in ("±1e6", "NaN, guard: off"):
        assert found[served, "none"] < 0.5
        assert found[served, "clip"] >= undisturbed - 0.02
    assert found["NaN", "none"] >= undisturbed - 0.02


@pytest.mark.slow
def test_delta_needs_few_more_steps_than_synchronous_averaging(run: Runner, tmp_path: Path) -> None:
    done = run(
        sys.executable, COMPARE, "--seeds", 5, "--transport", "auto", "--out-dir", tmp_path,
        "--algorithms", "synchronous,delta,interpolate", timeout_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "compare.json").read_text())
    needed = {name: figures[name]["steps_to_goal"] for name in figures}
    assert needed["delta"] <= 1.25 * needed["synchronous"], needed


def test_the_algorithm_of_the_page_works_as_it_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.nodes import config_of

    from dpwa.adapters.pytorch import DpwaPyTorchAdapter

    blocks = re.findall(r"```python\n(.*?)```", ALGORITHMS_PAGE.read_text(), flags=re.DOTALL)
    (code,) = (block for block in blocks if "@register_algorithm" in block)
    assert len(code.splitlines()) < 100
    (tmp_path / "smooth.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    smooth = {"period": 1, "decay": 0.0}
    config = config_of(2, plugins=["smooth"], algorithm="smooth", smooth=smooth)
    nets = [torch.nn.Linear(3, 1, bias=False) for _ in range(2)]
    with torch.no_grad():
        for value, net in enumerate(nets):
            net.weight.fill_(float(value))
    with (
        DpwaPyTorchAdapter(nets[0], "w1", config) as one,
        DpwaPyTorchAdapter(nets[1], "w2", config) as other,
    ):
        merges = 0
        for _ in range(30):
            for gossip in (one, other):
                gossip.update_send(1.0)
                merges += gossip.update_wait(1.0) is not None
    assert merges > 20
    gap = (nets[0].weight - nets[1].weight).abs().max().item()
    assert gap < 0.05  # without the plugin's merges it stays 1
