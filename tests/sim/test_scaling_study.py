"""The scaling study: it runs in its short form, and finds what its page says."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BENCHMARKS = ROOT / "benchmarks"
PAGE = ROOT / "docs" / "simulator.md"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The figures of the short form, with its folder."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("scaling")
    command = [sys.executable, str(BENCHMARKS / "scaling.py"), "--quick", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((folder / "scaling.json").read_text())
    return json.loads(done.stdout), folder


@pytest.fixture
def study(monkeypatch):
    """The module of the study, with its parts, whose names others have, too."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "scale"))
    names = {"scaling", *(path.stem for path in (BENCHMARKS / "scale").glob("*.py"))}
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("scaling")
    for name in names:
        sys.modules.pop(name, None)


def test_a_training_reaches_its_target_though_half_of_its_nodes_are_lost(study):
    lost = study.recovery(8, 0)
    assert lost["with_s"] < 2 * lost["without_s"]


@pytest.mark.usefixtures("study")
def test_members_without_their_nodes_find_the_dead():
    row = importlib.import_module("views").lost(8, 0)
    assert row["known"] == 8
    assert row["messages_per_s"] > 2.5
    assert row["dead_known_s"] <= 8


@pytest.mark.slow
def test_it_has_all_parts_and_pictures(found):
    parts, folder = found
    assert set(parts) == {"alone", "ending", "whole", "training", "consensus", "recovery"}
    pictures = [path.name for path in folder.glob("*.png")]
    assert sorted(pictures) == ["scaling-membership.png", "scaling-training.png"]


@pytest.mark.slow
def test_membership_of_whole_nodes_sends_little_and_finds_the_dead(found):
    (whole,) = found[0]["whole"]
    assert 2.5 < whole["messages_per_s"] < 4.5
    assert 500 < whole["bytes_per_s"] < 2500
    assert whole["bytes_per_s"] <= whole["most_bytes_per_s"] < 3 * whole["bytes_per_s"]
    assert whole["dead_known_s"] <= 8
    assert whole["all_known_s"] <= 5


@pytest.mark.slow
def test_membership_alone_sends_a_bounded_number_of_messages(found):
    assert found[0]["alone"]
    assert found[0]["ending"]
    for row in found[0]["alone"]:
        assert row["known"] == row["nodes"]
        assert 2.5 < row["messages_per_s"] < 4.5
        assert row["trials_per_s"] < 7
        assert row["dead_known_s"] <= 8
    assert all(row["killed"] > 0 for row in found[0]["ending"])


@pytest.mark.slow
def test_training_reaches_its_target_and_spreads_its_load(found):
    assert {row["topology"] for row in found[0]["training"]} == {"random", "exponential", "ring"}
    for row in found[0]["training"]:
        assert row["seconds_to_target"] < 20
        assert 1 <= row["busiest_by_mean"] < 1.6
        assert row["mb_per_step"] == pytest.approx(10.5, abs=0.6)
    (lost,) = found[0]["recovery"]
    assert lost["with_s"] < 2 * lost["without_s"]


def test_whole_nodes_and_membership_alone_agree_on_the_page():
    """The stand-in for connections changes little of what membership sends."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if "|" in line]
    (whole,) = (row for row in rows if row[:2] == ["64", "whole nodes"])
    (alone,) = (row for row in rows if row[:2] == ["64", "only membership"])
    assert float(whole[2]) == pytest.approx(float(alone[2]), rel=0.1)
