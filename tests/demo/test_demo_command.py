from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpwa.demo.records import Record
from dpwa.demo.run import DemoSpec, run_demo
from dpwa.errors import UserError

DPWA = (sys.executable, "-c", "from dpwa.cli.main import main; main()")


def run_dpwa(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DPWA, *arguments], capture_output=True, text=True, timeout=90)


def workers_of(out_dir: Path) -> dict[str, int]:
    """Process ids, by node, of the workers that write into this folder."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if b"dpwa.demo.worker" in command and os.fsencode(out_dir) in command:
            variables = dict(entry.partition(b"=")[::2] for entry in environment)
            found[variables[b"DPWA_NAME"].decode()] = int(process.name)
    return found


def wait_until(condition, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def long_demo(tmp_path) -> Iterator[subprocess.Popen[str]]:
    """A demo that would take minutes, once all of its workers have written a record."""
    process = subprocess.Popen(
        [*DPWA, "demo", "--nodes", "2", "--steps", "100000", "--out-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    logs = [tmp_path / "w1.jsonl", tmp_path / "w2.jsonl"]
    try:
        wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs), 60)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_four_processes_learn_digits_better_than_alone(tmp_path):
    ran = run_dpwa("demo", "--nodes", "4", "--steps", "120", "--json", "--out-dir", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Gossip won" in ran.stderr

    result = json.loads(ran.stdout)
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert set(result) == {
        "nodes",
        "mean_accuracy",
        "mean_alone_accuracy",
        "consensus_distance",
        "seconds",
    }
    assert [node["name"] for node in result["nodes"]] == ["w1", "w2", "w3", "w4"]
    for node in result["nodes"]:
        assert set(node) == {"name", "steps", "merges", "accuracy", "alone_accuracy"}
        assert node["steps"] == 120
        assert node["merges"] > 60
    assert result["mean_accuracy"] > result["mean_alone_accuracy"] + 0.2
    assert result["consensus_distance"] < 0.05
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert workers_of(tmp_path) == {}

    for name in ("w1", "w2", "w3", "w4"):
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        records = [Record.model_validate_json(line) for line in lines]
        assert {record.phase for record in records} == {"alone", "gossip", "mixing"}
        with np.load(tmp_path / f"{name}.npz", allow_pickle=False) as weights:
            assert sum(weights[key].size for key in weights) > 1000


def test_interrupt_stops_everything_without_a_traceback(long_demo, tmp_path):
    assert set(workers_of(tmp_path)) == {"w1", "w2"}
    long_demo.send_signal(signal.SIGINT)
    out, err = long_demo.communicate(timeout=20)
    assert long_demo.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err
    assert "stopping all nodes" in err
    assert "failed" not in err
    assert workers_of(tmp_path) == {}


def test_an_out_dir_that_is_a_file_is_one_clear_line(tmp_path):
    path = tmp_path / "taken"
    path.write_text("")
    ran = run_dpwa("demo", "--out-dir", str(path))
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert str(path) in ran.stderr
    assert "expected a folder" in ran.stderr


def test_one_node_is_a_usage_error(tmp_path):
    ran = run_dpwa("demo", "--nodes", "1", "--out-dir", str(tmp_path / "new"))
    assert ran.returncode == 2
    assert "--nodes" in ran.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("missing", ["sklearn", "matplotlib"])
def test_a_missing_library_is_named_with_its_remedy_before_anything_starts(
    monkeypatch, tmp_path, missing
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else name)
    spec = DemoSpec(nodes=2, steps=1, seed=0, out_dir=tmp_path / "new", as_json=False)
    with pytest.raises(UserError, match=r'pip install "dpwa\[demo\]"'):
        run_demo(spec)
    assert not (tmp_path / "new").exists()


def test_a_node_that_fails_is_named_and_fails_the_demo(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("dpwa.demo.run.run_nodes", lambda *_, **__: {"w1": 3, "w2": -9})
    spec = DemoSpec(nodes=2, steps=1, seed=0, out_dir=tmp_path, as_json=True)
    assert run_demo(spec) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "w1 (exit code 3), w2 (exit code -9)" in captured.err
