"""Scenarios: read with all mistakes at once, and refused where they are impossible."""

import time

import pytest
from support.snippets import blocks
from support.times import at_most

from dpwa.errors import ConfigError
from dpwa.sim.load import NO_OTHERS, load_scenario
from dpwa.sim.scenario import Scenario

SMALL = {"nodes": 4, "rounds": 10}


def problems_of(source, overrides=None):
    with pytest.raises(ConfigError) as caught:
        load_scenario(source, overrides)
    return caught.value.problems


def only_problem(source, overrides=None):
    (problem,) = problems_of(source, overrides)
    return problem


@pytest.fixture
def written(tmp_path):
    """Writes a scenario into a file."""

    def write(text):
        path = tmp_path / "scenario.yaml"
        path.write_text(text)
        return path

    return write


def test_a_scenario_is_its_own_keys_and_those_of_a_configuration(written):
    spec = load_scenario(
        written("nodes: 3\nrounds: 5\nseed: 7\ntopology: ring\nconstant: {value: 0.3}\n"
                "consensus: {dimension: 4}\nnetwork: {latency_ms: 9}\n")
    )  # fmt: skip
    assert (spec.scenario.nodes, spec.scenario.rounds, spec.scenario.network.latency_ms) == (
        3,
        5,
        9,
    )
    assert spec.config.topology == "ring"
    assert spec.config.options_of("constant").value == 0.3
    assert spec.task_options.dimension == 4
    assert spec.config.seed == 7


def test_nodes_have_names_and_addresses_of_their_own():
    config = load_scenario({"nodes": 300, "rounds": 1}).config
    assert [node.name for node in config.nodes[:2]] == ["n0", "n1"]
    assert config.nodes[0].connect_endpoint == "tcp://10.0.0.1:7000"
    assert config.nodes[299].connect_endpoint == "tcp://10.0.1.44:7000"
    assert config.join is None


def test_open_membership_joins_at_the_first_node():
    config = load_scenario({**SMALL, "membership": "open"}).config
    assert config.join == ("tcp://10.0.0.1:7000",)


def test_nodes_of_a_site_are_a_group():
    sites = [{"name": "east"}, {"name": "west", "share": 3}]
    config = load_scenario({**SMALL, "network": {"sites": sites}}).config
    assert [node.group for node in config.nodes] == ["east", "west", "west", "west"]


def test_all_mistakes_of_both_kinds_come_at_once_with_their_places(written):
    path = written(
        "nodes: 8\n"
        "rouds: 30\n"
        "topolgy: ring\n"
        "network: {latency_ms: -2, los: 0.1}\n"
        "consensus: {dimensions: 4}\n"
        "constant: {value: 3}\n"
        "run_log: here\n"
        "nodes: 9\n"
    )
    expected = [
        ":2:1: rouds: unknown key. Did you mean rounds?",
        ":3:1: topolgy: unknown key. Did you mean topology?",
        ":4:23: network.latency_ms: expected a number of at least 0 (got -2)",
        ":4:27: network.los: unknown key. Did you mean loss?",
        ":5:13: consensus.dimensions: unknown key. Did you mean dimension?",
        ":6:19: constant.value: expected a number from 0 to 1 (got 3)",
        f":7:1: run_log: {NO_OTHERS}",
        ":8:1: nodes: duplicate key, expected the key only once (first on line 1)",
    ]
    told = problems_of(path)
    assert [line.removeprefix(str(path)).partition(" [")[0] for line in told] == expected


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        ({"nodes": 0, "rounds": 3}, "nodes: expected a whole number from 1 to 100000 (got 0)"),
        ({"rounds": 3}, "nodes: missing, expected a whole number from 1 to 100000"),
        ({"nodes": [1, 2], "rounds": 3}, "nodes: expected a whole number from 1 to"),
        ({"nodes": 4}, "expected `rounds` or `seconds`, because the run never ends without"),
        ({"nodes": 4, "target": {"variance_ratio": 0.1}}, "the run may never reach its target"),
        ({"nodes": 4, "seconds": 9, "compute": {"step_ms": 0}}, "compute.step_ms: expected a"),
        ({**SMALL, "topology": "star", "star": {"center": 9}}, "topology: "),
        ({**SMALL, "target": {"accuracy": 0.9}}, "and task: consensus has none"),
        ({**SMALL, "target": {"loss": 0.9}}, "nothing is trained with task: consensus"),
        ({**SMALL, "target": {"variance_ratio": 2}}, "expected a number below 1"),
        ({"nodes": 5000, "rounds": 1}, "nodes: expected at most 2000 whole nodes"),
        ({**SMALL, "detail": "arrays"}, "schedule: expected lockstep, because with detail: arrays"),
        ({**SMALL, "detail": "rules"}, "detail: expected auto, arrays or nodes, because"),
        ({**SMALL, "network": {"loss": 1}}, "network.loss: expected a number"),
        ({**SMALL, "network": {"upload_mbps": 0}}, "network.upload_mbps: expected a number"),
        ({**SMALL, "network": {"unreachable": 1}}, "network.unreachable: expected a share"),
        (
            {**SMALL, "network": {"sites": [{"name": "a"}, {"name": "a"}]}},
            "network.sites[1].name: expected a unique name",
        ),
        ({**SMALL, "network": {"sites": [{"name": "a b"}]}}, "sites[0].name: expected 1 to 64"),
        (
            {**SMALL, "network": {"sites": [{"name": f"s{i}"} for i in range(5)]}},
            "network.sites: expected at most 4 sites",
        ),
        (
            {**SMALL, "compute": {"stragglers": [{"nodes": 5}]}},
            "compute.stragglers[0].nodes: expected at most 4",
        ),
        ({**SMALL, "compute": {"stragglers": [{}]}}, "stragglers[0]: expected `nodes` or `share`"),
        ({**SMALL, "churn": {"lost": [{"at_s": 1, "share": 1}]}}, "churn.lost[0].share: expected"),
        ({**SMALL, "churn": {"trace": "none.csv"}}, "none.csv: expected a readable file"),
        ({**SMALL, "join": ["tcp://1.2.3.4:5"]}, "join: not allowed here"),
        ({**SMALL, "transport": "shm"}, "transport: expected auto or tcp"),
        (
            {**SMALL, "links": [{"between": ["n0", "n4"], "codec": "int8"}]},
            "links[0].between[1]: expected one of n0, n1, n2, n3 (got n4)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_clear_error(scenario, told):
    assert told in only_problem(scenario)


def test_overrides_go_before_the_scenario_and_are_read_like_it(written):
    path = written("nodes: 4\nrounds: 9\nconstant: 0\ncompute: {stragglers: [{nodes: 1}]}\n")
    overrides = {
        "nodes": "8",
        "constant.value": "0.25",
        "compute.stragglers.0.slower": "4",
        "network.sites": "[{name: a}, {name: b}]",
        "churn.kill_every_s": 3,
        "rounds": "null",
        "seconds": "5",
    }
    spec = load_scenario(path, overrides)
    scenario = spec.scenario
    assert (scenario.nodes, len(spec.config.nodes), scenario.rounds) == (8, 8, None)
    assert spec.config.options_of("constant").value == 0.25
    assert scenario.compute.stragglers[0].slower == 4
    assert [site.name for site in scenario.network.sites] == ["a", "b"]
    assert scenario.churn.kill_every_s == 3


def test_mistakes_in_overrides_are_told_by_their_keys():
    overrides = {
        "network.latncy_ms": "3",
        "rouns": "4",
        "network.sites.2.name": "x",
        "network.loss": "2",
        "churn.lost": "[{at_s",
    }
    scenario = {**SMALL, "network": {"sites": [{"name": "a"}]}}
    told = "\n".join(problems_of(scenario, overrides))
    assert "network.latncy_ms: unknown key. Did you mean latency_ms?" in told
    assert "rouns: unknown key. Did you mean rounds?" in told
    assert "network.sites.2.name: expected the number of an item, below 1" in told
    assert "network.loss: expected a number" in told
    assert "churn.lost: expected valid YAML" in told


def test_a_trace_is_found_beside_the_scenario(written, tmp_path, monkeypatch):
    (tmp_path / "trace.csv").write_text("time_s,node,event\n1,0,kill\n")
    path = written("nodes: 2\nrounds: 9\nchurn: {trace: trace.csv}\n")
    monkeypatch.chdir("/")
    assert load_scenario(path).scenario.churn.trace == str(tmp_path / "trace.csv")
    (tmp_path / "trace.csv").write_text("time_s,node,event\n1,5,kill\n")
    assert f"{tmp_path}/trace.csv:2:1: " in only_problem(path)


def test_variables_of_real_runs_are_passed_over(monkeypatch):
    monkeypatch.setenv("DPWA_TOPOLOGY", "ring")
    assert load_scenario(SMALL).config.topology == "random"


LARGE = {"nodes": 10_000, "rounds": 1, "schedule": "lockstep"}


@pytest.mark.timed
def test_ten_thousand_nodes_are_read_in_seconds():
    began = time.monotonic()
    assert len(load_scenario(LARGE).config.nodes) == 10_000
    assert time.monotonic() - began < at_most(3.0)


def test_the_scenario_of_the_page_loads(written):
    (block,) = (found for found in blocks("yaml") if found.page == "docs/simulator.md")
    assert load_scenario(written(block.code)).scenario.nodes == 16


def test_every_key_of_a_scenario_is_described():
    assert all(field.description for field in Scenario.model_fields.values())
