"""`dpwa topology --config FILE`: the topology and the nodes of a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import run_dpwa

NODES = "nodes: [{name: north, port: 1}, {name: east, port: 2}, {name: south, port: 3}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "edges.txt").write_text("north east\neast -> south\nsouth -> north\n")
    path = tmp_path / "run.yaml"
    path.write_text(f"{NODES}topology: file\nfile: {{path: edges.txt}}\n")
    return path


def test_names_edges_and_options_are_those_of_the_configuration(file: Path) -> None:
    result = run_dpwa("topology", "--config", file, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["nodes"] == ["north", "east", "south"]
    assert found["rounds"][0]["neighbours"]["east"] == ["north", "south"]
    assert found["options"] == {"path": str(file.parent / "edges.txt")}


def test_people_see_the_names_as_well(file: Path) -> None:
    file.write_text(f"{NODES}topology: star\nstar: {{center: 1}}\n")
    result = run_dpwa("topology", "-c", file, "--factor", "0.25")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("3 nodes, factor 0.25\n")
    assert "\nstar        1-2 " in result.stdout
    assert " to 0.5 (east)." in result.stdout


def test_a_file_without_nodes_is_a_mistake_that_says_what_to_do(file: Path) -> None:
    file.write_text("join: []\ntopology: ring\n")
    result = run_dpwa("topology", "-c", file)
    expected = (
        f"dpwa: {file}: expected nodes, but the file has only `join`. "
        "Try `dpwa topology ring -n 8` "
        "[DPWA-E004]\n"
    )
    assert (result.exit_code, result.stderr) == (2, expected)


def test_without_a_topology_it_is_random(file: Path) -> None:
    file.write_text(NODES)
    found = json.loads(run_dpwa("topology", "-c", file, "--json").stdout)
    assert (found["topology"], found["nodes"]) == ("random", ["north", "east", "south"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring"], "NAME cannot be used with --config (got ring)"),
        (["-n", "4"], "--nodes cannot be used with --config (got 4)"),
        (["--set", "columns=2"], "--set cannot be used with --config (got columns=2)"),
    ],
)
def test_nothing_else_may_choose(file: Path, arguments: list[str], message: str) -> None:
    result = run_dpwa("topology", "--config", file, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"dpwa: {message} [DPWA-E007]\n"


def test_mistakes_of_the_configuration_are_told(file: Path) -> None:
    file.write_text(f"{NODES}topology: rnig\n")
    result = run_dpwa("topology", "--config", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{file}:2:11: topology: expected one of random, full, ring, " in result.stderr
    assert result.stderr.endswith("(got rnig). Did you mean ring? [DPWA-E178]\n")


def test_too_many_nodes_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpwa.cli.topology.MAX_NODES", 2)
    result = run_dpwa("topology", "--config", file)
    assert result.exit_code == 2
    assert result.stderr == f"dpwa: {file}: expected at most 2 nodes (got 3) [DPWA-E005]\n"
