"""`dpwa report` of several runs, beside each other."""

import json

import pytest
from support.commands import run_dpwa
from support.pages import Page
from support.run_logs import BEGAN, write_log

from dpwa.observe.run_log_reader import read_run
from dpwa.report.curves import band_of, curves_of
from dpwa.report.facts import facts_of
from dpwa.report.page import common_loss, labels_of, page_of, sentences, table_of

LATER = BEGAN + 1e6


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three runs: of the same training, twice as fast, and one that has told no loss."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("w1", "w2"):
        write_log(folder / "plain", name, seconds=40)
        write_log(folder / "fast", name, seconds=15, speed=10.0, wait_s=0.0)
        write_log(folder / "silent", name, loss=None)
    return [folder / name for name in ("plain", "fast", "silent")]


@pytest.fixture(scope="module")
def runs(folders):
    return {folder.name: facts_of(read_run(folder), LATER) for folder in folders}


def test_who_is_faster_is_sooner_at_a_loss_in_as_many_steps(runs):
    plain, fast, silent = runs.values()
    assert common_loss(runs) == max(plain.lowest_mean_loss, fast.lowest_mean_loss)
    after, steps = zip(*(run.reached(0.5) for run in (plain, fast)), strict=True)
    assert after[0] == pytest.approx(2 * after[1], rel=0.1)
    assert steps[0] == pytest.approx(steps[1], rel=0.1)
    assert steps[0] == pytest.approx(60 * 1.609, abs=5)  # 2 exp(-steps / 60) + 0.1 = 0.5
    assert silent.reached(0.5) == (None, None)
    assert plain.reached(0.01) == (None, None)


def test_the_steps_to_a_loss_are_those_of_the_same_moment(tmp_path):
    for name, speed in (("w1", 5.0), ("w2", 1.0), ("w3", 1.0)):
        write_log(tmp_path, name, seconds=40, speed=speed)
    run = facts_of(read_run(tmp_path), LATER)
    seconds, steps = run.reached(run.lowest_mean_loss)
    assert seconds == pytest.approx(40.0)
    assert steps == pytest.approx((200 + 40 + 40) / 3)


def test_the_area_is_from_the_least_to_the_greatest(tmp_path):
    write_log(tmp_path, "w1", loss=1.0)
    write_log(tmp_path, "w2", loss=4.0)
    band = band_of(curves_of(read_run(tmp_path), "loss"))
    assert (set(band.low), set(band.mean), set(band.high)) == ({1.0}, {2.5}, {4.0})


def test_the_last_of_three_nodes_alone_is_not_their_mean(tmp_path):
    for name, loss, seconds in (("w1", 1.0, 20), ("w2", 4.0, 20), ("w3", 0.1, 40)):
        write_log(tmp_path, name, loss=loss, seconds=seconds)
    assert facts_of(read_run(tmp_path), LATER).lowest_mean_loss == pytest.approx(1.7)


def test_the_figures_of_a_run(runs):
    found = runs["plain"].figures(0.5)
    assert (found["nodes"], found["lost"], found["slow"]) == (2, [], [])
    assert found["steps"] == 400
    assert found["steps_per_s"] == pytest.approx(5)
    assert found["sent_bytes"] == 400_000
    assert found["mapped_bytes"] == 240_000
    assert found["wait_share"] == pytest.approx(0.15)
    headings, rows = table_of(runs, 0.5)
    assert headings == ["figure", "plain", "fast", "silent"]
    cells = {figure: values for figure, *values in rows}
    assert cells["to loss 0.5"] == ["19 s", "9.7 s", "never"]
    assert cells["waiting"][:2] == ["15 %", "0 %"]


def test_in_words(runs):
    first, never, best = sentences(runs, 0.5)
    told = "fast was the first run to reach a mean loss of 0.5, after 9.7 s, then plain after 19 s."
    assert first == told
    assert never == "silent never reached a mean loss of 0.5."
    assert best.startswith("The lowest mean loss of all runs is")
    assert list(sentences(dict.fromkeys("ab", runs["silent"]), None)) == [
        "No run has reported a loss."
    ]


def test_runs_are_called_by_as_much_of_their_paths_as_tells_them_apart(tmp_path):
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert labels_of(paths) == ["a/run", "b/run"]
    assert labels_of([tmp_path / "x", tmp_path / "y"]) == ["x", "y"]
    assert labels_of([tmp_path, tmp_path / "x"]) == [tmp_path.name, f"{tmp_path.name}/x"]


def test_the_command_writes_a_page_and_pictures(folders, tmp_path):
    pytest.importorskip("matplotlib")
    result = run_dpwa("report", *folders, "-o", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [run["run"] for run in found["runs"]] == ["plain", "fast", "silent"]
    assert found["runs"][2]["best_loss"] is None
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert page.mistakes == []
    assert page.tags.count("svg") == len(list((tmp_path / "out").glob("*.png"))) == 4
    assert "fast was the first run to reach the lowest mean loss that all runs have" in page.text


def test_names_of_runs_are_text_and_may_be_broken_so_that_eight_fit_a_page(runs):
    page = page_of({"a_run_with_a_<long>_name": runs["plain"], "fast": runs["fast"]}, None, ())
    assert '<th scope="col" class="long">a_run_with_a_&lt;long&gt;_name</th>' in page
    assert '<th scope="col">fast</th>' in page
    assert "<long>" not in page


def test_more_runs_than_colours_have_a_page_that_names_the_best(tmp_path):
    pytest.importorskip("matplotlib")
    for number in range(1, 11):
        write_log(tmp_path / f"run{number}", "w1", loss=float(number), seconds=3)
    result = run_dpwa("report", *sorted(tmp_path.iterdir()), "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert page.mistakes == []
    assert "run1 (lowest loss)" in page.text


def test_what_stands_out_names_the_run(tmp_path):
    pytest.importorskip("matplotlib")
    write_log(tmp_path / "a", "w1")
    write_log(tmp_path / "b", "w1", loss="inf")
    result = run_dpwa("report", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "out")
    assert "- b: w1 has diverged" in result.stdout


def test_the_command_compare_names_what_has_its_work(folders):
    result = run_dpwa("compare", *folders, "--loss", "0.5")
    assert result.exit_code == 2
    assert "dpwa: compare was removed. Use `dpwa report RUN_DIR RUN_DIR` instead" in result.stderr
