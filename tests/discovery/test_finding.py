"""Where a process looks for its cluster: the order, what counts, and what it says."""

import pytest
import torch

import dpwa
from dpwa.config import load_config
from dpwa.discovery.connect import find, from_folder, load
from dpwa.errors import ConfigError, UnknownNameError, UserError
from dpwa.launch import local_config
from dpwa.launch.ports import free_ports

NODES = [
    {"name": "w1", "host": "127.0.0.1", "port": 7001},
    {"name": "w2", "host": "127.0.0.1", "port": 7002},
]
SKYPILOT = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_NODE_RANK": "1"}


def written(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def listing(tmp_path):
    """A file that lists nodes, and is not in the working folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return written(
        folder / "cluster.yaml",
        "nodes:\n"
        "  - {name: w1, host: 127.0.0.1, port: 7001}\n"
        "  - {name: w2, host: 127.0.0.1, port: 7002}\n",
    )


@pytest.fixture
def found(tmp_path):
    """Find and load; the folder is `tmp_path`."""

    def run(environ=None, config=None, name=None, **overrides):
        environ = environ or {}
        return load(find(config, name, overrides, environ, tmp_path), overrides, environ)

    return run


def names(config):
    return [node.name for node in config.nodes]


def test_a_traceback_of_a_wrong_name_has_one_line_of_the_script_and_one_of_dpwa(listing):
    with pytest.raises(UnknownNameError, match="no node is named 'w9'") as caught:
        dpwa.connect(torch.nn.Linear(2, 2), config=listing, name="w9")
    assert len(caught.traceback) == 2


def test_arguments_are_enough(found):
    name, config = found(config={"nodes": NODES}, name="w2")
    assert (name, names(config)) == ("w2", ["w1", "w2"])


def test_the_list_may_be_an_argument_of_its_own(found):
    name, config = found(name="w1", nodes=NODES, timeout_ms=1234)
    assert (name, names(config), config.timeout_ms) == ("w1", ["w1", "w2"], 1234)


def test_arguments_go_before_the_environment_and_that_before_the_file(found, tmp_path, listing):
    settings = {"DPWA_CONFIG": str(listing), "DPWA_NAME": "w1", "DPWA_TIMEOUT_MS": "700"}
    written(listing, listing.read_text() + "timeout_ms: 300\nfetch_probability: 0.5\n")
    name, config = found(settings)
    assert (name, config.timeout_ms, config.fetch_probability) == ("w1", 700, 0.5)
    name, config = found(settings, name="w2", timeout_ms=900)
    assert (name, config.timeout_ms, config.fetch_probability) == ("w2", 900, 0.5)


def test_options_of_a_method_may_be_arguments(found):
    _, config = found(name="w1", nodes=NODES, interpolation="constant", constant={"value": 0.25})
    assert config.options_of("constant").value == 0.25


def test_a_loaded_configuration_takes_arguments_too(found):
    loaded = load_config({"nodes": NODES, "timeout_ms": 300})
    _, config = found({"DPWA_TIMEOUT_MS": "700"}, config=loaded, name="w1", fetch_probability=0.5)
    assert (config.timeout_ms, config.fetch_probability) == (300, 0.5)


def test_dpwa_launch_goes_before_a_file_in_the_folder(found, tmp_path, listing):
    written(tmp_path / "dpwa.yaml", "nodes: [{name: other, host: 127.0.0.1, port: 7009}]\n")
    name, config = found({"DPWA_CONFIG": str(listing), "DPWA_NAME": "w2"})
    assert (name, names(config)) == ("w2", ["w1", "w2"])


def test_a_file_in_the_folder_is_used_by_whom_has_a_name(found, tmp_path, listing):
    written(tmp_path / "dpwa.yaml", listing.read_text())
    assert found({"DPWA_NAME": "w2"})[0] == "w2"
    assert found(name="w1")[0] == "w1"


def test_a_file_that_lists_others_is_left_alone_under_a_launcher(found, tmp_path, listing):
    written(tmp_path / "dpwa.yaml", listing.read_text() + "timeout_ms: 300\n")
    name, config = found(SKYPILOT)
    assert (name, names(config)) == ("machine1", ["machine0", "machine1"])
    assert config.timeout_ms != 300


def test_a_file_without_nodes_is_for_settings(found, tmp_path):
    written(tmp_path / "dpwa.yaml", "timeout_ms: 300\n")
    name, config = found(SKYPILOT, fetch_probability=0.5)
    assert (name, names(config)) == ("machine1", ["machine0", "machine1"])
    assert (config.timeout_ms, config.fetch_probability) == (300, 0.5)


def test_settings_in_an_argument_go_before_those_of_the_folder(found, tmp_path):
    written(tmp_path / "dpwa.yaml", "timeout_ms: 300\n")
    assert found(SKYPILOT, config={"timeout_ms": 400})[1].timeout_ms == 400


def test_settings_of_a_script_stand_over_the_file_that_dpwa_launch_has_made(found, listing):
    launched = {"DPWA_CONFIG": str(listing), "DPWA_NAME": "w2"}
    written(listing, listing.read_text() + "timeout_ms: 300\nfetch_probability: 0.5\n")
    name, config = found(launched, config={"timeout_ms": 5})
    assert (name, names(config)) == ("w2", ["w1", "w2"])
    assert (config.timeout_ms, config.fetch_probability) == (5, 0.5)


def test_what_is_used_is_said(tmp_path, listing):
    environ = {"DPWA_CONFIG": str(listing), "DPWA_NAME": "w2"}
    looks = find(None, None, {"nodes": NODES}, environ, tmp_path).looks
    assert [look.found for look in looks] == [
        "used, for node w2", "not there", "used for its settings", "not there"
    ]  # fmt: skip


def test_a_list_among_the_arguments_is_not_overruled_by_a_launcher(found):
    with pytest.raises(UserError, match="neither name= nor DPWA_NAME"):
        found(SKYPILOT, nodes=NODES)
    assert names(found(SKYPILOT, name="w1", nodes=NODES)[1]) == ["w1", "w2"]


def test_paths_among_the_arguments_are_those_of_the_working_folder(tmp_path):
    given = {"checkpoint": {"dir": "saved", "keep": 2}, "keys": "keys", "timeout_ms": 5}
    assert from_folder(tmp_path, given) == {
        "checkpoint": {"dir": str(tmp_path / "saved"), "keep": 2},
        "keys": str(tmp_path / "keys"),
        "timeout_ms": 5,
    }


def test_plugins_among_the_arguments_are_imported(found):
    with pytest.raises(ConfigError, match="nothing_of_this_name"):
        found(name="w1", nodes=NODES, plugins=["nothing_of_this_name"])


def test_nothing_found_lists_what_was_looked_for(found, tmp_path):
    with pytest.raises(UserError) as error:
        found()
    message = str(error.value)
    for place in ("config=", "DPWA_CONFIG", f"dpwa.yaml in {tmp_path}", "torchrun (RANK", "SLURM"):
        assert place in message
    assert "dpwa launch -n 4" in message


@pytest.mark.parametrize("environ", [{}, SKYPILOT])
def test_a_list_in_an_argument_wants_a_name(found, environ):
    with pytest.raises(UserError, match="neither name= nor DPWA_NAME says which node this is"):
        found(environ, config={"nodes": NODES})


def test_mistakes_in_arguments_are_named(found):
    with pytest.raises(ConfigError) as error:
        found(name="w1", nodes=NODES, timeout_sm=1, fetch_probability=2)
    assert error.value.problems == (
        "<arguments>: timeout_sm: unknown key. Did you mean timeout_ms?",
        "<arguments>: fetch_probability: expected a number from 0 to 1 (got 2)",
    )


def test_a_variable_without_a_value_says_nothing(found):
    with pytest.raises(UserError, match="Searched places"):
        found({**SKYPILOT, "SKYPILOT_NODE_RANK": " "})


def test_however_it_is_started_a_process_has_the_same_settings(found, tmp_path):
    folder = tmp_path / "launched"
    folder.mkdir()
    (port,) = free_ports(1)
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    ways = {
        "dpwa launch": found({"DPWA_CONFIG": str(local_config(2, folder)), "DPWA_NAME": "w1"}),
        "a mapping": found(config={"nodes": NODES}, name="w1"),
        "by hand": found(name="w1", nodes=NODES),
        "torchrun": found({**torchrun, "MASTER_PORT": str(port)}),
        "SkyPilot": found(SKYPILOT),
        "2017's list": found(config=[{"nodes": NODES}], name="w1"),
    }
    shown = {way: config.to_mapping() for way, (_, config) in ways.items()}
    for settings in shown.values():
        del settings["nodes"]
    assert shown.pop("2017's list") == {**shown["a mapping"], "merge": "interpolate"}
    assert all(settings == shown["a mapping"] for settings in shown.values()), shown
    assert shown["a mapping"]["merge"] == "delta"


@pytest.mark.parametrize("where", ["environ", "overrides", "file"])
def test_a_list_as_in_2017_may_say_another_merge(found, where):
    environ = {"DPWA_MERGE": "delta"} if where == "environ" else {}
    overrides = {"merge": "delta"} if where == "overrides" else {}
    source = [{"nodes": NODES}, *([{"merge": "delta"}] if where == "file" else [])]
    assert found(environ, source, "w1", **overrides)[1].merge == "delta"
