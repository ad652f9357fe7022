"""What `dpwa sim` says to mistakes: one clear line each, in a file with line and column."""

import pytest
from support.commands import run_dpwa

SCENARIO = "nodes: 4\nrounds: 5\nschedule: lockstep\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bad.yaml"


def refused(*arguments):
    """The one line that is told."""
    result = run_dpwa("sim", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.rstrip("\n").splitlines()
    return line.partition(" [DPWA-")[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SCENARIO + "rouds: 3\n", ":4:1: rouds: unknown key. Did you mean rounds?"),
        (SCENARIO + "network: {latency_ms: -1}\n",
         ":4:23: network.latency_ms: expected a number of at least 0 (got -1)"),
        (SCENARIO + "network:\n  upload_mbps: 0\n",
         ":5:16: network.upload_mbps: expected a number above 0 (got 0)"),
        (SCENARIO + "network: {loss: .nan}\n", ":4:17: network.loss: expected a number"),
        ("nodes: 1e9\nrounds: 5\n", ":1:8: nodes: expected a whole number from 1 to 100000 (got"),
        ("nodes: 4\n", ":1:1: expected `rounds` or `seconds`, because the run never ends without"),
        ("nodes: 4\nseconds: 5\ncompute: {step_ms: 0}\n",
         ":3:20: compute.step_ms: expected a number above 0, or `rounds`"),
        (SCENARIO + "target: {variance_ratio: 0}\n", ":4:26: target.variance_ratio: expected"),
        ("- 1\n- nodes: 3\n- rounds: 2\n", ":1:3: [0]: expected a single `key: value` (got 1)"),
        ("5\n", ":1:1: expected a mapping, or a list of single-key mappings (got 5)"),
        ("", ":1:1: expected settings (the file is empty)"),
        ("nodes: {\n", ":2:1: expected valid YAML"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_line_with_its_place(path, text, told):
    path.write_text(text)
    assert told in refused(path)


def test_a_file_that_is_no_text(path):
    path.write_bytes(bytes(range(128, 256)))
    assert f"{path}:1:1: expected text in UTF-8 (got the byte 0x80)" in refused(path)


def test_what_is_no_file(tmp_path):
    assert "SCENARIO: expected a file, or one of datacenter, " in refused(tmp_path)
    assert "(got nowhere.yaml)" in refused("nowhere.yaml")
    assert "(got datacentre). Did you mean datacenter?" in refused("datacentre")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "nodes"], "--set: expected KEY=VALUE (got nodes)"),
        (["--set", "nods=3"], "nods: unknown key. Did you mean nodes?"),
        (
            ["--set", "nodes=3", "--sweep", "nodes=3,4"],
            "--sweep: expected each key only once, and not in --set (got nodes)",
        ),
        (["--sweep", "algorithm=gossip,lsdg"], "Did you mean lsgd?"),
        (["--sweep", "topolgy=ring,random"], "topolgy: unknown key. Did you mean topology?"),
        (["--sweep", "topology="], "--sweep: expected values between the commas (got topology=)"),
        (["--seed", "3"], "--seed was removed. Use --set seed=N"),
        (["--sweep", "topology"], "--sweep: expected KEY=A,B,C (got topology)"),
        (["--set", "churn.lost=[{at_s: 1, share: 1}]"], "churn.lost[0].share: expected a share"),
    ],
)
def test_a_mistake_in_a_command_is_one_line(path, arguments, told):
    path.write_text(SCENARIO)
    assert told in refused(path, *arguments)


def test_keys_are_listed_once(path):
    path.write_text(SCENARIO + "xyzzy: 3\n")
    listed = refused(path).partition("expected one of ")[2].split(", ")
    assert listed.count("nodes") == 1


@pytest.mark.parametrize("key", ["network", "compute", "churn", "target"])
def test_a_mapping_with_nothing_in_it_is_none(path, key):
    path.write_text(f"{SCENARIO}{key}:\n")
    assert run_dpwa("sim", path).exit_code == 0


@pytest.mark.parametrize("environment", [{"COLUMNS": "40"}, {"TERM": "dumb"}])
@pytest.mark.parametrize(
    "sweep", [[], ["--sweep", "topology=ring,one_peer_exponential", "-j", "1"]]
)
def test_small_and_dumb_terminals_get_plain_text_that_fits(path, environment, sweep):
    path.write_text(SCENARIO)
    result = run_dpwa("sim", path, *sweep, environment=environment)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= int(environment.get("COLUMNS", 200))
