from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from dpwa.demo.chart import _points, draw_chart, node_colour
from dpwa.demo.records import History, Record


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
