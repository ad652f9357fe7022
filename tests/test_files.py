"""Files are written through names that nobody can foresee, and nobody waits for a pipe."""

import os
from contextlib import suppress

import numpy as np
import pytest
from support.nodes import config_of
from support.open_cluster import cluster

from dpwa import DpwaConnection, fault_points
from dpwa.files import open_regular, written
from dpwa.observe.run_log_reader import find_files
from dpwa.report.style import drawing, new_figure, save_png
from dpwa.state.checkpoints import CheckpointFolder


def test_a_file_is_replaced_as_a_whole_and_a_link_in_its_place_is_not_followed(tmp_path):
    path, precious = tmp_path / "file", tmp_path / "precious"
    precious.write_text("precious")
    path.symlink_to(precious)
    for text in (b"one", b"another"):
        with written(path, is_durable=True) as out:
            out.write(text)
            (unfinished,) = set(tmp_path.iterdir()) - {path, precious}
            assert unfinished.name.startswith(".file.")
        assert not path.is_symlink()
        assert path.read_bytes() == text
    with pytest.raises(TypeError), written(path) as out:
        out.writelines([b"half", "text"])
    assert path.read_bytes() == b"another"
    assert precious.read_text() == "precious"
    assert set(tmp_path.iterdir()) == {path, precious}


@pytest.mark.parametrize("mode", ["r", "w", "a"])
def test_nobody_waits_for_a_pipe(tmp_path, mode):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError), open(path, mode, opener=open_regular):  # noqa: PT011
        pass


@pytest.mark.parametrize("mode", ["w", "a", "x"])
def test_what_is_appended_to_or_begun_is_no_link(tmp_path, mode):
    precious, path = tmp_path / "precious", tmp_path / "link"
    precious.write_text("precious")
    path.symlink_to(precious)
    with pytest.raises(OSError), open(path, mode, opener=open_regular):  # noqa: PT011
        pass
    assert precious.read_text() == "precious"


def test_links_that_another_user_plants_while_a_node_writes_are_not_followed(tmp_path):
    """As soon as a name is seen in the folder, all names that can be made of it are links."""
    precious, folder, seen = tmp_path / "precious", tmp_path / "shared", set()
    precious.write_text("precious")

    def plant(_point):
        for path in [*folder.iterdir()]:
            stem, seen_before = path.name.strip("."), path.name in seen
            seen.add(path.name)
            if seen_before or path.is_symlink():
                continue
            base = stem.split(".")[0]
            for name in (base, f".{base}"):
                for suffix in (".json", ".json.tmp", ".safetensors.tmp", ".members.json.tmp"):
                    with suppress(FileExistsError):
                        (folder / (name + suffix)).symlink_to(precious)

    with cluster(state_dir=str(folder)) as nodes:
        alone = {"checkpoint": {"dir": str(folder), "every_steps": 1}, "initial_state": "own"}
        fault_points.install(plant)
        try:
            with DpwaConnection("w1", {**config_of(1), **alone}) as node:
                for _ in range(3):
                    node.update_send(np.ones(10))
                    node.update_wait()
                    node.states._writer.close()
            nodes.add("w2")
            nodes.add("w3", "w2")
            nodes.close("w2")
        finally:
            fault_points.install(None)
    assert len(list(CheckpointFolder(folder, "w1", 3).newest_first())) >= 2
    assert (folder / "w2.members.json").is_file()
    assert precious.read_text() == "precious"


def test_a_pipe_in_place_of_the_members_holds_nobody_up(tmp_path, caplog):
    path = tmp_path / "w1.members.json"
    os.mkfifo(path)
    with cluster(state_dir=str(tmp_path)) as nodes:
        nodes.add("w1")
    assert f"{path} cannot be read (not a regular file) [DPWA-W043]" in caplog.text


def test_a_pipe_among_run_logs_is_passed_over(tmp_path):
    with DpwaConnection("w1", config_of(1, run_log=str(tmp_path))):
        pass
    os.mkfifo(tmp_path / "w2-20240101T000000-5.jsonl")
    assert [log.name for log in find_files(tmp_path)[0]] == ["w1"]


def test_a_picture_replaces_a_link(tmp_path):
    precious, path = tmp_path / "precious", tmp_path / "chart.png"
    precious.write_text("precious")
    path.symlink_to(precious)
    with drawing():
        save_png(new_figure(2.0), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert precious.read_text() == "precious"
