"""A plan beside a run: two nodes with 100 Mbit/s between them, as `dpwa bench link` measures it."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commands import run_dpwa
from support.times import at_most

from dpwa.testing import Namespaces, namespaces_missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing()),
]

PROGRAM = Path(__file__).parent.parent / "support" / "programs" / "planned_node.py"
RATE_MBIT = 100
PAYLOAD_SHARE = 1448 / 1514  # of a full frame of Ethernet with TCP
ELEMENTS = 1_250_000
STEP_MS = 200
ROUNDS = 15
# The plan knows nothing of requests that queue behind what is sent the other way, nor of merging.
CLOSE = (0.85, 1.2)


def start(host, *command):
    return subprocess.Popen(
        host.command([sys.executable, *map(str, command)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ended(process):
    process.stdin.close()
    process.wait(30)
    process.stdout.close()


@pytest.fixture(scope="module")
def hosts():
    with Namespaces(2, rate_mbit=RATE_MBIT) as made:
        yield made


@pytest.fixture(scope="module")
def link(hosts, tmp_path_factory):
    """The file with what was measured between the hosts."""
    server = start(hosts[1], "-m", "dpwa", "bench", "link", "--serve", "--seconds", "60")
    try:
        assert "serving" in server.stdout.readline()
        client = start(hosts[0], "-m", "dpwa", "bench", "link", hosts[1].address, "--json")
        told, _ = client.communicate(timeout=60)
    finally:
        server.kill()
        ended(server)
    path = tmp_path_factory.mktemp("link") / "link.json"
    path.write_text(told)
    return path


def test_the_bandwidth_is_that_of_the_link(link):
    found = json.loads(link.read_text())
    ideal_s = found["stream_bytes"] * 8e-6 / (RATE_MBIT * PAYLOAD_SHARE)
    stream_s = found["stream_bytes"] * 8e-6 / found["bandwidth_mbps"]
    assert 0.95 * ideal_s < stream_s < at_most(1.05 * ideal_s)
    assert 0 < found["latency_ms"] < 1000 * at_most(0.02)


@pytest.mark.parametrize(
    "settings",
    [{"codec": "none"}, {"codec": "bf16"}, {"codec": "int8"}, {"codec": "none", "fraction": 0.25}],
    ids=str,
)
def test_rounds_take_what_the_plan_says(settings, hosts, link, tmp_path):
    nodes = [
        {"name": f"w{n}", "host": host.address, "port": 45000} for n, host in enumerate(hosts, 1)
    ]
    config = tmp_path / "nodes.yaml"
    common = {"transport": "tcp", "timeout_ms": 20_000, "repeat": "merge", "log_level": "error"}
    config.write_text(json.dumps({"nodes": nodes, **common, **settings}))
    with ExitStack() as stack:
        running = []
        for number, host in enumerate(hosts, 1):
            arguments = (f"w{number}", config, ELEMENTS, STEP_MS, ROUNDS)
            running.append(start(host, PROGRAM, *arguments))
            stack.callback(ended, running[-1])
        told = [json.loads(process.stdout.readline()) for process in running]
    size = ("--parameters", ELEMENTS, "--step-ms", STEP_MS)
    plan = run_dpwa("plan", "-c", config, *size, "--link", link, "--json")
    planned = json.loads(plan.stdout)["present"]
    for measured in told:
        assert measured["merged"] == ROUNDS
        assert measured["bytes"] == pytest.approx(planned["round_bytes"], rel=0.05)
        lowest, highest = (planned["round_s"] * share for share in CLOSE)
        assert lowest < measured["round_s"] < at_most(highest)
