"""`dpwa plan`, as people use it and misuse it."""

import json

import pytest
import torch
from safetensors.torch import save_file
from support.commands import run_dpwa

SIZE = ("--parameters", "1M", "--step-ms", "100")
THIN = ("--latency-ms", "10", "--bandwidth-mbps", "40")
CONFIG = """\
# ours
nodes:
  - {name: w1, host: 10.0.0.1, port: 1001}
  - {name: w2, host: 10.0.0.2, port: 1001}
codec: none  # for now
"""


def plan(*arguments, columns=None):
    environment = {"COLUMNS": str(columns)} if columns else None
    result = run_dpwa("plan", *arguments, environment=environment)
    assert "Traceback" not in result.stderr
    return result


def planned(*arguments):
    result = plan(*arguments, "--json")
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(CONFIG)
    return path


def test_each_setting_is_told_with_what_it_costs():
    found = planned(*SIZE, *THIN)
    assert found["model"]["bytes"] == 4_000_000
    assert found["present"]["round_bytes"] == 4_000_000
    assert found["present"]["fetch_s"] == pytest.approx(0.010 + 0.8)
    changed = {next(iter(choice["changes"].items())) for choice in found["alone"]}
    assert {("codec", "int8"), ("fraction", 0.25), ("fetch_probability", 0.1)} <= changed
    assert found["fits"] == []


FAST = ("--latency-ms", "0.1", "--bandwidth-mbps", "10000")


def test_averaged_gradients_are_proposed_where_they_are_worth_their_wait(config):
    proposed = planned(*SIZE, *FAST)["together"]
    assert proposed["changes"] == {"algorithm": "together"}
    assert 0.0 < proposed["wait_s"] < 0.2 * 0.1
    assert "With algorithm: together, 4 MB a round, " in plan(*SIZE, *FAST).stdout
    assert planned(*SIZE, *THIN)["together"] is None
    assert planned(*SIZE, *FAST, "--budget-mbps", "10")["together"] is None
    config.write_text(CONFIG + "robust: clip\n")
    clipped = planned(*SIZE, *FAST, "-c", str(config))
    assert clipped["together"] is None
    assert "algorithm" not in clipped["refused"]


def test_a_budget_has_fitting_settings_and_reasons():
    result = plan(*SIZE, *THIN, "--max-wait", "5%")
    assert result.exit_code == 0
    assert "The present settings: waits 88% of the time, more than 5%." in result.stdout
    assert "Best fit: codec int8" in result.stdout
    assert "each parameter comes once in" in result.stdout
    fits = planned(*SIZE, *THIN, "--max-wait", "5%")["fits"]
    assert fits
    assert all(choice["wait_share"] <= 0.05 and not choice["problems"] for choice in fits)


def test_the_answer_comes_first_and_the_table_on_demand():
    plain, fitted, whole = (
        plan(*SIZE, *THIN, *options).stdout.splitlines()
        for options in ((), ("--max-wait", "5%"), ("--max-wait", "5%", "--table"))
    )
    assert plain[0].startswith("The present settings: 4 MB a round, ")
    assert "With a budget, such as --max-wait 5%, settings" in plain[1]
    assert fitted[0].startswith("Best fit: codec int8")
    assert not [line for line in plain + fitted if line.startswith("settings ")]
    (table,) = [at for at, line in enumerate(whole) if line.startswith("settings ")]
    assert whole[: table - 1] == fitted[:-1]
    assert whole[table + 1].startswith("present ")


@pytest.mark.parametrize(("option", "field"), [("mbps", "mbps"), ("gb-per-hour", "gb_per_hour")])
def test_a_budget_of_bytes_is_kept(option, field):
    found = planned(*SIZE, *THIN, f"--budget-{option}", 2)["fits"]
    assert found
    assert all(choice[field] <= 2 and choice["wait_share"] <= 0.05 for choice in found)


def test_nothing_fits_a_budget_that_is_too_small():
    result = plan(*SIZE, *THIN, "--budget-mbps", "0.00001")
    assert result.exit_code == 1
    assert "Nothing fits. The least is" in result.stdout


def test_the_best_fit_is_written_into_the_file(config):
    result = plan("-c", config, *SIZE, *THIN, "--max-wait", "5%", "--write")
    assert result.exit_code == 0
    assert f"{config}: written, codec: int8" in result.stderr
    assert "codec: int8  # for now\n" in config.read_text()
    assert config.read_text().startswith("# ours\nnodes:\n")
    again = plan("-c", config, *SIZE, *THIN, "--max-wait", "5%", "--write")
    assert "left as it is, as it fits" in again.stderr
    assert "The present settings fit." in again.stdout


def test_present_settings_that_time_out_are_told(config):
    result = plan("-c", config, "--parameters", "10M", "--step-ms", "100", *THIN)
    assert "fetches bring nothing: timeout_ms must be 12100" in result.stdout


def test_settings_that_the_algorithm_refuses_are_told(config):
    config.write_text(CONFIG + "algorithm: symmetric\n")
    result = plan("-c", config, *SIZE, *THIN)
    assert "codec: expected none, as algorithm: symmetric keeps sums exact" in result.stdout
    assert "fraction: expected 1, as algorithm: symmetric needs whole snapshots" in result.stdout


@pytest.mark.parametrize(
    ("transport", "link", "text"),
    [
        ("tcp", ("--link", "shm"), "transport: tcp streams on one host, too: expected what `dpwa"),
        ("shm", THIN, "transport: shm is for nodes of one host: expected --link shm"),
    ],
)
def test_a_transport_that_is_not_of_the_link_is_told(transport, link, text, config):
    config.write_text(CONFIG + f"transport: {transport}\n")
    result = plan("-c", config, *SIZE, *link)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


def test_one_host_is_a_row_beside_a_link():
    (row,) = [c for c in planned(*SIZE, *THIN)["alone"] if "transport" in c["changes"]]
    assert row["changes"] == {"transport": "shm"}
    assert (row["round_bytes"], row["wait_share"]) == (0, 0)
    fits = planned(*SIZE, *THIN, "--max-wait", "0%")["fits"]
    assert not [choice for choice in fits if "transport" in choice["changes"]]


def test_nothing_is_sent_on_one_host():
    result = plan(*SIZE, "--link", "shm", "--budget-mbps", "1")
    assert "Nodes of one host merge out of each other's memory" in result.stdout
    assert "The present settings fit." in result.stdout


def test_sizes_of_checkpoints_are_read(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.BatchNorm1d(50))
    net[1].weight = net[1].bias  # has two names, and counts once
    nbytes = 4 * (100 * 50 + 50 + 50 + 2 * 50)
    optimizer = {"state": {0: {"exp_avg": torch.zeros(50, 100)}}, "lr": 0.1}
    torch.save({"model": net.state_dict(), "optimizer": optimizer, "epoch": 3}, tmp_path / "a.pt")
    old = {"_use_new_zipfile_serialization": False}
    torch.save([torch.zeros(3), torch.zeros(2, dtype=torch.int64)], tmp_path / "b.pt", **old)
    halves = {"weight": torch.zeros(10, dtype=torch.bfloat16), "count": torch.zeros(1).long()}
    save_file(halves, tmp_path / "c.safetensors")
    for name, expected in (("a.pt", nbytes), ("b.pt", 12), ("c.safetensors", 20)):
        found = planned("--checkpoint", tmp_path / name, "--step-ms", 1, "--link", "shm")
        assert found["model"]["bytes"] == expected


def test_whole_modules_are_no_checkpoint(tmp_path):
    path = tmp_path / "net.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    result = plan("--checkpoint", path, "--step-ms", 1, "--link", "shm")
    assert result.exit_code == 2
    assert "expected a checkpoint of tensors" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--parameters", "12Q"), "--parameters: expected a number such as 300000, 124M or 7B"),
        (("--parameters", "0"), "--parameters: expected a number"),
        (("--parameters", "900B"), "a node streams at most 137 GB"),
        ((), "expected the size of the model"),
        (("--checkpoint", "/no/such.pt"), "/no/such.pt: cannot be read (No such file"),
        (("--parameters", "1M", "--dtype", "int4"), "--dtype: expected one of float64, float32"),
        (("--parameters", "1M", "--max-wait", "5"), "--max-wait: expected a share such as 5%"),
        (("--parameters", "1M", "--budget-mbps", "-1"), "--budget-mbps: expected a number above 0"),
        (("--parameters", "1M", "--write"), "--write: expected a file (-c FILE), and a budget"),
        (("--parameters", "1M", "-c", "/no/such.yaml"), "expected a readable file"),
        (("--parameters", "1M", "-n", "1"), "Invalid value for '-n' / '--nodes': "),
    ],
)
def test_wrong_usage_is_told_in_one_line(arguments, text):
    result = plan(*arguments, "--step-ms", "100", *THIN)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


@pytest.mark.parametrize(
    ("link", "text"),
    [
        ((), "expected the link: --latency-ms and --bandwidth-mbps, --link FILE"),
        (("--latency-ms", "1"), "expected the link"),
        (("--link", "shm", "--latency-ms", "1"), "expected either --link, or --latency-ms"),
        (("--link", "/no/such.json"), "--link /no/such.json: cannot be read"),
        (("--link", __file__), "expected the output of `dpwa bench link HOST --json`"),
        (("--latency-ms", "-1", "--bandwidth-mbps", "1"), "--latency-ms: expected a number"),
        (("--latency-ms", "1", "--bandwidth-mbps", "0"), "--bandwidth-mbps: expected a number"),
    ],
)
def test_a_link_that_is_none_is_told(link, text):
    result = plan(*SIZE, *link)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize("columns", [40, 80])
def test_it_fits_the_terminal(columns):
    result = plan(*SIZE, *THIN, "--max-wait", "5%", "--table", columns=columns)
    assert max(map(len, result.stdout.splitlines())) <= columns
