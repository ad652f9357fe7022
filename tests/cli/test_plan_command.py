"""`dpwa plan`, as people use it and misuse it."""

import json

import pytest
from support.commands import run_dpwa

SIZE = ("--parameters", "1M", "--step-ms", "100")
THIN = ("--latency-ms", "10", "--bandwidth-mbps", "40")
CONFIG = """\
nodes:
  - {name: w1, host: 10.0.0.1, port: 1001}
  - {name: w2, host: 10.0.0.2, port: 1001}
"""


def plan(*arguments, columns=None):
    environment = {"COLUMNS": str(columns)} if columns else None
    result = run_dpwa("plan", *arguments, environment=environment)
    assert "Traceback" not in result.stderr
    return result


def planned(*arguments):
    result = plan(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def changes(found):
    return {next(iter(choice["changes"].items())) for choice in found["alone"]}


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
    several = {("codec", "int8"), ("fraction", 0.25), ("fetch_probability", 0.1)}
    assert several | {("algorithm", "together")} <= changes(found)


def test_the_table_has_a_row_for_each():
    lines = plan(*SIZE, *THIN).stdout.splitlines()
    assert lines[0].startswith("2 nodes, a model of 4 MB, steps of 100 ms, over 40 Mbit/s and 10")
    (head,) = [at for at, line in enumerate(lines) if line.startswith("settings ")]
    assert lines[head + 1].startswith("present ")
    assert any(line.startswith("codec int8 ") for line in lines[head:])


def test_present_settings_that_time_out_are_told_and_others_get_the_time_they_need(config):
    large = ("-c", config, "--parameters", "10M", "--step-ms", "100", *THIN)
    assert "all fetches time out. Set timeout_ms to 12100." in plan(*large).stdout
    (choice,) = [c for c in planned(*large)["alone"] if c["changes"].get("codec") == "bf16"]
    assert choice["changes"]["timeout_ms"] == 6100
    assert not choice["is_late"]


def test_settings_that_the_algorithm_refuses_or_does_not_heed_are_left_out(config):
    config.write_text(CONFIG + "algorithm: symmetric\n")
    assert {key for key, _ in changes(planned("-c", config, *SIZE, *THIN))} == {"fetch_probability"}
    config.write_text(CONFIG + "algorithm: noloco\n")
    assert {key for key, _ in changes(planned("-c", config, *SIZE, *THIN))} == {"codec"}


def test_settings_of_single_nodes_are_said_to_be_left_out(config):
    config.write_text(CONFIG.replace("port: 1001}", "port: 1001, codec: int8}"))
    assert (
        "The table ignores the codecs of single nodes and links."
        in plan("-c", config, *SIZE, *THIN).stdout
    )


def test_nodes_of_one_host_have_no_plan(config):
    config.write_text(CONFIG + "transport: shm\n")
    result = plan("-c", config, *SIZE, *THIN)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "`transport: shm` is for nodes on one host, which use no link" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--parameters", "12Q"), "--parameters: expected a number such as 300000, 124M or 7B"),
        (("--parameters", "0"), "--parameters: expected a number"),
        (("--parameters", "900B"), "a node can stream at most 137 GB"),
        (("--parameters", "1M", "--dtype", "int4"), "--dtype: expected one of float64, float32"),
        (("--parameters", "1M", "-c", "/no/such.yaml"), "expected a readable file"),
        (("--parameters", "1M", "--step-ms", "nan"), "--step-ms: expected a number above 0"),
    ],
)
def test_wrong_usage_is_told(arguments, text):
    result = plan("--step-ms", "100", *arguments, *THIN)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


@pytest.mark.parametrize(
    ("link", "text"),
    [
        ((), "expected a latency and a bandwidth. Give --latency-ms and --bandwidth-mbps"),
        (("--latency-ms", "1"), "expected a latency and a bandwidth"),
        (("--link", "a.json", "--latency-ms", "1"), "expected either --link, or --latency-ms"),
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
    result = plan(*SIZE, *THIN, columns=columns)
    assert max(map(len, result.stdout.splitlines())) <= columns
