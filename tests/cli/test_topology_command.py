"""`dpwa topology`: its table, JSON, and what it says about mistakes."""

import json
import math
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dpwa.cli.topology import topology
from dpwa.errors import ConfigError, UnknownNameError, UserError, without_codes
from dpwa.policy.topology import topology_names

APP = typer.Typer()
APP.command()(topology)


def run(*arguments):
    on_80_columns = CliRunner(env={"COLUMNS": "80"})
    return on_80_columns.invoke(APP, [str(argument) for argument in arguments])


def told(*arguments):
    """Run it and return its JSON."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def mistake(kind, *arguments):
    result = run(*arguments)
    assert isinstance(result.exception, kind), result.output
    return without_codes(str(result.exception))


@pytest.fixture
def edges(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("north south\nsouth -> east\neast -> north\n")
    return path


def test_without_a_name_all_topologies_are_listed():
    result = run()
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    for name in topology_names():
        assert any(line.startswith(f"{name} ") for line in lines)
    assert max(map(len, lines)) <= 80
    assert "small_world: neighbours=4, rewired=0.1, seed=0" in lines


def test_the_list_is_there_for_programs():
    rows = told()["topologies"]
    assert [row["name"] for row in rows] == list(topology_names())
    assert rows[3] == {
        "name": "grid",
        "options": {"columns": None},
        "summary": "The nodes above, below, left and right, in rows and columns with borders.",
    }


def test_the_list_compares_them_for_a_number_of_nodes():
    rows = [line.split()[:5] for line in run("-n", 16, "--factor", 0.5).stdout.splitlines()]
    assert rows[0][:2] == ["16", "nodes,"]
    assert ["ring", "2", "0.0381", "179", "336"] in rows
    assert ["one_peer_exponential", "1", "1", "4", "-"] in rows
    assert ["file", "-", "-", "-", "-"] in rows  # it has no edges yet


def test_the_table_has_degree_gap_and_rounds():
    result = run("ring", "-n", 4)
    assert result.exit_code == 0
    assert result.stderr == ""
    title, headings, row = result.stdout.splitlines()
    assert title == "4 nodes, factor 0.5"
    assert headings.split()[:5] == ["topology", "degree", "gap", "rounds", "picked"]
    assert row.split()[:5] == ["ring", "2", "0.5", "10", "17"]


def test_figures_for_programs():
    found = told("ring", "-n", 16)
    assert found["nodes"][:2] == ["w1", "w2"]
    assert found["rounds"][0]["neighbours"]["w1"] == ["w2", "w16"]
    assert found["spectral_gap"] == pytest.approx(0.5 - 0.5 * math.cos(math.pi / 8))
    assert found["rounds_to_1000th"] == 179
    assert found["diameter"] == 8
    assert found["doubly_stochastic"]
    assert found["unreachable"] is None
    assert found["matrix"] is None  # too large to be read
    assert len(told("ring", "-n", 12)["matrix"]) == 12


def test_options_and_the_factor_are_taken():
    found = told("star", "-n", 5, "--set", "center=2", "--factor", 0.25)
    assert found["options"] == {"center": 2}
    assert found["rounds"][0]["neighbours"]["w3"] == ["w1", "w2", "w4", "w5"]
    assert found["matrix"][0] == [0.75, 0.0, 0.25, 0.0, 0.0]
    assert found["stationary_weights"]["w3"] == pytest.approx(0.5)
    text = run("star", "-n", 5, "--set", "center=2").stdout
    assert "a weighted mean, with weights from 0.125 (w1) to 0.5 (w3)." in text


def test_a_topology_with_rounds_shows_all_of_them():
    found = told("one_peer_exponential", "-n", 8)
    assert [row["neighbours"]["w1"] for row in found["rounds"]] == [["w2"], ["w3"], ["w5"]]
    assert found["matrix"] == [[0.125] * 8] * 8
    assert (found["rounds_to_1000th"], found["period"]) == (3, 3)


def test_a_file_brings_its_own_names(edges):
    found = told("file", "--set", f"path={edges}")
    assert found["nodes"] == ["north", "south", "east"]
    assert found["rounds"][0]["neighbours"]["south"] == ["north", "east"]
    text = run("file", "--set", f"path={edges}").stdout
    assert text.startswith("3 nodes, factor 0.5\n")
    assert "file        1-2 " in text
    message = mistake(UserError, "file", "-n", 4, "--set", f"path={edges}")
    assert message == f"{edges}: expected edges of 4 nodes (got 3 nodes)"


def test_a_graph_that_leaves_nodes_behind_names_a_pair_and_exits_with_1(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("a b\nc -> a")
    result = run("file", "--set", f"path={path}")
    assert result.exit_code == 1
    assert "the parameters of c never reach a" in " ".join(result.stdout.split())
    assert json.loads(run("file", "--set", f"path={path}", "--json").stdout)["unreachable"] == [
        "a",
        "c",
    ]


def test_mistakes_say_what_was_expected():
    assert "(got rnig). Did you mean ring?" in mistake(UnknownNameError, "rnig")
    assert mistake(ConfigError, "grid", "--set", "colums=3", "--set", "x") == (
        "--set: colums: unknown key. Did you mean columns?\n--set: expected KEY=VALUE (got x)"
    )
    assert mistake(ConfigError, "small_world", "--set", "neighbours=3") == (
        "--set: neighbours: expected an even number of at least 2 (got 3)"
    )
    assert mistake(ConfigError, "file") == "--set: path: missing, expected text"
    assert "center: expected a position from 0 to 3" in mistake(
        UserError, "star", "-n", 4, "--set", "center=4"
    )
    assert "NAME: expected a topology" in mistake(UserError, "--set", "center=1")


@pytest.mark.parametrize(
    "arguments",
    [("-n", 0), ("-n", 4097), ("--factor", 1.5), ("-n", "many")],
)
def test_numbers_out_of_range_are_wrong_usage(arguments):
    assert run("ring", *arguments).exit_code == 2


DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text()


@pytest.mark.parametrize("name", [name for name in topology_names() if name != "file"])
def test_the_table_of_the_documentation_holds(name):
    row = next(line for line in DOCUMENTATION.splitlines() if line.startswith(f"| `{name}` |"))
    _, _, _, _, gap, rounds, drawn, *_ = (cell.strip() for cell in row.split("|"))
    found = told(name, "-n", 16)
    assert float(gap) == pytest.approx(found["spectral_gap"], abs=5e-4)
    assert int(rounds) == found["rounds_to_1000th"]
    assert (int(drawn) if drawn else None) == found["rounds_to_1000th_drawn"]


def test_the_example_of_the_documentation_holds():
    printed = [line.rstrip() for line in run("star", "-n", 5).stdout.splitlines()]
    assert "\n".join(printed) in DOCUMENTATION
