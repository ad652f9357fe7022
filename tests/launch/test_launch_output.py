from __future__ import annotations

import os
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dpwa.launch.local import MAX_LINE_CHARS, LineSplitter, OutputPipe


def lines_of(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))), st.data())
def test_lines_do_not_depend_on_where_the_chunks_end(lines: list[str], data: st.DataObject) -> None:
    output = "".join(line + "\n" for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=5)))
    ends = [0, *cuts, len(output)]
    chunks = [output[start:end] for start, end in pairwise(ends)]
    assert lines_of(*chunks) == lines


@given(st.lists(st.binary()))
def test_no_bytes_are_refused(chunks: list[bytes]) -> None:
    text = "\n".join(lines_of(*chunks))
    readable = b"".join(chunks).decode(errors="replace")
    assert text.split() == readable.split()


def test_a_last_line_without_an_end_is_kept() -> None:
    assert lines_of(b"one\ntw", b"o") == ["one", "two"]


def test_half_a_character_at_the_end_is_marked() -> None:
    assert lines_of("100 €".encode()[:-1]) == ["100 �"]


def test_empty_lines_are_kept() -> None:
    assert lines_of(b"\n\na\n") == ["", "", "a"]


def test_each_state_of_a_progress_bar_is_a_line() -> None:
    assert lines_of(b"10%\r20%\r", b"\n30%\r\n") == ["10%", "20%", "30%"]


def test_a_line_that_never_ends_comes_in_pieces_and_is_not_hoarded() -> None:
    splitter = LineSplitter()
    chunk = b"x" * 65_536
    pieces = [piece for _ in range(80) for piece in splitter.feed(chunk)]
    assert len(pieces) == 5
    assert {len(piece) for piece in pieces} == {MAX_LINE_CHARS}


def test_a_pipe_with_nothing_in_it_does_not_block() -> None:
    reading, writing = os.pipe()
    pipe = OutputPipe(os.fdopen(reading, "rb", buffering=0))
    assert pipe.read_lines() == []
    os.write(writing, b"late\nla")
    assert pipe.read_lines() == ["late"]
    os.close(writing)
    assert pipe.read_lines() is None
    assert pipe.close() == ["la"]
    assert pipe.closed
