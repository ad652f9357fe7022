from __future__ import annotations

import re
import struct
import zlib

import numpy as np
import pytest
from support.commands import run_dpwa

from dpwa.demo.progress import progress_of
from dpwa.demo.records import History, Record, parse_record
from dpwa.demo.report import DemoResult, NodeResult, _points, draw_chart, summarise


def record(phase: str, step: int, accuracy: float, merges: int = 0) -> Record:
    distance = 0.5 + accuracy if phase == "finish" else None
    return Record(
        phase=phase,
        step=step,
        loss=0.5,
        accuracy=accuracy,
        merges=merges,
        consensus_distance=distance,
    )


@pytest.fixture
def history() -> History:
    history = History(("w1", "w2"))
    for number, name in enumerate(history.names):
        history.add_record(name, record("alone", 0, 0.1))
        history.add_record(name, record("alone", 20, 0.3 + 0.1 * number))
        history.add_record(name, record("gossip", 20, 0.8, merges=19))
        history.add_record(name, record("finish", 20, 0.9, merges=50 + number))
    return history


def test_a_result_is_that_of_the_last_records(history):
    result = summarise(history, ("w1", "w2"), seconds=12.345)
    assert [node.merges for node in result.nodes] == [50, 51]
    assert (result.mean_accuracy, result.seconds) == (pytest.approx(0.9), 12.35)
    assert result.mean_alone_accuracy == pytest.approx(0.35)
    assert result.consensus_distance == pytest.approx(1.4)
    assert result.gossip_won()


def shown(monkeypatch, tmp_path, columns: int, accuracy: float = 0.9, *options: str):
    node = NodeResult(name="w1", steps=20, merges=50, accuracy=accuracy, alone_accuracy=0.3)
    result = DemoResult(
        nodes=(node,),
        mean_accuracy=accuracy,
        mean_alone_accuracy=0.3,
        consensus_distance=1e-7,
        seconds=1.0,
    )
    monkeypatch.setattr("dpwa.demo.run.run_demo", lambda *_: (result, {}))
    environment = {"COLUMNS": str(columns)}
    return run_dpwa("demo", "--out-dir", tmp_path, *options, environment=environment)


@pytest.mark.parametrize("columns", [30, 50, 80])
def test_names_and_figures_are_whole_at_any_width(monkeypatch, tmp_path, columns):
    ran = shown(monkeypatch, tmp_path, columns)
    assert (ran.exit_code, ran.stderr) == (0, "")
    table = ran.stdout.partition("Gossip won")[0]
    assert all(len(line) <= columns for line in table.splitlines())
    if columns > 40:
        assert "w1      20     50       0.900 0.300" in table
    assert f"dpwa report {tmp_path}" in ran.stdout


def test_that_gossip_has_lost_is_said_and_is_a_failure(monkeypatch, tmp_path):
    ran = shown(monkeypatch, tmp_path, 80, 0.2)
    assert ran.exit_code == 1
    assert "Gossip did not win: mean test accuracy 0.200 with gossip, 0.300 alone." in ran.stdout


def test_a_line_that_is_no_record_is_told_apart():
    assert parse_record(record("alone", 3, 0.5).model_dump_json()) == record("alone", 3, 0.5)
    assert parse_record("hello") is None
    assert parse_record('{"phase": "elsewhere"}') is None


def test_lines_follow_the_slowest_node_and_name_one_that_failed(capsys):
    with progress_of(("w1", "w2", "w3"), steps=20) as view:
        view.show("w1", record("gossip", 10, 0.8))
        view.show("w2", record("gossip", 12, 0.8))
        view.failed("w3", -9)
        view.show("w1", record("gossip", 15, 0.8))
        view.show("w2", record("finish", 20, 0.9))
        view.show("w1", record("finish", 20, 0.9))
    first, failed, gossip, finish = capsys.readouterr().err.splitlines()
    assert first.startswith("3 nodes start")
    assert failed == "w3 has failed (exit code -9)"
    assert gossip.endswith("the slowest node gossips: step 10 of 20, accuracy 0.80")
    assert finish.endswith("the slowest node finishes: step 20 of 20, accuracy 0.90")


@pytest.mark.parametrize("columns", ["40", "80"])
def test_live_progress_shows_names_and_figures_whole_at_any_width(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    names = tuple(f"w{number}" for number in range(1, 13))
    with progress_of(names, steps=600) as view:
        for name in names:
            view.show(name, record("gossip", 300, 0.85, merges=250))
        view.failed("w12", -9)
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    for name in names:
        line = [line for line in seen.splitlines() if line.startswith(f"{name} ")][-1]
        assert "300/600" in line
        assert "0.85" in line
    assert "failed (-9)" in seen
    assert "…" not in seen
    assert all(len(line.rstrip()) <= int(columns) for line in re.split(r"[\r\n]", seen))


def made_up_history(count: int) -> History:
    history = History([f"w{number}" for number in range(1, count + 1)])
    for number, name in enumerate(history.names):
        for phase, best in (("alone", 0.3), ("gossip", 0.95)):
            for step in range(0, 101, 10):
                history.add_record(
                    name,
                    Record(
                        phase=phase,
                        step=step,
                        loss=None if step == 0 else (1 + number) / step,
                        accuracy=best * (1 - 0.9 * 0.95**step),
                    ),
                )
        history.add_record(name, Record(phase="finish", step=100, loss=None, accuracy=0.97))
    return history


def test_the_curve_of_gossip_ends_behind_the_last_step_with_what_finish_has_made():
    history = made_up_history(1)
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
    for phase in ("alone", "gossip", "finish"):
        history.add_record("w1", Record(phase=phase, step=1, loss=2.0, accuracy=0.1))
    draw_chart(history, history.names, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 10_000
