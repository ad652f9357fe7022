"""`dpwa sim`, as people use it and misuse it."""

import csv
import json
import sys

import pytest
from support.commands import run_dpwa
from support.terminals import on_terminal, plain_lines

from dpwa.sim.load import preset_names

DPWA = (sys.executable, "-m", "dpwa")
SCENARIO = """\
nodes: 8
rounds: 30
schedule: lockstep
target: {variance_ratio: 1e-3}
network: {upload_mbps: 100}
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def sim(*arguments, columns=None):
    environment = {"COLUMNS": str(columns)} if columns else None
    result = run_dpwa("sim", *arguments, environment=environment)
    assert "Traceback" not in result.stderr
    return result


def simulated(*arguments):
    result = sim(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_run_has_its_figures_at_the_top(scenario):
    found = simulated(scenario)
    assert found["reached"]
    assert 1 < found["rounds_to_target"] <= 30
    assert found["seconds_to_target"] == pytest.approx(found["seconds"])
    assert found["bytes_per_node"] > 0
    assert found["detail"] == "arrays"
    assert found["settings"] == {}


def test_the_same_seed_is_the_same_run_to_the_byte(scenario):
    first, same, other = (
        sim(scenario, "--json", "--set", f"seed={seed}").stdout for seed in (3, 3, 4)
    )
    assert first == same
    assert first != other


def test_people_get_words(scenario):
    result = sim(scenario)
    assert result.exit_code == 0
    assert "rounds to target" in result.stdout
    assert "Jain's index" in result.stdout
    assert result.stderr == ""
    missed = sim(scenario, "--set", "rounds=2").stdout
    assert "not reached" in missed


def test_a_sweep_has_a_row_for_each_combination_and_marks_the_best(scenario):
    sweep = ("--sweep", "constant.value=0.1,0.5", "--sweep", "topology=ring,random", "-j", 1)
    lines = sim(scenario, *sweep).stdout.splitlines()
    assert lines[0].split()[:4] == ["constant.value", "topology", "to", "target"]
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["0.1", "ring"],
        ["0.1", "random"],
        ["0.5", "ring"],
        ["0.5", "random"],
    ]
    (best,) = (line for line in lines if line.endswith("best"))
    assert best.split()[:2] == ["0.5", "random"]
    found = simulated(scenario, *sweep)
    assert found["best"] == {"constant.value": 0.5, "topology": "random"}
    assert [run["settings"] for run in found["runs"]][1] == {
        "constant.value": 0.1,
        "topology": "random",
    }
    assert len({run["seed"] for run in found["runs"]}) == 1


def test_a_table_fits_a_terminal_and_has_no_colours(scenario):
    sweep = ("--sweep", "topology=random,one_peer_exponential", "-j", 1)
    text = sim(scenario, *sweep, columns=80).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "one_peer_exponential" in text
    assert "\x1b" not in text


def test_repeats_have_seeds_of_their_own_and_a_median(scenario):
    found = simulated(scenario, "--repeat", 3, "--set", "seed=5", "-j", 1)
    assert [run["seed"] for run in found["runs"]] == [5, 6, 7]
    result = sim(scenario, "--repeat", 3, "--sweep", "topology=random,full", "-j", 1)
    assert "3/3" in result.stdout
    assert "median" in result.stdout


def test_processes_change_nothing(scenario):
    sweep = (scenario, "--sweep", "constant.value=0.3,0.5")
    assert simulated(*sweep, "-j", 2) == simulated(*sweep, "-j", 1)


def test_files_have_samples_nodes_and_figures(scenario, tmp_path):
    folder = tmp_path / "deep" / "results"
    sweep = ("--sweep", "topology=random,ring", "-j", 1)
    result = sim(scenario, *sweep, "--out", folder)
    assert result.exit_code == 0
    assert f"{folder}: samples.csv, nodes.csv, events.jsonl, summary.json written" in result.stderr
    with (folder / "samples.csv").open() as file:
        samples = list(csv.DictReader(file))
    assert {row["run"] for row in samples} == {"0", "1"}
    assert float(samples[0]["variance_ratio"]) == 1.0
    with (folder / "nodes.csv").open() as file:
        nodes = list(csv.DictReader(file))
    assert [row["name"] for row in nodes[:8]] == [f"n{index}" for index in range(8)]
    assert len(nodes) == 16
    summary = json.loads((folder / "summary.json").read_text())
    assert [run["settings"]["topology"] for run in summary["runs"]] == ["random", "ring"]


def test_a_run_of_a_sweep_that_cannot_be_simulated_is_told_beside_the_others(scenario):
    arrays = ("--set", "detail=arrays")
    result = sim(scenario, "--sweep", "algorithm=gossip,symmetric", *arrays, "-j", 1)
    assert result.exit_code == 1
    assert "symmetric: detail: expected auto or nodes, because arrays are only for" in result.stdout
    alone = sim(scenario, "--set", "algorithm=symmetric", *arrays)
    assert alone.exit_code == 2
    assert "detail: expected auto or nodes, because arrays are only for" in alone.stderr


def test_ctrl_c_on_a_terminal_shows_the_results_so_far(scenario):
    command = [*DPWA, "sim", str(scenario), "--set", "rounds=400000"]
    endless = [*command, "--set", "target.variance_ratio=1e-300", "--set", "task=quadratic"]
    shown, code = on_terminal(endless, until="simulating")
    assert code == 130
    text = "\n".join(plain_lines(shown))
    assert "consensus distance" in text
    assert "stopped after 1 of 1 runs" in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_ctrl_c_ends_the_processes_of_a_sweep(scenario):
    command = [*DPWA, "sim", str(scenario), "--set", "rounds=400000", "-j", "2"]
    sweep = ["--set", "target.variance_ratio=1e-300", "--sweep", "seed=1,2,3,4,5,6"]
    shown, code = on_terminal([*command, *sweep, "--set", "task=quadratic"], until="6 runs")
    assert code == 130
    assert "stopped after 0 of 6 runs" in "\n".join(plain_lines(shown))


def test_the_shipped_scenarios_are_those_of_the_help():
    told = " ".join(sim("--help").stdout.split())
    assert preset_names() == (
        "datacenter",
        "home-broadband",
        "one-straggler",
        "spot-instances",
        "two-datacenters",
    )
    assert all(name in told for name in preset_names())


# The scenarios that come with dpwa in a short form, and what is to happen in it.
SHORT = {
    "datacenter": (["seconds=2", "nodes=8"], []),
    "home-broadband": (
        ["seconds=300", "nodes=8", "churn.return_after_s=60"], ["is killed", "is back"],
    ),
    "one-straggler": (["seconds=4", "nodes=4"], []),
    "spot-instances": (
        ["seconds=4", "nodes=4", "churn.kill_every_s=2", "churn.return_after_s=1",
         "churn.lost.0.at_s=2"],
        ["is killed", "is back"],
    ),
    "two-datacenters": (
        ["seconds=4", "nodes=4", "network.partitions.0.at_s=1", "network.partitions.0.for_s=1"],
        ["2 nodes are cut off", "a partition ends"],
    ),
}  # fmt: skip


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_scenario_runs_in_a_short_form(name, tmp_path):
    settings, events = SHORT[name]
    words = (word for text in settings for word in ("--set", text))
    found = simulated(name, *words, "--out", tmp_path)
    assert found["detail"] == "nodes"
    samples, nodes = rows_of(tmp_path / "samples.csv"), rows_of(tmp_path / "nodes.csv")
    first = next(float(sample["loss"]) for sample in samples if sample["loss"])
    assert found["loss"] < 0.9 * first
    merges = [int(node["merges"]) for node in nodes]
    assert sum(merge > 0 for merge in merges) > 0.6 * len(nodes)
    told = (tmp_path / "events.jsonl").read_text()
    assert all(event in told for event in events)
    assert found["nodes"] >= len(nodes) / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_scenario_is_as_it_says(name):
    found = simulated(name)
    assert found["loss"] < 0.35
    assert found["reached"] == (name in ("datacenter", "one-straggler"))
    assert (found["events"] > 0) == (name not in ("datacenter", "one-straggler"))
