"""`dpwa report`: a page that says who was slow and who was lost, and how one can tell."""

import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
from support.commands import run_dpwa
from support.nodes import config_of
from support.pages import Page
from support.run_logs import BEGAN, write_log
from support.times import HANGS_AFTER_S

from dpwa import DpwaConnection
from dpwa.observe.run_log_reader import read_run
from dpwa.report.curves import speed_curves
from dpwa.report.facts import facts_of
from dpwa.report.page import findings, page_of, sentences

HOSTILE = '$\\a$<b onload="x">&</b>'
PICTURES = ("loss", "speed", "consensus", "time", "pairs", "staleness", "bytes", "events")
LATER = BEGAN + 1e6


def facts_in(folder, now=LATER):
    return facts_of(read_run(folder), now)


def told(facts):
    return [f"{name} {verdict.text}".strip() for name, verdict in findings({"run": facts})]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of ten nodes: w3 is slow, w5 is killed, w7 is started again, one has a bad name."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("ten")
    lost = [(1, "joined", "w5"), (12, "unreachable", "w5"), (12.5, "dead", "w5")]
    for number in (1, 2, 4, 6, 8, 9):
        write_log(folder, f"w{number}", events=lost, peers={"w3": number, HOSTILE: 2})
    write_log(folder, "w3", speed=1.0)
    write_log(folder, "w5", seconds=11, ends=False)
    write_log(folder, "w7", seconds=5, ends=False)
    write_log(folder, "w7", seconds=9, began=BEGAN + 11, pid=101, consensus_distance=None)
    write_log(folder, HOSTILE, file_name="w10", events=[(2, "checkpoint", HOSTILE)])
    return folder


@pytest.fixture(scope="module")
def report(run_dir):
    """What the command has said of it."""
    result = run_dpwa("report", run_dir)
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def html(run_dir, report):
    return (run_dir / "report" / "report.html").read_text()


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_it_names_the_slow_and_the_lost_with_the_reason(report, page):
    for text in (report.stdout, page.text):
        assert "w5 was killed, or its machine failed, at" in text
        assert "w1, w2, w4, w6 and 2 more lost the connection to this node" in text
        assert "considered this node dead. The node announced no end. Its log has no end" in text
        assert "w3 takes 1 steps/s (median of the other nodes: 5), which is 5.0 x slower" in text
        assert "w7 was restarted, at" in text
        assert "6.0 s after its log ended without an end line" in text
        assert "10 nodes trained for 20 s" in text


def test_the_page_is_in_order_and_needs_nothing_else(page, html):
    assert page.mistakes == []
    assert page.headings.count(1) == 1
    assert page.tags.count("svg") == len(PICTURES)
    assert len(html) < 2_000_000
    assert "prefers-color-scheme:dark" in html


def test_names_from_files_are_text_wherever_they_stand(page, html):
    assert "<b onload" not in html
    assert HOSTILE in page.text  # in tables
    assert f"{HOSTILE[:13]}…" in page.text  # in pictures


def test_each_picture_is_a_file_too(run_dir, page):
    for name in PICTURES:
        data = (run_dir / "report" / f"{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 4000


def test_the_pictures_and_the_page_say_the_same(page):
    assert "w3 (slow)" in page.text  # of ten nodes, those that stand out have a colour
    assert "w5 (lost)" in page.text
    assert "the others" in page.text


def test_two_nodes_that_really_ran(tmp_path):
    config = config_of(2, run_log=str(tmp_path))
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        steps = merges = 0
        end = time.monotonic() + HANGS_AFTER_S
        while merges < 4 and time.monotonic() < end:
            steps += 1
            for connection in (two, one):
                connection.update_send(np.full(1000, 1.0), 1 / steps)
                merges += connection.update_wait()[0] is not None
    facts = facts_in(tmp_path)
    assert [node.log.total("steps") for node in facts.nodes.values()] == [steps, steps]
    assert all(node.end == "ended" for node in facts.nodes.values())
    exchanged = [facts.nodes[a].log.exchanged[b].merges for a, b in (("w1", "w2"), ("w2", "w1"))]
    assert sum(exchanged) == merges >= 4
    assert facts.best.log.best.loss == 1 / steps
    assert told(facts) == []
    assert "2 nodes trained for" in next(sentences({"run": facts}))


def test_a_run_that_was_interrupted_has_not_ended_well(tmp_path):
    config = config_of(1, run_log=str(tmp_path))
    with suppress(KeyboardInterrupt), DpwaConnection("w1", config) as connection:
        connection.update_send(np.zeros(4))
        raise KeyboardInterrupt
    page = page_of({"run": facts_in(tmp_path)}, None, ())
    assert "ended, broken off by KeyboardInterrupt, " in page
    assert "finished" not in page


def test_a_run_that_is_still_at_work_has_lost_nobody(tmp_path):
    write_log(tmp_path, "w1", ends=False)
    write_log(tmp_path, "w2", ends=False)
    facts = facts_in(tmp_path, now=BEGAN + 21)
    assert facts.is_running
    assert told(facts) == []
    assert "so far" in next(sentences({"run": facts}))


def test_whom_others_miss_is_lost_within_seconds_while_they_train_on(tmp_path):
    write_log(tmp_path, "w1", ends=False, events=[(13, "unreachable", "w3")])
    write_log(tmp_path, "w2", ends=False)
    write_log(tmp_path, "w3", seconds=12, ends=False)
    assert told(facts_in(tmp_path, now=BEGAN + 15)) == []
    (only,) = told(facts_in(tmp_path, now=BEGAN + 20))
    assert only.startswith("w3 was killed, or its machine failed, at")


def test_a_run_that_was_killed_as_a_whole_is_told_once(tmp_path):
    write_log(tmp_path, "w1", ends=False)
    write_log(tmp_path, "w2", ends=False)
    (only,) = told(facts_in(tmp_path))
    assert only.startswith("All 2 nodes were killed, or their machine failed, at")


def test_who_has_said_goodbye_was_not_killed_in_its_training(tmp_path):
    write_log(tmp_path, "w1", events=[(15, "left", "w2")])
    write_log(tmp_path, "w2", seconds=15, ends=False)
    (only,) = told(facts_in(tmp_path))
    assert only.startswith("w2 announced its end to w1, but its log ends at")


def test_a_node_that_waits_for_the_others_at_the_end_is_not_stalled(tmp_path):
    write_log(tmp_path, "w1", seconds=60)
    path = write_log(tmp_path, "w2", seconds=10)
    lines = path.read_text().splitlines()
    last = next(line for line in reversed(lines) if '"sample"' in line)
    waiting = [last.replace(str(BEGAN + 10), str(BEGAN + second)) for second in range(11, 61)]
    path.write_text("\n".join([*lines[:-1], *waiting, lines[-1]]) + "\n")
    assert told(facts_in(tmp_path)) == []


def test_the_diverged_and_the_quarantined_are_problems(tmp_path):
    quarantined = [(3, "quarantined", "w2"), (5, "quarantined", "w3"), (6, "released", "w3")]
    write_log(tmp_path, "w1", events=quarantined)
    write_log(tmp_path, "w2")
    write_log(tmp_path, "w3", loss="inf")
    found = told(facts_in(tmp_path))
    assert sorted(found) == [
        "w2 is in quarantine at w1, because their losses rose sharply after merges with it",
        "w3 has diverged, because its loss or parameters are not finite",
    ]


def test_logs_that_say_nothing_yet_make_a_report_whatever_the_nodes_are_called(tmp_path):
    pytest.importorskip("matplotlib")
    write_log(tmp_path / "run", "w1", seconds=0, ends=False).write_text("")
    for index, name in enumerate(["_w2", "日本語", "$x$", "w" * 64, "\n"]):
        write_log(tmp_path / "run", name, file_name=f"n{index}", seconds=1)
    result = run_dpwa("report", tmp_path / "run", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert page.mistakes == []
    for text in (" _w2 ", " 日本語 ", " $x$ ", "wwwwwwwwwwwww…"):
        assert text in page.text.partition("Steps per second")[0].partition("Training loss")[2]
    assert "Merges between nodes" not in page.text  # there is nothing to be drawn


@pytest.mark.parametrize("target", ["file", "file/below"])
def test_an_output_that_cannot_be_written_is_one_clear_error(tmp_path, target):
    pytest.importorskip("matplotlib")
    write_log(tmp_path / "run", "w1", seconds=2)
    (tmp_path / "file").write_text("")
    result = run_dpwa("report", tmp_path / "run", "-o", tmp_path / target)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"dpwa: cannot write {tmp_path / target}: expected a file or")


def test_mistakes_are_told_without_a_traceback(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        result = run_dpwa("report", folder)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"dpwa: {folder}: ")


def test_importing_what_reads_is_light():
    code = (
        "import sys, dpwa.observe\n"
        "assert not {'pandas', 'matplotlib', 'numpy', 'torch'} & set(sys.modules)\n"
        "import dpwa.observe.run_log_reader, dpwa.report.facts\n"
        "assert not {'pandas', 'matplotlib', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("seconds", [3, 6])
def test_a_short_run_has_speeds(tmp_path, seconds):
    write_log(tmp_path, "w1", seconds=seconds, speed=5.0)
    ((_, speeds),) = speed_curves(read_run(tmp_path)).values()
    assert len(speeds) >= 2
    assert list(speeds) == pytest.approx([5.0] * len(speeds))
