"""`dpwa config init, check, show, schema`, as a person runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from support.commands import run_dpwa
from support.launched import dpwa

from dpwa.algorithms import algorithm_names
from dpwa.config import Config, load_config
from dpwa.launch import local_config
from dpwa.policy.topology import topology_names


def run(*arguments):
    return run_dpwa("config", *arguments, environment={"DPWA_SEED": "3"})


ROOT = Path(__file__).parents[2]
BROKEN = "nodes: [{name: w1, port: 0}]\nseed: x\nmrege: delta\n"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A configuration that init has written."""
    path = tmp_path / "run.yaml"
    assert run("init", "-n", "3", "-o", str(path)).exit_code == 0
    return path


def test_init_writes_a_configuration_to_standard_output(tmp_path: Path) -> None:
    result = run("init", "-n", "2", "--base-port", "700", "--host", "10.0.0.1")
    assert (result.exit_code, result.stderr) == (0, "")
    path = tmp_path / "run.yaml"
    path.write_text(result.stdout)
    config = load_config(path, environ={})
    assert config.merge == "delta"
    assert [(n.name, n.host, n.port) for n in config.nodes] == [
        ("w1", "10.0.0.1", 700),
        ("w2", "10.0.0.1", 701),
    ]


def test_new_configurations_do_as_the_documentation_advises(written: Path, tmp_path: Path) -> None:
    (tmp_path / "launched").mkdir()
    launched = local_config(2, tmp_path / "launched")
    in_docs = [
        found
        for page in ("README.md", "docs/configuration.md")
        for found in re.findall(r"```yaml\n(nodes:.*?)```", (ROOT / page).read_text(), re.DOTALL)
    ]
    assert len(in_docs) >= 2
    for settings in [written.read_text(), launched.read_text(), in_docs[0], in_docs[1]]:
        assert yaml.safe_load(settings)["merge"] == "delta"
    advised = [key for key, f in Config.model_fields.items() if "best for" in (f.description or "")]
    assert advised == []  # what is advised is the default


def test_init_writes_to_standard_output_unless_it_is_told_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told, untold = run("init", "-o", "-"), run("init")
    assert (told.exit_code, told.stderr) == (untold.exit_code, untold.stderr) == (0, "")
    assert told.stdout == untold.stdout
    assert len(load_config(yaml.safe_load(told.stdout), environ={}).nodes) == 4
    assert list(tmp_path.iterdir()) == []


def test_init_overwrites_only_when_forced(written: Path) -> None:
    before = written.read_text()
    result = run("init", "-n", "1", "-o", str(written))
    assert result.exit_code == 2
    assert (
        result.stderr
        == f"dpwa: {written}: the file already exists. Use --force to overwrite it [DPWA-E023]\n"
    )
    assert written.read_text() == before
    assert run("init", "-n", "1", "-o", str(written), "--force").exit_code == 0
    assert len(load_config(written, environ={}).nodes) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--base-port", "65535"],
            "--base-port: expected ports up to 65535 (the last of 4 nodes would get 65538)",
        ),
        (["--host", "a:1"], "--host: expected a host name or IP address, without a port (got a:1)"),
        (["-o", "/nowhere/run.yaml"], "/nowhere/run.yaml: the file cannot be written (No such"),
        (["-n", "0"], "Invalid value"),
    ],
)
def test_init_explains_what_it_cannot_do(arguments: list[str], message: str) -> None:
    result = run("init", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_check_says_in_one_line_that_all_is_well(written: Path) -> None:
    result = run("check", str(written))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{written}: OK, 3 nodes\n"


@pytest.mark.parametrize(
    ("nodes", "told"),
    [("", "nodes may join"), ("nodes: [{name: a, port: 1}]\n", "1 node, nodes may join")],
)
def test_check_says_that_nodes_may_join(tmp_path: Path, nodes: str, told: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"{nodes}join: []\n")
    assert run("check", str(path)).stdout == f"{path}: OK, {told}\n"


def test_show_fills_in_defaults_and_applies_the_environment(written: Path) -> None:
    as_yaml = run("show", str(written))
    as_json = run("show", "--json", str(written))
    expected = load_config(written, environ={"DPWA_SEED": "3"})
    assert as_yaml.stdout == expected.to_yaml()
    assert json.loads(as_json.stdout) == expected.to_mapping()
    assert json.loads(as_json.stdout)["seed"] == 3
    assert (as_yaml.exit_code, as_json.exit_code) == (0, 0)


def test_show_reports_mistakes_like_check(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(BROKEN)
    shown, checked = (run(verb, str(path)) for verb in ("show", "check"))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr == checked.stderr


def test_show_says_where_the_cluster_is_found(written: Path) -> None:
    environment = {"DPWA_CONFIG": str(written), "DPWA_NAME": "w2"}
    found = run_dpwa("config", "show", "--where", environment=environment)
    assert (found.exit_code, found.stderr) == (0, "")
    assert "DPWA_CONFIG (dpwa launch): used, for node w2" in found.stdout.splitlines()
    nobody = run("show", "--where")
    assert (nobody.exit_code, nobody.stderr) == (
        2,
        "dpwa: found neither the name of this node nor its peers in the places above [DPWA-E038]\n",
    )
    assert "torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT): not there" in nobody.stdout


@pytest.mark.parametrize("verb", ["show", "check"])
def test_a_file_is_named_as_with_other_commands_too(written: Path, verb: str) -> None:
    assert run(verb, "-c", str(written)) == run(verb, str(written))
    twice = run(verb, "-c", str(written), str(written))
    assert (twice.exit_code, twice.stdout) == (2, "")
    assert "expected either the argument FILE or" in twice.stderr
    if verb == "check":
        assert "expected a FILE" in run(verb).stderr


def test_show_wants_a_file() -> None:
    shown = run("show")
    told = "dpwa: expected a FILE, or the option --where [DPWA-E029]\n"
    assert (shown.exit_code, shown.stderr) == (2, told)


def test_schema_describes_every_key_and_both_forms() -> None:
    schema = json.loads(run("schema").stdout)
    definitions = schema["$defs"]
    settings = definitions["Config"]["properties"]
    assert {"nodes", "plugins", "constant", "leader", "clock"} <= set(settings)
    assert "options" not in settings
    assert all("description" in setting for setting in settings.values())
    assert all("description" in key for key in definitions["NodeConfig"]["properties"].values())
    assert settings["interpolation"]["enum"] == ["constant", "clock", "loss", "leader"]
    assert settings["constant"]["anyOf"][0] == {"$ref": "#/$defs/ConstantOptions"}
    assert settings["algorithm"]["enum"] == list(algorithm_names())
    assert settings["topology"]["enum"] == list(topology_names())
    assert settings["robust"]["enum"] == ["none", "clip"]
    assert settings["noloco"]["anyOf"][0] == {"$ref": "#/$defs/NoLoCoOptions"}
    assert settings["clip"]["description"] == "options of clip: Options of `robust: clip`."
    for name in ("c1", "c2", "p1", "p2", "local_period", "global_period"):
        assert "description" in definitions["LSGDOptions"]["properties"][name]
    assert definitions["Config"]["anyOf"] == [{"required": ["nodes"]}, {"required": ["join"]}]
    assert "required" not in definitions["Setting"]
    assert schema["anyOf"][1]["items"] == {"$ref": "#/$defs/Setting"}


def test_a_real_process_prints_every_mistake_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPWA_TIMEOT_MS", "1")
    done = dpwa("config", "check", "run.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "run.yaml:1:26: nodes[0].port: expected a whole number from 1 to 65535 (got 0) [DPWA-E178]",
        "run.yaml:2:7: seed: expected a whole number from 0 to 9223372036854775807 or nothing "
        "(got x) [DPWA-E178]",
        "run.yaml:3:1: mrege: unknown key. Did you mean merge? [DPWA-E206]",
        "environment: DPWA_TIMEOT_MS: unknown variable. Did you mean DPWA_TIMEOUT_MS? [DPWA-E207]",
    ]


def test_what_a_plugin_prints_stays_out_of_the_results(tmp_path: Path) -> None:
    (tmp_path / "chatty_plugin.py").write_text("print('hello')\n")
    file = tmp_path / "run.yaml"
    file.write_text("nodes: [{name: a, port: 1}]\nplugins: [chatty_plugin]\n")
    result = run("show", "--json", file)
    assert json.loads(result.stdout)["plugins"] == ["chatty_plugin"]
    assert "hello" in result.stderr


def test_the_schema_lets_settings_be_switched_off() -> None:
    definitions = json.loads(run("schema").stdout)["$defs"]
    settings = definitions["Config"]["properties"]
    threshold = settings["divergence_threshold"]
    assert {"enum": ["off", False]} in threshold["anyOf"]
    assert threshold["description"]
    assert settings["guard"]["enum"] == ["finite", "off", False]
    for name in ("checkpoint", "lsgd", "ring", "clip"):
        assert {"enum": [0, False, None, "off"]} in settings[name]["anyOf"]
    assert {"enum": ["off", False]} in settings["quarantine_s"]["anyOf"]
    assert settings["file"]["$ref"] == "#/$defs/FileOptions"  # its path has no default


def test_the_schema_knows_the_codecs() -> None:
    definitions = json.loads(run("schema").stdout)["$defs"]
    names = ["none", "fp16", "bf16", "int8"]
    assert definitions["Config"]["properties"]["codec"]["enum"] == names
    assert definitions["LinkConfig"]["properties"]["codec"]["enum"] == names
    node_codec = definitions["NodeConfig"]["properties"]["codec"]
    assert node_codec["anyOf"] == [{"enum": names}, {"type": "null"}]


def test_check_takes_the_settings_of_this_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    missing = run("check")
    assert missing.exit_code == 2
    assert "expected a FILE, because this folder has no dpwa.yaml" in missing.stderr
    Path("dpwa.yaml").write_text("timeout_ms: 400\n")
    assert run("check").stdout.startswith("dpwa.yaml: OK, settings without nodes")
    Path("dpwa.yaml").write_text("timout_ms: 400\n")
    assert "Did you mean timeout_ms?" in run("check").stderr
