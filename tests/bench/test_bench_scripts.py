"""The scripts in benchmarks/: they explain themselves, and the quick ones run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.launched import assert_gone, interruptible
from support.nodes import eventually
from support.processes import Program, ended
from support.times import at_most

SCRIPTS = Path(__file__).parent.parent.parent / "benchmarks"
SHARED = {"common.py", "measures.py", "namespaces.py", "process_memory.py"}
NAMES = sorted({path.name for path in SCRIPTS.glob("*.py")} - SHARED)
COUNTED = 0.99  # the kernel adds up what threads use, and what was the most, at different times
BETWEEN_NAMESPACES = ("collectives_between_namespaces.py", "thin_link.py")


def run(name, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPTS / name, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
    )


def result_of(name, *arguments):
    """Run a script, and return what it tells."""
    done = run(name, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_scripts_are_here():
    assert len(NAMES) == 20


def run_here(name, *arguments, **environment):
    """Run a script that ends soon; it is forked from a process that has imported dpwa."""
    script = Program([str(SCRIPTS / name), *arguments], **environment)
    with ended(script):
        return script.communicate(timeout=100), script.returncode


@pytest.mark.parametrize("name", NAMES)
def test_a_script_explains_itself(name):
    (told, errors), code = run_here(name, "--help")
    assert (code, errors) == (0, "")
    assert f"usage: {name}" in told


def measured(name, *options):
    """Run a whole benchmark, quickly; return its result."""
    for _ in range(4):
        done = run(name, "--repetitions", "2", "--json", *options)
        if "rounds merged nothing" not in done.stderr:  # the machine is too busy
            break
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for figure in result["figures"].values():
        assert 0 < figure["min_ms"] <= figure["median_ms"] <= figure["max_ms"]
    for each in (*result["figures"], *result["ratios"]):
        assert each in done.stderr
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "figures", "ratios"),
    [
        ("plane.py", ("--size-mb", "1"), 24, 16),
        ("collectives.py", ("--size-mb", "0.1"), 15, 10),
        ("tables.py", ("--rows", "1000", "--columns", "4", "--processes", "2"), 14, 4),
    ],
)
def test_one_run_tells_every_figure_and_ratio(name, options, figures, ratios):
    result = measured(name, *options)
    assert (len(result["figures"]), len(result["ratios"])) == (figures, ratios)
    assert (result["processes"], result["repetitions"]) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["layers", "gpt", "mlp", "tensors"])
def test_averaged_gradients_are_compared_with_those_of_ddp(model):
    told = result_of("gradients.py", "--model", model, "--size-mb", "1", "--repetitions", "2")
    medians = told["medians_ms"]
    assert {*medians} == {"alone", "ddp", "together"}
    assert min(medians.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "figures"),
    [
        (
            "plane.py",
            ("--size-mb=0.1", "--tensors=7", "--only=tcp_round,raw_tcp_round,gloo_pair"),
            {"tcp_round", "raw_tcp_round", "gloo_pair"},
        ),
        (
            "collectives.py",
            ("--size-mb=0.1", "--only=tcp_all_reduce,shm_all_gather,gloo_all_gather"),
            {"tcp_all_reduce", "shm_all_gather", "gloo_all_gather"},
        ),
        (
            "tables.py",
            ("--rows=1000", "--only=shm_get_rows_alone,tcp_get_all,tcp_add_rows_async"),
            {"shm_get_rows_alone", "tcp_get_all", "tcp_add_rows_async"},
        ),
    ],
)
def test_more_processes_measure_what_is_wanted(name, options, figures):
    result = measured(name, "--processes", "3", *options)
    assert result["processes"] == 3
    assert set(result["figures"]) == figures


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("plane.py", "--size-mb", "0"),
        ("plane.py", "--only", "cpoy"),
        ("collectives.py", "--processes", "1"),
        ("tables.py", "--rows", "99"),
        ("tables.py", "--repetitions", "many"),
    ],
)
def test_a_wrong_value_is_a_usage_error(name, option, value):
    (_, errors), code = run_here(name, option, value)
    assert code == 2
    assert option in errors
    assert "Traceback" not in errors


@contextmanager
def long_run():
    """A benchmark that would take minutes, and its two processes."""
    command = [sys.executable, SCRIPTS / "plane.py", "--size-mb=1", "--repetitions=100000"]
    with interruptible():
        script = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def processes():
        children = Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text().split()
        ready = [c for c in children if "plane.py" in Path(f"/proc/{c}/cmdline").read_text()]
        return list(map(int, ready)) if len(ready) == 2 else None

    try:
        yield script, eventually(processes, 30)
    finally:
        script.kill()
        script.communicate()


def test_an_interrupt_leaves_no_process_behind():
    with long_run() as (script, processes):
        time.sleep(0.3)  # at any moment of the start
        script.send_signal(signal.SIGINT)
        script.communicate(timeout=60)
        assert script.returncode == 130
        assert_gone(*processes)


def test_a_process_that_is_killed_ends_the_benchmark_with_a_message():
    with long_run() as (script, processes):
        os.kill(processes[1], signal.SIGKILL)
        _, stderr = script.communicate(timeout=60)
        assert script.returncode == 1
        assert "failed (exit code -9)" in stderr
        assert_gone(*processes)


@pytest.mark.slow
def test_memory_is_told_in_sizes_of_the_model():
    arguments = ("--size-mb", "4", "--rounds", "3", "--transports", "tcp", "--slots", "2")
    (row,) = result_of("memory.py", *arguments)
    assert (row["transport"], row["slots"]) == ("tcp", 2)
    assert row["peak_rss"] >= COUNTED * row["rss"] >= row["pss"] > 1


@pytest.mark.slow
def test_memory_of_an_all_reduce_is_told_in_sizes_of_the_value():
    arguments = ("--size-mb", "4", "--transports", "tcp", "--processes", "2")
    (row,) = result_of("collectives_memory.py", *arguments)
    assert (row["transport"], row["processes"]) == ("tcp", 2)
    assert row["peak_rss"] >= COUNTED * row["rss"] >= row["pss"] > 0.5
    assert row["peak_pss"] > 0.5


@pytest.mark.slow
def test_sharded_models_are_compared_with_whole_ones():
    told = result_of("sharded.py", "--mb", "0.1", "--repetitions", "3")
    assert told["ratio"] > 0


@pytest.mark.slow
def test_many_tensors_are_compared_with_one():
    arguments = ("--tensors", "20", "--tensor-kb", "1", "--repetitions", "3")
    told = result_of("many_tensors.py", *arguments)
    assert set(told["ratios"]) == {"overlapped", "round"}


@pytest.mark.slow
def test_sizes_are_drawn_and_kept(tmp_path):
    chart = tmp_path / "chart.png"
    done = run("sizes.py", "--sizes-mb", "0.1", "--repetitions", "2", "--chart", str(chart))
    assert done.returncode == 0, done.stderr
    assert chart.read_bytes().startswith(b"\x89PNG")
    results = json.loads(chart.with_suffix(".json").read_text())
    assert [result["size_mb"] for result in results] == [0.1]


@pytest.mark.slow
def test_indices_are_handed_out():
    done = run("sampling.py", "--nodes", "2", "--range-size", "256", "--ranges", "16")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"2 processes .* ([\d,]+) indices/s", done.stdout)) == 2


@pytest.mark.slow
def test_training_steps_are_compared():
    told = result_of("training_step.py", "--models", "cnn", "--blocks", "2", "--steps", "3")
    assert set(told["cnn"]) == {"gossip_ms", "alone_ms"}


@pytest.mark.slow
def test_the_page_of_a_dashboard_beside_64_nodes_stays_quick():
    pytest.importorskip("playwright", reason="needs pip install dpwa[e2e]")
    found = result_of("dashboard.py", "--minutes", "0.5")
    assert found["summary"].startswith("64 nodes")
    assert found["longest_task_ms"] < 1000 * at_most(0.2)
    assert found["frames"] > 100
    first, last = found["memory"][0], found["memory"][-1]
    assert last["heap_mb"] < first["heap_mb"] + 2
    assert last["listeners"] == first["listeners"]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces")
def test_a_thin_link_limits_every_codec_and_is_removed():
    figures = result_of("thin_link.py", "--size-mb", "1", "--repetitions", "2")["figures"]
    at_100_mbit_ms = 80  # less what may burst
    assert figures["tcp_one_way"]["min_ms"] > 0.8 * at_100_mbit_ms
    assert_no_namespace_is_left()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces")
def test_collectives_run_between_namespaces_that_are_removed():
    arguments = ("--sizes-mb", "0.1", "--processes", "2", "4", "--repetitions", "2")
    results = result_of("collectives_between_namespaces.py", *arguments)
    assert [result["processes"] for result in results] == [2, 4]
    assert all("gloo_barrier / tcp_barrier" in result["ratios"] for result in results)
    assert_no_namespace_is_left()


@pytest.mark.parametrize("name", BETWEEN_NAMESPACES)
def test_namespaces_without_their_tools_are_a_clear_message(name):
    (_, errors), code = run_here(name, PATH="/nowhere")
    assert code == 2
    assert errors == f"{name}: network namespaces need ip and tc (package iproute2) [DPWA-E234]\n"


def assert_no_namespace_is_left():
    """Those of processes that live are of other tests, which run beside this one."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    makers = re.findall(r"^dpwa-(\d+)-", listed, re.MULTILINE)
    assert all(Path(f"/proc/{process}").exists() for process in makers), listed
