"""`dpwa topology`: tables, JSON, drawings, and what it says about mistakes."""

import importlib.util
import json
import math
import xml.etree.ElementTree as ET
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
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])


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
        "summary": "Up, down, left and right, in rows and columns with borders.",
    }


def test_tables_show_neighbours_matrix_and_figures():
    result = run("ring", "-n", 4)
    assert result.exit_code == 0
    assert result.stderr == ""
    text = result.stdout
    assert "ring, 4 nodes, factor 0.5" in text
    assert "w1   w2, w4" in text
    assert "w1 0.500 0.250     · 0.250" in text
    for words in ("spectral gap", "0.5 1 - |λ2|", "ln 1000 / -ln |λ2|", "doubly stochastic"):
        assert words in text


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
    assert "0.5 of w3 in what they agree on, 2.5 times a fair share" in text


def test_a_topology_with_rounds_shows_all_of_them_or_one():
    found = told("one_peer_exponential", "-n", 8)
    assert [row["neighbours"]["w1"] for row in found["rounds"]] == [["w2"], ["w3"], ["w5"]]
    assert found["matrix"] == [[0.125] * 8] * 8
    assert (found["rounds_to_1000th"], found["period"]) == (3, 3)
    assert "round 2" in run("one_peer_exponential").stdout
    one = told("one_peer_exponential", "-n", 8, "--round", 4)
    assert [(row["round"], row["neighbours"]["w1"]) for row in one["rounds"]] == [(4, ["w3"])]
    assert one["matrix"][0][2] == 0.5
    assert one["spectral_gap"] == found["spectral_gap"]


def test_long_tables_are_cut_and_say_so():
    text = run("ring", "-n", 100).stdout
    assert "and 36 more; --json has them all" in text
    assert "shown for at most 12 nodes" in text


def test_a_file_brings_its_own_names(edges):
    found = told("file", "--set", f"path={edges}")
    assert found["nodes"] == ["north", "south", "east"]
    assert found["rounds"][0]["neighbours"]["south"] == ["north", "east"]
    assert "edges.txt, 3 nodes" in run("file", "--set", f"path={edges}").stdout
    message = mistake(UserError, "file", "-n", 4, "--set", f"path={edges}")
    assert message == f"{edges}: expected 4 nodes (got 3)"


def test_a_graph_that_leaves_nodes_behind_names_a_pair_and_exits_with_1(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("a b\nc -> a")
    result = run("file", "--set", f"path={path}")
    assert result.exit_code == 1
    assert "nothing that c learns ever comes to a" in " ".join(result.stdout.split())
    assert json.loads(run("file", "--set", f"path={path}", "--json").stdout)["unreachable"] == [
        "a",
        "c",
    ]


def test_mistakes_say_what_was_expected(tmp_path, edges):
    assert "(got rnig); did you mean ring?" in mistake(UnknownNameError, "rnig")
    assert mistake(ConfigError, "grid", "--set", "colums=3", "--set", "x") == (
        "--set: colums: unknown key; did you mean columns?\n--set: expected KEY=VALUE (got x)"
    )
    assert mistake(ConfigError, "small_world", "--set", "neighbours=3") == (
        "--set: neighbours: expected an even number of at least 2 (got 3)"
    )
    assert mistake(ConfigError, "file") == "--set: path: missing, expected text"
    assert "center: expected a position from 0 to 3" in mistake(
        UserError, "star", "-n", 4, "--set", "center=4"
    )
    assert "NAME: expected a topology" in mistake(UserError, "--draw", tmp_path / "x.png")


@pytest.mark.parametrize(
    "arguments",
    [("-n", 0), ("-n", 4097), ("--factor", 1.5), ("--round", -1), ("-n", "many")],
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


class TestDrawing:
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("ring", ("-n", 1)),
            ("ring", ("-n", 2)),
            ("torus", ("-n", 14)),
            ("star", ("-n", 30)),
            ("exponential", ("-n", 60)),
            ("one_peer_exponential", ("-n", 8, "--round", 1)),
        ],
    )
    def test_names_every_node_and_tells_the_gap(self, tmp_path, name, arguments):
        path = tmp_path / "drawing.svg"
        assert run(name, *arguments, "--draw", path).exit_code == 0
        # Letters are drawn as shapes; what they say stands in comments before them.
        parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
        root = ET.fromstring(path.read_text(), parser)
        texts = {item.text.strip() for item in root.iter() if item.tag is ET.Comment}
        assert {f"w{number}" for number in range(1, arguments[1] + 1)} <= texts
        assert any(text.startswith("spectral gap") for text in texts)
        assert any(text.startswith(f"{name}, ") for text in texts)

    def test_is_a_png_as_well(self, tmp_path, edges):
        path = tmp_path / "drawing.PNG"
        result = run("file", "--set", f"path={edges}", "--draw", path)
        assert result.exit_code == 0
        assert f"{path}: written" in result.stderr.replace("\n", "")
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

    def test_goes_to_a_file_that_can_be_written(self, tmp_path):
        assert "cannot be written" in mistake(
            UserError, "ring", "--draw", tmp_path / "none" / "x.png"
        )
        assert mistake(UserError, "ring", "--draw", "x.pdf") == (
            "--draw: expected a file that ends in .svg or .png (got x.pdf)"
        )

    def test_has_a_limit(self):
        assert mistake(UserError, "ring", "-n", 257, "--draw", "x.png") == (
            "--draw: expected at most 256 nodes (got 257)"
        )

    def test_says_which_library_is_missing(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert '".[plot]"' in mistake(UserError, "ring", "--draw", "x.png")
