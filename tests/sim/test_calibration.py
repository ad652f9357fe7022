"""A scenario out of run logs: known parameters are found again, and logs that tell too little."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest
import yaml
from support.commands import run_dpwa
from support.run_logs import write_log
from support.simulated_logs import write_simulated_logs

from dpwa.errors import UserError
from dpwa.observe.run_log_reader import read_run
from dpwa.policy import interpolation as registry
from dpwa.sim.calibration import (
    calibrate,
    measured_link,
    observe,
    scenario_of,
    simulated,
    yaml_text,
)
from dpwa.sim.load import load_scenario
from dpwa.types import StrictModel

KNOWN = {
    "nodes": 4,
    "seconds": 40,
    "seed": 2,
    "model_mb": 0.3,
    "compute": {"steps_ms": [50, 50, 60, 150], "jitter": 0.2},
    "costs": {"publish_ms_per_mb": 20.0, "merge_ms_per_mb": 40.0},
    "network": {"latency_ms": 8, "upload_mbps": 40, "download_mbps": 40},
    "merge": "delta",
    "fetch_probability": 0.9,
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return write_simulated_logs(tmp_path_factory.mktemp("run"), KNOWN)


@pytest.fixture(scope="module", params=[400, pytest.param(3000, marks=pytest.mark.slow)])
def calibration(logs, request):
    """What is found by simulations of so many steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpwa.sim.calibration.STEPS", request.param)
        return calibrate(read_run(logs))


def test_what_computing_takes_is_found_again(calibration):
    compute, costs = calibration.scenario["compute"], calibration.scenario["costs"]
    assert compute["steps_ms"] == pytest.approx([50, 50, 60, 150], rel=0.04)
    assert compute["jitter"] == pytest.approx(0.2, abs=0.03)
    assert costs["publish_ms_per_mb"] == pytest.approx(20.0, rel=0.05)
    assert costs["merge_ms_per_mb"] == pytest.approx(40.0, rel=0.05)
    assert calibration.scenario["model_mb"] == pytest.approx(0.3, rel=1e-3)


def test_links_are_found_again_though_streams_have_shared_them(logs, calibration):
    network = calibration.scenario["network"]
    assert measured_link(observe(read_run(logs))).mbps < 33
    assert network["upload_mbps"] == pytest.approx(40, rel=0.08)
    assert network["latency_ms"] == pytest.approx(8, abs=2)


@pytest.mark.usefixtures("_one_try")
@pytest.mark.slow
def test_links_are_fitted_to_the_time_in_which_all_nodes_train(logs, tmp_path):
    late = write_simulated_logs(tmp_path, KNOWN | {"seed": 0, "churn": {"start_spread_s": 35.0}})
    run = observe(read_run(late))
    assert run.start_spread_s > 12.0
    assert {round(node.seconds) for node in run.nodes} < {10, 11, 12, 13}
    calm = observe(read_run(logs))
    starts = [replace(node, began=node.began + 30.0 * n) for n, node in enumerate(calm.nodes)]
    spread = replace(calm, nodes=tuple(starts))
    link = measured_link(calm)
    assert measured_link(spread) == link
    assert simulated(spread, link) == simulated(calm, link)
    assert scenario_of(spread, link)["churn"] == {"start_spread_s": 90.0}


def test_settings_are_those_of_the_run_that_are_not_the_defaults(calibration):
    scenario = calibration.scenario
    assert scenario["fetch_probability"] == 0.9
    own = {"nodes", "seconds", "detail", "model_mb", "compute", "costs", "network"}
    assert scenario.keys() == own | {"fetch_probability"}


def test_the_simulation_comes_close_to_the_run(calibration):
    run, simulated = calibration.run, calibration.simulated
    assert run.waiting_share > 0.15
    assert simulated.waiting_share == pytest.approx(run.waiting_share, rel=0.1)
    assert simulated.steps_per_s == pytest.approx(run.steps_per_s, rel=0.05)


def test_the_file_is_a_scenario_that_can_be_read(calibration):
    text = yaml_text(calibration, "runs/1")
    assert "n0, n1, n2, n3" in text
    loaded = load_scenario(yaml.safe_load(text))
    assert loaded.scenario.compute.steps_ms == tuple(calibration.scenario["compute"]["steps_ms"])
    assert loaded.config.merge == "delta"
    assert loaded.config.fetch_probability == 0.9


@pytest.mark.slow
def test_nodes_of_a_group_are_a_site(tmp_path):
    sites = [{"name": "east"}, {"name": "west"}]
    known = {"nodes": 4, "seconds": 8, "network": {"sites": sites}, "algorithm": "lsgd"}
    found = calibrate(read_run(write_simulated_logs(tmp_path, known)))
    assert [site["share"] for site in found.scenario["network"]["sites"]] == [2.0, 2.0]
    loaded = load_scenario(found.scenario)
    assert [node.group for node in loaded.config.nodes] == ["east", "east", "west", "west"]


class PluginOptions(StrictModel):
    share: float = 0.5


@pytest.fixture
def _plugin(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", deepcopy(registry._REGISTRY))
    register = registry.register_interpolation("of_a_plugin_that_is_fitted", PluginOptions)
    register(lambda options, own, peer: options.share)


@pytest.mark.usefixtures("_one_try", "_plugin")
@pytest.mark.parametrize("options", [{}, {"file": {"path": "/of/another/machine"}}])
def test_what_logs_do_not_tell_and_what_has_names_of_nodes_is_left_out(copy, options):
    settings = {"topology": "file", "interpolation": "of_a_plugin_that_is_fitted", **options}

    def changed(line):
        is_first = line["type"] == "start"
        return line | ({"settings": line["settings"] | settings} if is_first else {})

    for path in copy.glob("*.jsonl"):
        rewrite(path, changed)
    found = calibrate(read_run(copy))
    assert not {"topology", "file"} & found.scenario.keys()
    assert load_scenario(found.scenario).config.interpolation == "of_a_plugin_that_is_fitted"


# Logs that tell too little


def told(folder):
    with pytest.raises(UserError) as error:
        observe(read_run(folder))
    assert error.value.message_code
    return error.value.text


def lines_of(path):
    return [json.loads(line) for path in [path] for line in path.read_text().splitlines()]


def rewrite(path, change, keep=lambda line: True):
    lines = [change(line) for line in lines_of(path) if keep(line)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def copy(logs, tmp_path):
    for path in logs.glob("*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_one_node_is_no_run(copy):
    for path in sorted(copy.glob("*.jsonl"))[1:]:
        path.unlink()
    assert "expected the run logs of 2 nodes or more (got only n0)" in told(copy)


def test_logs_of_before_there_were_settings_are_told(tmp_path):
    for name in ("w1", "w2"):
        path = write_log(tmp_path, name)
        rewrite(path, lambda line: {k: v for k, v in line.items() if k != "streams"})
    assert "settings of the run (the log of w1 is from an older dpwa)" in told(tmp_path)


def test_a_node_that_was_killed_before_its_first_sample_has_a_log_that_is_too_short(copy):
    rewrite(next(copy.glob("n2-*")), dict, keep=lambda line: line["type"] == "start")
    assert "too few steps of" in told(copy)
    assert "(too few steps of n2)" in told(copy)


def test_logs_of_nodes_with_other_settings_are_not_of_one_run(copy):
    def changed(line):
        return line | ({"settings": line["settings"] | {"merge": "interpolate"}}
                       if line["type"] == "start" else {})  # fmt: skip

    rewrite(next(copy.glob("n2-*")), changed)
    assert "expected the logs of one run (n0 and n2 differ in merge)" in told(copy)


def test_a_run_may_be_too_short(copy):
    for name in ("n1", "n3"):
        (path,) = copy.glob(f"{name}-*")
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:3]))
    assert "expected at least 5 steps of each node" in told(copy)
    assert "(too few steps of n1, n3)" in told(copy)


def test_torn_lines_and_samples_that_are_missing_change_little(copy, calibration):
    for path in copy.glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        del lines[10:13]
        path.write_text("".join(lines[:-1]) + '{"type":"sam')
    found = observe(read_run(copy))
    for node, before in zip(found.nodes, calibration.run.nodes, strict=True):
        assert node.step_s == pytest.approx(before.step_s, rel=0.02)


def test_what_came_after_the_last_step_is_no_training(copy, calibration):
    for path in copy.glob("*.jsonl"):
        last = lines_of(path)[-2]
        idle = [{**last, "time": last["time"] + s, "train_s": last["train_s"] + s} for s in (1, 2)]
        path.write_text(path.read_text() + "".join(json.dumps(line) + "\n" for line in idle))
    found = observe(read_run(copy))
    assert [n.step_s for n in found.nodes] == [n.step_s for n in calibration.run.nodes]


@pytest.mark.usefixtures("_one_try")
def test_nodes_that_map_each_others_memory_tell_nothing_of_links(copy):
    nothing = dict.fromkeys(("answer_s", "streams", "stream_s", "received_bytes"), 0)
    for path in copy.glob("*.jsonl"):
        rewrite(path, lambda line: line | (nothing if line["type"] == "sample" else {}))
    found = calibrate(read_run(copy))
    assert "network" not in found.scenario
    assert any("links have default values" in remark for remark in found.remarks())


def test_a_started_again_node_and_missing_ones_are_remarks(copy):
    (path,) = copy.glob("n3-*")
    path.unlink()
    (path,) = copy.glob("n2-*")
    again = path.read_text().replace('"pid": 1', '"pid": 2')
    lines = [json.loads(line) for line in again.splitlines()]
    for line in lines:
        line["time"] += 50.0
    (copy / "n2-20260919T120050-2.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    rewrite(path, lambda line: line, lambda line: line["type"] != "end")
    remarks = observe(read_run(copy)).remarks
    assert "4 nodes are listed, but only 3 have logs here" in remarks
    assert any("n2 restarted" in remark for remark in remarks)


# The command


@pytest.fixture
def _one_try(monkeypatch):
    monkeypatch.setattr("dpwa.sim.calibration.MAX_TRIES", 1)
    monkeypatch.setattr("dpwa.sim.calibration.STEPS", 150)


@pytest.mark.usefixtures("_one_try")
def test_the_command_writes_a_scenario_that_runs(logs, tmp_path):
    file = tmp_path / "ours.yaml"
    result = run_dpwa("sim", "calibrate", logs, "--out", file)
    assert (result.exit_code, result.stderr) == (0, f"{file}: written\n")
    (length, *compared) = result.stdout.splitlines()
    assert length.endswith("of 4 nodes on 4 hosts")
    assert [line.partition(":")[0] for line in compared] == [
        "steps per second",
        "sent by a node in a second",
        "waiting",
    ]
    assert all(line.endswith(" simulated") for line in compared)
    again = run_dpwa("sim", "calibrate", logs, "--out", file)
    assert again.exit_code == 2
    assert "Use --force to overwrite it" in again.stderr
    ran = run_dpwa("sim", file, "--set", "seed=3", "--set", "seconds=5", "--json")
    assert json.loads(ran.stdout)["rounds"] > 20


@pytest.mark.usefixtures("_one_try")
def test_without_a_file_the_scenario_is_printed_with_what_the_run_was(logs):
    result = run_dpwa("sim", "calibrate", logs)
    assert (result.exit_code, result.stderr) == (0, "")
    assert load_scenario(yaml.safe_load(result.stdout)).scenario.nodes == 4
    assert "# steps per second: " in result.stdout
