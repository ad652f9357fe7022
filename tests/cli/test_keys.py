"""`dpwa keys`, and commands that need keys: `dpwa status` and `dpwa launch`."""

import json
import os
import sys
from pathlib import Path

import pytest
from support.commands import run_dpwa
from support.keys import key_folder, key_folders
from support.launched import launch
from support.nodes import config_of, eventually

from dpwa import DpwaConnection
from dpwa.transport.keys import KeyFolder, KeyPair

TRAIN = """
import os, time
import numpy as np
from dpwa import DpwaConnection
from dpwa.config import load_config
with DpwaConnection(os.environ["DPWA_NAME"], load_config(os.environ["DPWA_CONFIG"])) as node:
    total, count = node.all_reduce(np.full(4, 1.0))
    print("sum", total[0], "of", count)
"""


@pytest.fixture
def keys(tmp_path):
    return tmp_path / "keys"


def dpwa_keys(keys, command, *arguments):
    return run_dpwa("keys", command, *arguments, "--keys", keys)


def secrets_of(keys):
    folder = KeyFolder(keys)
    return [folder.key_pair(name).secret.reveal().decode() for name in folder.owners()]


# Making keys


def test_new_makes_keys_of_several_nodes_and_says_what_to_do(keys):
    result = dpwa_keys(keys, "new", "w1", "w2", "w3")
    assert result.exit_code == 0
    folder = KeyFolder(keys)
    assert folder.owners() == folder.names() == ["w1", "w2", "w3"]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines == [[name, folder.public_key(name)] for name in ("w1", "w2", "w3")]
    assert all((keys / f"{name}.key").stat().st_mode & 0o777 == 0o600 for name in folder.owners())
    assert "dpwa keys add w2" in result.stderr
    assert "security: curve" in result.stderr
    assert not [s for s in secrets_of(keys) if s in result.stdout + result.stderr]


def test_what_is_told_is_on_the_disk(keys, monkeypatch):
    synced = {}

    def fsync(file):
        path = Path(f"/proc/self/fd/{file}").readlink()
        synced[path.name] = path.read_bytes()

    monkeypatch.setattr(os, "fsync", fsync)
    assert dpwa_keys(keys, "new", "w1").exit_code == 0
    files = [path for path in keys.rglob("*") if path.is_file()]
    assert synced == {path.name: path.read_bytes() for path in files}
    assert "w1.key" in synced


def test_new_overwrites_nothing_and_then_makes_nothing(keys):
    assert dpwa_keys(keys, "new", "w1").exit_code == 0
    before = (keys / "w1.key").read_bytes()
    result = dpwa_keys(keys, "new", "w2", "w1")
    assert result.exit_code == 2
    said = f"{keys}/w1.key: the file already exists, and dpwa overwrites no keys"
    assert result.stderr == f"dpwa: {said} [DPWA-E227]\n"
    assert (keys / "w1.key").read_bytes() == before
    assert KeyFolder(keys).owners() == ["w1"]


@pytest.mark.parametrize("name", ["a b", "../w1", "", "x" * 65])
def test_a_name_that_no_node_can_have_is_refused(keys, name):
    for command, rest in (("new", ()), ("add", (KeyPair.new().public,)), ("remove", ())):
        result = dpwa_keys(keys, command, name, *rest)
        assert result.exit_code == 2
        assert "expected a name of 1 to 64" in result.stderr
    assert not keys.exists()


# Letting nodes in, and out


def test_add_takes_a_key_or_its_file(tmp_path, keys):
    other = key_folder(tmp_path / "other", "w2")
    public = other.public_key("w2")
    for given in (public, other.public_file("w2")):
        result = dpwa_keys(keys, "add", "w2", given)
        assert (result.exit_code, KeyFolder(keys).public_key("w2")) == (0, public)
        assert dpwa_keys(keys, "add", "w2", given).exit_code == 0  # again: nothing to do
        assert dpwa_keys(keys, "remove", "w2").exit_code == 0
        assert KeyFolder(keys).names() == []


def test_add_refuses_what_would_be_a_mistake(tmp_path, keys):
    folder = key_folder(keys, "w1", "w2")
    for name, given, message in (
        ("w3", "nonsense", "expected a file, or a public key of 40 characters (got nonsense)"),
        ("w3", "-z", "or a public key of 40 characters (got -z)"),  # one may begin so
        ("w3", folder.secret_file("w1"), "got a secret key, which must not be given to others"),
        ("w3", folder.public_key("w1"), "expected a different key for w3 (node w1 has this key)"),
        ("w2", KeyPair.new().public, "overwrites no keys"),
    ):
        result = dpwa_keys(keys, "add", name, given)
        assert result.exit_code == 2
        assert message in result.stderr
        assert not [s for s in secrets_of(keys) if s in result.stderr]
    assert folder.names() == ["w1", "w2"]


def test_remove_tells_of_a_secret_key_that_stays(keys):
    key_folder(keys, "w1")
    result = dpwa_keys(keys, "remove", "w1")
    assert result.exit_code == 0
    assert f"{keys}/w1.key" in result.stderr
    assert (keys / "w1.key").exists()
    again = dpwa_keys(keys, "remove", "w1")
    assert again.exit_code == 2
    assert again.stderr == (
        f"dpwa: w1 has no key to revoke, because no file {keys}/allowed/w1.pub exists [DPWA-E108]\n"
    )


def test_list_shows_who_is_in_and_whose_secret_is_here(tmp_path, keys):
    folder = key_folder(keys, "w1", "w2")
    folder.allow_key("w3", KeyPair.new().public)
    folder.remove("w2")
    result = dpwa_keys(keys, "list", "--json")
    found = json.loads(result.stdout)
    assert found["keys"] == str(keys)
    rows = {row["name"]: row for row in found["nodes"]}
    assert {name: (row["allowed"], row["secret"]) for name, row in rows.items()} == {
        "w1": (True, True),
        "w2": (False, True),
        "w3": (True, False),
    }
    assert rows["w2"]["fingerprint"] is None
    assert len(rows["w1"]["fingerprint"]) == 16
    table = dpwa_keys(keys, "list")
    assert (table.exit_code, table.stderr) == (0, "")
    assert rows["w1"]["fingerprint"] in table.stdout
    assert not [s for s in secrets_of(keys) if s in result.stdout + table.stdout]


# Commands that need them


@pytest.fixture
def folders(tmp_path):
    return key_folders(tmp_path, "w1", "w2", "w9")


@pytest.fixture
def run(tmp_path, folders):
    """A file of two nodes with keys, for an onlooker that has the keys of w9."""
    config = {**config_of(2), "security": "curve", "keys": str(folders["w9"].path)}
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config))
    return path, config


def status(path, *options, timeout_ms=2000):
    result = run_dpwa("status", "-c", path, "--timeout-ms", timeout_ms, "--json", *options)
    rows = json.loads(result.stdout)["nodes"] if result.stdout else []
    return result, {row["name"]: row for row in rows}


def test_status_asks_with_a_key_of_the_folder(run, folders):
    path, config = run
    with (
        DpwaConnection("w1", {**config, "keys": str(folders["w1"].path)}),
        DpwaConnection("w2", {**config, "keys": str(folders["w2"].path)}),
    ):
        for options in ((), ("--as", "w9")):
            result, rows = status(path, *options)
            assert result.exit_code == 0
            assert [rows[name]["reachable"] for name in ("w1", "w2")] == [True, True]
        assert rows["w1"]["handshakes_refused"]["unknown_key"] == 0


def test_status_says_who_does_not_let_it_in(run, folders):
    path, config = run
    folders["w1"].remove("w9")
    folders["w9"].remove("w2")
    with (
        DpwaConnection("w1", {**config, "keys": str(folders["w1"].path)}) as node,
        DpwaConnection("w2", {**config, "keys": str(folders["w2"].path)}),
    ):
        result, rows = status(path)
        eventually(lambda: node.node.report()["handshakes_refused"]["unknown_key"] == 1)
    assert result.exit_code == 3
    assert "refuses this node" in rows["w1"]["problem"]
    assert rows["w2"]["problem"].startswith("not reachable: no key of w2 in ")


def test_status_without_a_key_says_what_is_missing(run, folders):
    path, _ = run
    result, _ = status(path, "--as", "w5")
    assert result.exit_code == 2
    assert "no secret key of w5" in result.stderr
    folders["w9"].secret_file("w9").unlink()
    result, _ = status(path)
    assert result.exit_code == 2
    assert "this folder has no secret key" in result.stderr


def test_launched_nodes_talk_with_keys_and_no_secret_is_seen(tmp_path):
    config = {**config_of(2), "security": "curve", "transport": "tcp"}
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config))
    assert dpwa_keys(tmp_path / "keys", "new", "w1", "w2").exit_code == 0
    done = launch("-c", str(path), "--", sys.executable, "-c", TRAIN)
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr
    assert shown.count("sum 2.0 of 2") == 2
    assert not [s for s in secrets_of(tmp_path / "keys") if s in shown]


def test_a_launched_node_whose_key_others_can_read_fails_with_one_clear_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({**config_of(1), "security": "curve"}))
    key_folder(tmp_path / "keys", "w1").secret_file("w1").chmod(0o644)
    done = launch("-c", str(path), "--", sys.executable, "-c", TRAIN)
    assert done.returncode == 1
    told = [line for line in (done.stdout + done.stderr).splitlines() if "mode 0644" in line]
    assert len(told) == 1
    assert f"{tmp_path}/keys/w1.key: mode 0644" in told[0]
    assert "chmod 600" in told[0]
