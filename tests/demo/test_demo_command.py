from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.launched import dpwa as run_dpwa
from support.launched import forked
from support.nodes import eventually

from dpwa.demo.records import Record
from dpwa.demo.report import consensus_distance, load_weights
from dpwa.demo.run import prepare_folder, run_demo, writing
from dpwa.errors import UserError

DPWA = (sys.executable, "-c", "from dpwa.cli.main import main; main()")


def workers_of(out_dir: Path) -> dict[str, int]:
    """Process ids, by node, of the workers that write into this folder."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if b"--out-dir=" + os.fsencode(out_dir) in command:
            variables = dict(entry.partition(b"=")[::2] for entry in environment)
            found[variables[b"DPWA_NAME"].decode()] = int(process.name)
    return found


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
        eventually(lambda: all(log.exists() and log.stat().st_size for log in logs), 60)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_processes_learn_digits_better_than_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("dpwa.demo.run.run_nodes", forked("demo_worker.py"))
    assert run_demo(2, 150, 0, tmp_path, as_json=True) == 0
    captured = capsys.readouterr()
    assert "Gossip won" in captured.err
    result = json.loads(captured.out)
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert [(node["name"], node["steps"]) for node in result["nodes"]] == [("w1", 150), ("w2", 150)]
    assert min(node["merges"] for node in result["nodes"]) > 20
    assert result["mean_accuracy"] > result["mean_alone_accuracy"] + 0.2
    assert result["consensus_distance"] < 0.05
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupt_is_told_and_goes_on_to_the_caller(monkeypatch, tmp_path, capsys):
    def interrupted(spec, on_line, *, on_exit, on_signal):
        on_signal(signal.SIGINT, spec.names)
        on_exit("w1", 130)
        raise KeyboardInterrupt

    monkeypatch.setattr("dpwa.demo.run.run_nodes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_demo(2, 1, 0, tmp_path, as_json=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "stopping all nodes" in captured.err
    assert "failed" not in captured.err


@pytest.mark.slow
def test_three_processes_learn_digits_better_than_alone(tmp_path):
    options = ("--nodes", "3", "--steps", "600", "--json", "--out-dir", str(tmp_path))
    ran = run_dpwa("demo", *options, env=os.environ, timeout=90)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Gossip won" in ran.stderr  # standard output has the JSON, and nothing else

    result = json.loads(ran.stdout)
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert set(result) == {
        "nodes",
        "mean_accuracy",
        "mean_alone_accuracy",
        "consensus_distance",
        "seconds",
    }
    assert [node["name"] for node in result["nodes"]] == ["w1", "w2", "w3"]
    for node in result["nodes"]:
        assert set(node) == {"name", "steps", "merges", "accuracy", "alone_accuracy"}
        assert node["steps"] == 600
        assert node["merges"] > 20  # each of a version that was not merged before
    assert result["mean_accuracy"] > result["mean_alone_accuracy"] + 0.2
    assert result["consensus_distance"] < 0.05
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert workers_of(tmp_path) == {}

    for name in ("w1", "w2", "w3"):
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        records = [Record.model_validate_json(line) for line in lines]
        assert {record.phase for record in records} == {"alone", "meeting", "gossip", "mixing"}
        with np.load(tmp_path / f"{name}.npz", allow_pickle=False) as weights:
            assert sum(weights[key].size for key in weights) > 1000


@pytest.mark.slow
def test_interrupt_stops_everything_without_a_traceback(long_demo, tmp_path):
    assert set(workers_of(tmp_path)) == {"w1", "w2"}
    long_demo.send_signal(signal.SIGINT)
    out, err = long_demo.communicate(timeout=60)
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


def test_a_wrong_variable_is_one_clear_line_and_starts_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("DPWA_TIMEOUT", "1")
    ran = run_dpwa("demo", "--out-dir", str(tmp_path))
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "DPWA_TIMEOUT: unknown variable" in ran.stderr
    assert not (tmp_path / "w1.jsonl").exists()


@pytest.mark.parametrize("name", ["demo.png", "result.json", "w2.npz"])
def test_a_folder_in_place_of_a_file_is_one_clear_line_and_touches_nothing(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / "w1.jsonl").write_text("of an earlier run")
    with pytest.raises(UserError, match=rf"{name}: expected a file that can be replaced"):
        run_demo(2, 1, 0, tmp_path, as_json=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "w1.jsonl"])


def test_a_disk_that_is_full_at_the_end_is_one_clear_line(tmp_path):
    full = tmp_path / "result.json"
    full.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"result\.json: No space left on device"), writing(full):
        full.write_text("figures")


def test_results_of_an_earlier_run_are_removed_and_nothing_else(tmp_path):
    old = ["demo.png", "result.json", "dpwa.yaml", "w1.jsonl", "w12.npz"]
    others = ["notes.txt", "w1.png", "weights.npz", "w0.npz", "xw1.npz", "demo.png.bak"]
    for name in [*old, *others]:
        (tmp_path / name).touch()
    prepare_folder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_a_link_is_replaced_and_what_it_points_to_is_kept(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "demo.png").symlink_to(tmp_path / "kept")
    prepare_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_module_in_the_users_folder_is_not_imported(monkeypatch, tmp_path):
    for name in ("random", "argparse", "numpy", "dpwa"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    launched = []
    monkeypatch.setattr(
        "dpwa.demo.run.run_nodes", lambda spec, *_, **__: launched.append(spec) or {}
    )
    run_demo(2, 1, 0, tmp_path / "out", as_json=False)
    (launch,) = launched
    ran = subprocess.run([*launch.command, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "folder of logs and weights" in ran.stdout


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999"])
def test_a_seed_out_of_range_is_a_usage_error(seed):
    ran = run_dpwa("demo", "--seed", seed)
    assert ran.returncode == 2
    assert "--seed" in ran.stderr
    assert "Traceback" not in ran.stderr


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
    with pytest.raises(UserError, match=r'install -c constraints\.txt "\.\[demo\]"'):
        run_demo(2, 1, 0, tmp_path / "new", as_json=False)
    assert not (tmp_path / "new").exists()


def test_a_node_that_fails_is_named_and_fails_the_demo(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("dpwa.demo.run.run_nodes", lambda *_, **__: {"w1": 3, "w2": -9})
    assert run_demo(2, 1, 0, tmp_path, as_json=True) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "w1 (exit code 3), w2 (exit code -9)" in captured.err


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["gossip", "alone"])
def test_a_killed_node_is_named_and_the_others_finish_with_a_report(tmp_path, phase):
    process = subprocess.Popen(
        [*DPWA, "demo", "--nodes=3", "--steps=200", "--json", "--out-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "w3.jsonl"
    try:
        eventually(lambda: log.exists() and f'"phase":"{phase}"' in log.read_text(), 60)
        os.kill(workers_of(tmp_path)["w3"], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "w3 has failed (exit code -9)" in err
    assert "These nodes failed: w3 (exit code -9)." in err
    assert "Traceback" not in err
    if phase == "alone":
        assert "waiting for others, at most 15 s" in err
    result = json.loads(out)
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert [(node["name"], node["steps"]) for node in result["nodes"]] == [("w1", 200), ("w2", 200)]
    for mean, figure in (("mean_accuracy", "accuracy"), ("mean_alone_accuracy", "alone_accuracy")):
        assert result[mean] == pytest.approx(sum(node[figure] for node in result["nodes"]) / 2)
    vectors = [load_weights(tmp_path / f"{name}.npz") for name in ("w1", "w2")]
    assert result["consensus_distance"] == pytest.approx(consensus_distance(vectors))
    assert not (tmp_path / "w3.npz").exists()
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert workers_of(tmp_path) == {}
