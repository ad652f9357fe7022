"""Topologies of a configuration: files of edges, and whether they fit the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpwa.config import Config, load_config
from dpwa.config.graphs import found_from, topology_of
from dpwa.errors import ConfigError
from dpwa.policy.topology import FileOptions, StarOptions

NODES = "nodes: [{name: w1, port: 1}, {name: w2, port: 2}, {name: w3, port: 3}]\n"
BY_FILE = f"{NODES}topology: file\nfile: {{path: edges.txt}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder below that of the working directory, with edges beside the configuration."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "edges.txt").write_text("w1 w2\nw2 -> w3\nw3 -> w1\n")
    return folder


def load(text: str, folder: Path, **environ: str) -> Config:
    (folder / "run.yaml").write_text(text)
    return load_config(folder / "run.yaml", environ=environ)


def problems_of(text: str, folder: Path, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, folder, **environ)
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def test_the_path_of_a_file_is_relative_to_the_configuration(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    (folder / "run.yaml").write_text(BY_FILE)
    config = load_config("runs/run.yaml", environ={})
    assert config.options_of("file") == FileOptions(path=str(folder / "edges.txt"))
    monkeypatch.chdir("/")
    options, names = config.options_of("file"), ["w1", "w2", "w3"]
    assert topology_of("file", options, names).rule(options, 1, 3, 0) == (0, 2)
    assert load_config(config.to_mapping(), environ={}) == config
    assert load(config.to_yaml(), folder.parent) == config


def test_an_absolute_path_stays(folder: Path) -> None:
    text = BY_FILE.replace("edges.txt", str(folder / "edges.txt"))
    assert load(text, folder.parent) == load(BY_FILE, folder)


def test_in_a_mapping_the_path_is_relative_to_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    nodes = [{"name": name, "port": port} for port, name in enumerate(("w1", "w2", "w3"), 1)]
    source = {"nodes": nodes, "topology": "file", "file": {"path": "edges.txt"}}
    assert load_config(source, environ={}) == load(BY_FILE, folder)


def test_the_environment_can_choose_a_file(folder: Path) -> None:
    environ = {"DPWA_TOPOLOGY": "file", "DPWA_FILE__PATH": "edges.txt"}
    assert load(NODES, folder, **environ) == load(BY_FILE, folder)
    (folder / "edges.txt").unlink()
    assert problems_of(NODES, folder, **environ) == [
        "environment: DPWA_FILE__PATH: edges.txt: expected a readable file (No such file or "
        "directory)"
    ]


def test_only_options_of_a_file_have_a_path(tmp_path: Path) -> None:
    assert found_from(tmp_path, StarOptions()) == StarOptions()
    assert found_from(tmp_path, FileOptions(path="e")) == FileOptions(path=f"{tmp_path}/e")


def test_an_empty_path_is_that_of_the_folder(folder: Path) -> None:
    (problem,) = problems_of(BY_FILE.replace("edges.txt", "''"), folder)
    expected = f"file.path: {folder}: expected a readable file (Is a directory)"
    assert problem == f"run.yaml:3:14: {expected}"


def test_a_file_that_is_not_in_use_is_not_read(folder: Path) -> None:
    text = f"{NODES}file: {{path: nowhere.txt}}\n"
    assert load(text, folder).options_of("file") == FileOptions(path=f"{folder}/nowhere.txt")


def test_mistakes_in_the_file_have_places_of_their_own(folder: Path) -> None:
    (folder / "edges.txt").write_text("w1 w2\n\n  w2 -> w33\nw3 w3 # again\n")
    assert problems_of(BY_FILE + "seed: x\n", folder) == [
        "run.yaml:4:7: seed: expected a whole number from 0 to 9223372036854775807 or nothing "
        "(got x)",
        "edges.txt:3:3: w33: expected the name of a node. Did you mean w3?",
        "edges.txt:4:1: expected two different nodes (got w3 twice)",
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "expected a readable file (No such file or directory)"),
        ("# none\n", "expected edges, such as w1 w2 (the file has no edges)"),
    ],
)
def test_a_file_without_edges_is_told_where_it_is_named(
    content: str | None, problem: str, folder: Path
) -> None:
    (folder / "edges.txt").unlink()
    if content is not None:
        (folder / "edges.txt").write_text(content)
    assert problems_of(BY_FILE, folder) == [f"run.yaml:3:14: file.path: edges.txt: {problem}"]


def test_nodes_that_nothing_comes_to_are_refused(folder: Path) -> None:
    (folder / "edges.txt").write_text("w1 w2\nw3 -> w1\n")
    assert problems_of(BY_FILE, folder) == [
        "run.yaml:2:11: topology: expected a path from every node to every other node (the "
        "parameters of w3 never reach w1)"
    ]


def test_a_topology_that_does_not_fit_the_nodes_is_refused(folder: Path) -> None:
    assert problems_of(f"{NODES}topology: star\nstar: {{center: 3}}\nseed: x\n", folder) == [
        "run.yaml:2:11: topology: star: center: expected a position from 0 to 2 (got 3)",
        "run.yaml:4:7: seed: expected a whole number from 0 to 9223372036854775807 or nothing "
        "(got x)",
    ]
    assert load(f"{NODES}star: {{center: 3}}\n", folder).topology == "random"


def test_nodes_that_are_wrong_themselves_are_told_first(folder: Path) -> None:
    text = BY_FILE.replace("name: w3", "name: w2").replace("edges.txt", "nowhere.txt")
    assert problems_of(text, folder) == [
        "run.yaml:1:58: nodes[2].name: expected a unique name (got w2, already used by nodes[1])"
    ]


@pytest.mark.parametrize("name", ["ring", "grid", "exponential", "one_peer_exponential", "full"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_topologies_of_dpwa_fit_any_number_of_nodes(name: str, nodes: int) -> None:
    listed = [{"name": f"w{port}", "port": port} for port in range(1, nodes + 1)]
    assert load_config({"nodes": listed, "topology": name}, environ={}).topology == name
