"""Workers of a DataLoader beside a node; a forked one that holds it is in test_forked_children."""

import subprocess
import sys

import pytest
from support.ports import free_ports
from support.processes import PROGRAMS
from support.times import PROCESS_HANGS_AFTER_S


def run(way):
    program = PROGRAMS / "loader_workers.py"
    return subprocess.run(
        [sys.executable, "-W", "ignore", program, way, *map(str, free_ports(2))],
        capture_output=True, text=True, timeout=PROCESS_HANGS_AFTER_S, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_load_while_gossip_goes_on(way):
    done = run(way)
    assert done.returncode == 0, done.stderr
    total, merges = map(float, done.stdout.split())
    assert total == 2 * sum(range(200))
    assert merges > 10


@pytest.mark.slow
def test_a_script_that_spawned_workers_import_needs_its_guard():
    done = run("unguarded")
    assert done.returncode != 0
    assert (
        "a spawned worker process imports this script, and would start a second node" in done.stderr
    )
    assert 'under `if __name__ == "__main__":`' in done.stderr
