"""`dpwa bench` as a user runs it."""

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commands import run_dpwa
from support.launched import DPWA, assert_gone, forked, interruptible
from support.nodes import eventually

from dpwa.bench.suites.collectives import COLLECTIVES
from dpwa.bench.suites.plane import PLANE
from dpwa.bench.suites.tables import TABLES, WHOLE

SHARED = {"processes", "repetitions", "machine", "figures", "failed_rounds", "ratios"}


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def long_run():
    """A benchmark that would take minutes, and its workers."""
    with interruptible():
        process = subprocess.Popen(
            [*DPWA, "bench", "plane", "--size-mb=1", "--repetitions=100000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        yield process, eventually(lambda: two_workers(process.pid), 30)
    finally:
        process.kill()
        process.communicate()


def two_workers(pid):
    workers = children_of(pid)
    ready = [w for w in workers if "dpwa.bench" in Path(f"/proc/{w}/cmdline").read_text()]
    return ready if len(ready) == 2 else None


def measured(benchmark, suite, *options):
    """Run a whole benchmark, quickly; return what is its own of the result."""
    for _ in range(4):
        done = run_dpwa("bench", benchmark, "--repetitions", 3, "--json", *options)
        if "rounds merged nothing [DPWA" not in done.stderr:  # the machine is too busy
            break
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["figures"]) == set(suite.titles)
    assert set(result["ratios"]) == {ratio.name for ratio in suite.ratios}
    assert (result["processes"], result["repetitions"]) == (2, 3)
    for figure in result["figures"].values():
        assert 0 < figure["min_ms"] <= figure["median_ms"] <= figure["max_ms"]
    for name in suite.titles:
        assert name in done.stderr
    return {key: value for key, value in result.items() if key not in SHARED}


def test_one_run_of_the_plane_tells_every_figure_and_ratio(monkeypatch):
    monkeypatch.setattr("dpwa.bench.processes.run_nodes", forked("bench_worker.py"))
    assert measured("plane", PLANE, "--size-mb", 1) == {"size_mb": 1, "tensors": 1}


@pytest.mark.slow
def test_one_run_of_collectives_tells_every_figure_and_ratio():
    assert measured("collectives", COLLECTIVES, "--size-mb", 0.1) == {"size_mb": 0.1}


@pytest.mark.slow
def test_one_run_of_tables_tells_every_figure_and_ratio():
    own = measured("tables", TABLES, "--rows", 1000, "--columns", 4, "--processes", 2)
    assert (own["rows"], own["columns"]) == (1000, 4)
    assert set(own["mb_per_s"]) == set(WHOLE)
    assert all(rate > 0 for rate in own["mb_per_s"].values())


@pytest.mark.slow
def test_collectives_of_more_processes_work_as_well():
    done = run_dpwa(
        *("bench", "collectives", "--size-mb", 0.1, "--repetitions", 2, "--processes", 3),
        *("--only", "tcp_all_reduce,shm_all_gather,gloo_all_gather", "--json"),
    )
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["processes"] == 3
    assert set(result["ratios"]) == {"gloo_all_gather / shm_all_gather"}


@pytest.mark.slow
def test_tables_of_more_processes_work_as_well():
    done = run_dpwa(
        *("bench", "tables", "--rows", 1000, "--repetitions", 2, "--processes", 3, "--json"),
        *("--only", "shm_get_rows_alone,tcp_get_all,tcp_add_rows_async,gloo_all_gather"),
    )
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["processes"] == 3
    assert set(result["ratios"]) == {"gloo_all_gather / tcp_get_all"}
    assert set(result["mb_per_s"]) == {"tcp_get_all"}


@pytest.mark.slow
def test_only_what_is_wanted_is_measured_and_people_need_no_json():
    done = run_dpwa(
        "bench", "plane", "--size-mb", 1, "--repetitions", 1, "--only", "lerp, gloo_pair"
    )
    assert done.exit_code == 0
    assert "lerp" in done.stdout
    assert "gloo_pair" in done.stdout
    assert "copy" not in done.stdout


@pytest.mark.slow
def test_more_processes_and_tensors_work_as_well():
    done = run_dpwa(
        *("bench", "plane", "--size-mb", 0.1, "--repetitions", 2, "--processes", 3),
        *("--tensors", 7, "--only", "tcp_round,raw_tcp_round,gloo_pair,gloo_all_reduce", "--json"),
    )
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(done.stdout)["figures"]) == 4


@pytest.mark.parametrize("benchmark", ["plane", "collectives"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--size-mb", "0"),
        ("--size-mb", "many"),
        ("--processes", "1"),
        ("--repetitions", "0"),
        ("--only", "cpoy"),
    ],
)
def test_a_wrong_value_is_a_usage_error(benchmark, option, value):
    assert_usage_error(benchmark, option, value)


@pytest.mark.parametrize(
    ("benchmark", "option", "value"),
    [
        ("plane", "--tensors", "0"),
        ("tables", "--rows", "99"),
        ("tables", "--columns", "0"),
        ("tables", "--only", "copy"),
    ],
)
def test_a_wrong_value_of_one_benchmark_is_a_usage_error_too(benchmark, option, value):
    assert_usage_error(benchmark, option, value)


def assert_usage_error(benchmark, option, value):
    done = run_dpwa("bench", benchmark, option, value)
    assert done.exit_code == 2
    assert option in done.stderr or f"got {value}" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_torch_one_line_says_what_to_do(tmp_path):
    broken = tmp_path / "torch" / "__init__.py"
    broken.parent.mkdir()
    broken.write_text("raise ImportError('there is no torch here')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*DPWA, "bench", "plane", "--size-mb", "0.1", "--repetitions", "1"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dpwa: dpwa bench needs PyTorch")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_behind():
    with long_run() as (process, workers):
        time.sleep(1)  # at any moment of the start
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
        assert_gone(*workers)


def test_a_worker_that_is_killed_ends_the_benchmark_with_a_message():
    with long_run() as (process, workers):
        os.kill(workers[1], signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "failed (exit code -9)" in stderr
        assert_gone(*workers)
