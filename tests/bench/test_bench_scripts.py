"""The scripts in benchmarks/: they explain themselves, and the quick ones run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import ended, start
from support.times import at_most

SCRIPTS = Path(__file__).parent.parent.parent / "benchmarks"
SHARED = {"common.py", "namespaces.py", "process_memory.py"}
NAMES = sorted({path.name for path in SCRIPTS.glob("*.py")} - SHARED)
COUNTED = 0.99  # the kernel adds up what threads use, and what was the most, at different times
BETWEEN_NAMESPACES = ("collectives_between_namespaces.py", "thin_link.py")


def run(name, *arguments, **environment):
    return subprocess.run(
        [sys.executable, SCRIPTS / name, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=100,
    )


def test_all_scripts_are_here():
    assert len(NAMES) == 15


@pytest.mark.parametrize("name", NAMES)
def test_a_script_explains_itself(name):
    script = start(SCRIPTS / name, "--help")
    with ended(script):
        told, errors = script.communicate(timeout=100)
    assert (script.returncode, errors) == (0, "")
    assert f"usage: {name}" in told


@pytest.mark.slow
def test_memory_is_told_in_sizes_of_the_model():
    arguments = ("--size-mb", "4", "--rounds", "3", "--transports", "tcp", "--slots", "2")
    done = run("memory.py", *arguments)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["transport"], row["slots"]) == ("tcp", 2)
    assert row["peak_rss"] >= COUNTED * row["rss"] >= row["pss"] > 1


@pytest.mark.slow
def test_memory_of_an_all_reduce_is_told_in_sizes_of_the_value():
    arguments = ("--size-mb", "4", "--transports", "tcp", "--processes", "2")
    done = run("collectives_memory.py", *arguments)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["transport"], row["processes"]) == ("tcp", 2)
    assert row["peak_rss"] >= COUNTED * row["rss"] >= row["pss"] > 0.5
    assert row["peak_pss"] > 0.5


@pytest.mark.slow
def test_sharded_models_are_compared_with_whole_ones():
    done = run("sharded.py", "--mb", "0.1", "--repetitions", "3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ratio"] > 0


@pytest.mark.slow
def test_many_tensors_are_compared_with_one():
    arguments = ("--tensors", "20", "--tensor-kb", "1", "--repetitions", "3")
    done = run("many_tensors.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["ratios"]) == {"overlapped", "round"}


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
    done = run("training_step.py", "--models", "cnn", "--blocks", "2", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["cnn"]) == {"gossip_ms", "alone_ms"}


@pytest.mark.slow
def test_the_page_of_a_dashboard_beside_64_nodes_stays_quick():
    pytest.importorskip("playwright", reason="needs pip install dpwa[e2e]")
    done = run("dashboard.py", "--minutes", "0.5")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["summary"].startswith("64 nodes")
    assert found["longest_task_ms"] < 1000 * at_most(0.2)
    assert found["frames"] > 100
    first, last = found["memory"][0], found["memory"][-1]
    assert last["heap_mb"] < first["heap_mb"] + 2
    assert last["listeners"] == first["listeners"]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces")
def test_a_thin_link_limits_every_codec_and_is_removed():
    done = run("thin_link.py", "--size-mb", "1", "--repetitions", "2")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    at_100_mbit_ms = 80  # less what may burst
    assert figures["tcp_one_way"]["min_ms"] > 0.8 * at_100_mbit_ms
    assert_no_namespace_is_left()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces")
def test_collectives_run_between_namespaces_that_are_removed():
    arguments = ("--sizes-mb", "0.1", "--processes", "2", "4", "--repetitions", "2")
    done = run("collectives_between_namespaces.py", *arguments)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [result["processes"] for result in results] == [2, 4]
    assert all("gloo_barrier / tcp_barrier" in result["ratios"] for result in results)
    assert_no_namespace_is_left()


@pytest.mark.parametrize("name", BETWEEN_NAMESPACES)
def test_namespaces_without_their_tools_are_a_clear_message(name):
    done = run(name, PATH="/nowhere")
    assert done.returncode == 2
    assert done.stderr == f"{name}: this needs ip and tc (package iproute2) [DPWA-E234]\n"


def assert_no_namespace_is_left():
    """Those of processes that live are of other tests, which run beside this one."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    makers = re.findall(r"^dpwa-(\d+)-", listed, re.MULTILINE)
    assert all(Path(f"/proc/{process}").exists() for process in makers), listed
