from __future__ import annotations

import json
import math
import re
import struct
import threading
import zlib

import numpy as np
import pytest

from dpwa.demo.progress import PlainView, progress_view
from dpwa.demo.records import History, Record, parse_record
from dpwa.demo.report import (
    _points,
    conclusion,
    consensus_distance,
    draw_chart,
    node_colour,
    print_json,
    show_report,
    summarise,
)


def record(phase: str, step: int, accuracy: float, merges: int = 0) -> Record:
    return Record(
        phase=phase, step=step, seconds=step / 10, loss=0.5, accuracy=accuracy, merges=merges
    )


@pytest.fixture
def history(tmp_path) -> History:
    history = History(("w1", "w2"))
    for number, name in enumerate(history.names):
        history.add(name, record("alone", 0, 0.1))
        history.add(name, record("alone", 20, 0.3 + 0.1 * number))
        history.add(name, record("gossip", 20, 0.8, merges=19))
        history.add(name, record("mixing", 20, 0.9, merges=50 + number))
        np.savez(tmp_path / f"{name}.npz", weight=np.full((2, 2), float(number)), bias=np.zeros(3))
    return history


def test_consensus_distance_is_the_root_mean_square_distance_from_the_mean():
    vectors = np.random.default_rng(0).normal(size=(5, 1000))
    mean = sum(vectors) / 5
    expected = math.sqrt(sum(np.linalg.norm(vector - mean) ** 2 for vector in vectors) / 5)
    assert consensus_distance(list(vectors)) == pytest.approx(expected, rel=1e-12)


def test_consensus_distance_of_equals_is_zero():
    assert consensus_distance([np.ones(7)] * 4) == 0.0


def test_summary_takes_the_last_figures_of_each_phase(history, tmp_path):
    result = summarise(history, ("w1", "w2"), tmp_path, seconds=12.345)
    first, second = result.nodes
    assert (first.name, first.steps, first.merges) == ("w1", 20, 50)
    assert (first.accuracy, first.alone_accuracy) == (0.9, 0.3)
    assert second.alone_accuracy == 0.4
    assert result.mean_accuracy == pytest.approx(0.9)
    assert result.mean_alone_accuracy == pytest.approx(0.35)
    # Four weights differ by 1: each node is sqrt(4 * 0.25) from the mean.
    assert result.consensus_distance == pytest.approx(1.0)
    assert result.gossip_won()
    assert "0.900 with gossip, 0.350 alone (+0.550)" in conclusion(result)


def test_verdict_says_so_when_gossip_lost(history, tmp_path):
    result = summarise(history, ("w1",), tmp_path, seconds=1.0)
    lost = result.model_copy(update={"mean_accuracy": 0.2})
    assert not lost.gossip_won()
    assert conclusion(lost).startswith("Gossip did not win")


REPORTED = ("w1", "w2", "Consensus distance 1", "somewhere/demo.png", "Gossip won")


def test_the_report_is_on_stdout(history, tmp_path, capsys):
    result = summarise(history, ("w1", "w2"), tmp_path, seconds=3.0)
    show_report(result, [("Curves", "somewhere/demo.png")])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert all(text in captured.out for text in REPORTED)


def test_json_is_alone_on_stdout_and_the_report_beside_it_on_stderr(history, tmp_path, capsys):
    result = summarise(history, ("w1", "w2"), tmp_path, seconds=3.0)
    show_report(result, [("Curves", "somewhere/demo.png")], is_result=False)
    print_json(result)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["seconds"] == 3.0
    assert all(text in captured.err for text in REPORTED)


def test_a_line_that_is_no_record_is_told_apart():
    assert parse_record(record("alone", 3, 0.5).model_dump_json()) == record("alone", 3, 0.5)
    assert parse_record("hello") is None
    assert parse_record('{"phase": "elsewhere"}') is None


def test_plain_progress_follows_the_slowest_node(capsys, monkeypatch):
    monkeypatch.setattr("dpwa.demo.progress.PLAIN_INTERVAL_S", 0.0)
    view = PlainView(("w1", "w2"), steps=20)
    view.show("w1", record("gossip", 10, 0.8))
    view.show("w2", record("alone", 20, 0.4))
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("1 of 2 nodes have started")
    assert second.endswith("training alone: step 20 of 20, mean test accuracy 0.40")


def test_plain_progress_averages_what_nodes_had_in_the_phase_it_names(capsys, monkeypatch):
    monkeypatch.setattr("dpwa.demo.progress.PLAIN_INTERVAL_S", 0.0)
    view = PlainView(("w1", "w2"), steps=20)
    view.show("w1", record("alone", 20, 0.3))
    view.show("w1", record("gossip", 10, 0.9))
    view.show("w2", record("alone", 20, 0.4))
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("training alone: step 20 of 20, mean test accuracy 0.35")


def test_plain_progress_says_who_is_still_starting(capsys):
    view, ended = PlainView(("w1", "w2"), steps=20), threading.Event()
    view.show("w1", record("alone", 0, 0.1))
    capsys.readouterr()
    watch = threading.Thread(target=view.watch_start, args=(ended, 0.01))
    watch.start()
    seen = ""
    while "w2 still start" not in seen:
        seen += capsys.readouterr().err
    view.show("w2", record("alone", 0, 0.1))
    watch.join(30.0)
    assert not watch.is_alive()
    assert "w1" not in seen
    ended.set()


def test_plain_progress_names_a_failed_node_and_follows_the_others(capsys, monkeypatch):
    monkeypatch.setattr("dpwa.demo.progress.PLAIN_INTERVAL_S", 0.0)
    view = PlainView(("w1", "w2"), steps=20)
    view.failed("w2", -9)
    view.show("w1", record("gossip", 10, 0.8))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "w2 has failed (exit code -9)"
    assert second.endswith("training with gossip: step 10 of 20, mean test accuracy 0.80")


def test_plain_progress_says_at_once_that_all_who_are_left_wait(capsys):
    view = PlainView(("w1", "w2"), steps=20)
    view.show("w2", record("alone", 10, 0.3))
    view.show("w1", record("meeting", 0, 0.1))
    view.failed("w2", -9)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("training alone: step 10 of 20, mean test accuracy 0.30")
    assert lines[1] == "w2 has failed (exit code -9)"
    assert lines[2].endswith("waiting for others, at most 15 s")
    assert len(lines) == 3


@pytest.mark.parametrize("columns", ["40", "80"])
def test_report_shows_names_and_figures_whole_at_any_width(
    history, tmp_path, capsys, monkeypatch, columns
):
    monkeypatch.setenv("COLUMNS", columns)
    show_report(summarise(history, ("w1", "w2"), tmp_path, seconds=1.0), [])
    table, _, rest = capsys.readouterr().out.partition("Consensus")
    assert ("merges" in table) == ("merges" in rest)  # what is not shown is not explained
    rows = [line for line in table.splitlines() if "w1" in line]
    assert [cell.strip() for cell in rows[0].strip("│").split("│")] == (
        ["w1", "20", "0.900", "0.300"] if columns == "40" else ["w1", "20", "50", "0.900", "0.300"]
    )
    assert all(len(line) <= int(columns) for line in table.splitlines())


@pytest.mark.parametrize("columns", ["40", "80"])
def test_live_progress_shows_names_and_figures_whole_at_any_width(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    names = tuple(f"w{number}" for number in range(1, 13))
    with progress_view(names, steps=600) as view:
        for name in names:
            view.show(name, record("gossip", 300, 0.85, merges=250))
        view.failed("w12", -9)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    for name in names:
        line = [line for line in shown.splitlines() if line.startswith(f"{name} ")][-1]
        assert "300/600" in line
        assert "0.85" in line
    assert "failed (-9)" in shown
    assert "…" not in shown
    assert all(len(line.rstrip()) <= int(columns) for line in re.split(r"[\r\n]", shown))


def made_up_history(count: int) -> History:
    history = History([f"w{number}" for number in range(1, count + 1)])
    for number, name in enumerate(history.names):
        for phase, best in (("alone", 0.3), ("gossip", 0.95)):
            for step in range(0, 101, 10):
                history.add(
                    name,
                    Record(
                        phase=phase,
                        step=step,
                        seconds=step / 100,
                        loss=None if step == 0 else (1 + number) / step,
                        accuracy=best * (1 - 0.9 * 0.95**step),
                    ),
                )
    return history


def test_the_curve_of_gossip_ends_behind_the_last_step_with_what_finish_has_made():
    history = made_up_history(1)
    end = Record(phase="mixing", step=100, seconds=0.5, loss=None, accuracy=0.97)
    history.add("w1", end)
    *_, last, after = _points(history, "w1", "gossip", lambda record: record.accuracy)
    assert last[0] == 100
    assert after[0] > 100
    assert after[1] == 0.97


def png_size_and_bytes(content: bytes) -> tuple[int, int, bytes]:
    """Read a PNG by hand: checks the signature and inflates its pixels."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    position, packed = 8, b""
    while position < len(content):
        (length,) = struct.unpack(">I", content[position : position + 4])
        if content[position + 4 : position + 8] == b"IDAT":
            packed += content[position + 8 : position + 8 + length]
        position += 12 + length
    return width, height, zlib.decompress(packed)


@pytest.mark.parametrize("count", [2, 12])
def test_chart_is_a_readable_png_with_something_on_it(tmp_path, count):
    history = made_up_history(count)
    draw_chart(history, history.names, tmp_path / "demo.png")
    width, height, pixels = png_size_and_bytes((tmp_path / "demo.png").read_bytes())
    assert width >= 1200
    assert height >= 600
    assert len(np.unique(np.frombuffer(pixels, dtype=np.uint8))) > 50


def test_chart_of_a_single_record_per_phase_is_drawn(tmp_path):
    history = History(["w1"])
    for phase in ("alone", "gossip"):
        history.add(
            "w1", Record(phase=phase, step=1, seconds=0.1, loss=2.0, accuracy=0.1, merges=0)
        )
    draw_chart(history, history.names, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.parametrize("count", [2, 8, 9, 30])
def test_every_node_has_its_own_colour(count):
    assert len({node_colour(position, count) for position in range(count)}) == count
