from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import run_dpwa as run_here
from support.launched import dpwa as run_dpwa
from support.launched import forked
from support.nodes import eventually

from dpwa.demo.run import run_demo
from dpwa.errors import UserError
from dpwa.files import writing
from dpwa.observe.run_log_reader import read_run

DPWA = (sys.executable, "-c", "from dpwa.cli.main import main; main()")


def workers_of(out_dir: Path) -> dict[str, int]:
    """Process ids, by node, of the workers of a demo that writes into this folder."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        variables = dict(entry.partition(b"=")[::2] for entry in environment)
        if variables.get(b"DPWA_CONFIG") == os.fsencode(out_dir / "dpwa.yaml"):
            found[variables[b"DPWA_NAME"].decode()] = int(process.name)
    return found


def has_taken_steps(out_dir: Path, name: str, least: int) -> bool:
    """Tell by the run log of a node whether it has taken so many steps with gossip."""
    for log in out_dir.glob(f"{name}-*.jsonl"):
        lines = log.read_text().splitlines()[:-1]  # the last one may be half a line
        if any(json.loads(line).get("steps", -1) >= least for line in lines):
            return True
    return False


@pytest.fixture
def long_demo(tmp_path) -> Iterator[subprocess.Popen[str]]:
    """A demo that would take minutes, once all of its nodes are there."""
    process = subprocess.Popen(
        [*DPWA, "demo", "--nodes", "2", "--steps", "100000", "--out-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: all(has_taken_steps(tmp_path, name, 0) for name in ("w1", "w2")), 60)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_processes_learn_digits_better_than_alone(monkeypatch, tmp_path):
    monkeypatch.setattr("dpwa.demo.run.run_nodes", forked("demo_worker.py"))
    ran = run_here("demo", "--nodes", 2, "--steps", 150, "--out-dir", tmp_path, "--json")
    assert ran.exit_code == 0, ran.stderr
    assert "Gossip won" in ran.stderr
    assert f"dpwa report {tmp_path}" in ran.stderr  # what to do next
    result = json.loads(ran.stdout)
    assert result == json.loads((tmp_path / "result.json").read_text())
    means = {"mean_accuracy", "mean_alone_accuracy"}
    assert set(result) == {"nodes", "consensus_distance", "seconds", *means}
    for node in result["nodes"]:
        assert set(node) == {"name", "steps", "merges", "accuracy", "alone_accuracy"}
    assert [(node["name"], node["steps"]) for node in result["nodes"]] == [("w1", 150), ("w2", 150)]
    assert min(node["merges"] for node in result["nodes"]) > 20
    assert result["mean_accuracy"] > result["mean_alone_accuracy"] + 0.2
    assert result["consensus_distance"] < 0.05
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert set(read_run(tmp_path).nodes) == {"w1", "w2"}


def test_an_interrupt_is_told_and_goes_on_to_the_caller(monkeypatch, tmp_path, capsys):
    def interrupted(spec, on_line, *, on_exit, on_signal):
        on_signal(signal.SIGINT, spec.names)
        on_exit("w1", 130)
        raise KeyboardInterrupt

    monkeypatch.setattr("dpwa.demo.run.run_nodes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_demo(2, 1, 0, tmp_path)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "stopping all nodes" in captured.err
    assert "failed" not in captured.err


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
    assert "expected a file or folder that can be written" in ran.stderr


def test_a_wrong_variable_is_one_clear_line_and_starts_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("DPWA_TIMEOUT", "1")
    ran = run_dpwa("demo", "--out-dir", str(tmp_path))
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "DPWA_TIMEOUT: unknown variable" in ran.stderr
    assert not (tmp_path / "dpwa.yaml").exists() or not list(tmp_path.glob("w1-*.jsonl"))


@pytest.mark.parametrize("name", ["demo.png", "result.json"])
def test_a_folder_in_place_of_a_file_is_one_clear_line_and_starts_nothing(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="expected a file or folder that can be written"):
        run_demo(2, 1, 0, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_disk_that_is_full_at_the_end_is_one_clear_line(tmp_path):
    full = tmp_path / "result.json"
    full.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"result\.json: .*No space left on device"), writing(full):
        full.write_text("figures")


def test_the_result_of_an_earlier_run_is_removed_and_nothing_else(monkeypatch, tmp_path):
    (tmp_path / "kept").write_text("")
    (tmp_path / "result.json").symlink_to(tmp_path / "kept")  # only the link is removed
    (tmp_path / "demo.png").touch()
    monkeypatch.setattr("dpwa.demo.run.run_nodes", lambda *_, **__: {"w1": 1, "w2": 1})
    run_demo(2, 1, 0, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dpwa.yaml", "kept"]


def test_a_module_in_the_users_folder_is_not_imported(monkeypatch, tmp_path):
    for name in ("random", "argparse", "numpy", "dpwa"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    launched = []
    monkeypatch.setattr(
        "dpwa.demo.run.run_nodes", lambda spec, *_, **__: launched.append(spec) or {}
    )
    run_demo(2, 1, 0, tmp_path / "out")
    (launch,) = launched
    ran = subprocess.run([*launch.command, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "training steps in each phase" in ran.stdout


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
    with pytest.raises(UserError, match=r"install -c constraints\.txt '\.\[demo\]'"):
        run_demo(2, 1, 0, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_node_that_fails_is_named_and_fails_the_demo(monkeypatch, tmp_path):
    monkeypatch.setattr("dpwa.demo.run.run_nodes", lambda *_, **__: {"w1": 3, "w2": -9})
    ran = run_here("demo", "--nodes", 2, "--out-dir", tmp_path, "--json")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert "w1 (exit code 3), w2 (exit code -9)" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "least"), [(200, 0), (400, 1)], ids=["alone", "gossip"])
def test_a_killed_node_is_named_and_the_others_finish_with_a_report(tmp_path, steps, least):
    process = subprocess.Popen(
        [*DPWA, "demo", "--nodes=3", f"--steps={steps}", "--json", "--out-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: has_taken_steps(tmp_path, "w3", least), 60)
        os.kill(workers_of(tmp_path)["w3"], signal.SIGKILL)
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "w3 has failed (exit code -9)" in err
    assert "These nodes failed: w3 (exit code -9)." in err
    assert "Traceback" not in err
    result = json.loads(out)
    assert result == json.loads((tmp_path / "result.json").read_text())
    nodes = [(node["name"], node["steps"]) for node in result["nodes"]]
    assert nodes == [("w1", steps), ("w2", steps)]
    for mean, figure in (("mean_accuracy", "accuracy"), ("mean_alone_accuracy", "alone_accuracy")):
        assert result[mean] == pytest.approx(sum(node[figure] for node in result["nodes"]) / 2)
    assert result["consensus_distance"] < 0.05
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert workers_of(tmp_path) == {}
