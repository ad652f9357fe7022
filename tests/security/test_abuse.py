"""Each attack for a moment: no crash, bounded memory and descriptors, and the others are served.

Most run with `./scripts/test -m slow tests/security` only. How much slower the victim trains is
measured in test_abuse_timed.py.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from abuse import PROGRAMS, entries, resident_mb
from support.nodes import config_of, eventually
from support.processes import start

from dpwa import DpwaConnection
from dpwa.config import load_config

SEED = 5
SECONDS = 0.8
ENDLESS_SECONDS = 5.0  # it takes two until it is clear that no end comes
CONNECTIONS = 40
GROWTH_MB = 150  # as measured: below 60, but for the size of one burst of a machine that stalls
# Two connections that may each leave 8 MiB unread, and as much in the kernel; an empty frame takes
# 32 times as much memory as it does on the wire.
EMPTY_FRAMES_MB = 2 * 2 * 8 * 32
SLACK = 60  # descriptors: of connections that came since it was last looked

LIMITS = {"connections": CONNECTIONS, "serving_share": 0.05, "serving_burst_ms": 5}
COUNTED = {
    "half_open": "connections",
    "slow_writers": "connections",
    "endless": "unfinished",
    "endless_empty": "unfinished",
    "status_flood": "over_budget",
    "many_floods": "connections",
    "news_flood": "over_budget",
    "fetch_flood": "over_budget",
    "malformed_flood": "malformed",
    "push_flood": "malformed",  # nobody has registered for tables
}
BY_DEFAULT = ["half_open", "endless", "status_flood", "push_flood", "garbage", "absurd_lengths"]
OTHERS = ["garbage", "interrupted", "absurd_lengths", "slow_readers", "propose_flood"]


def start_attack(attack, port, fingerprint):
    seconds = ENDLESS_SECONDS if attack.startswith("endless") else SECONDS
    command = [sys.executable, str(PROGRAMS / "attackers.py"), attack, port, seconds, SEED]
    return subprocess.Popen(
        [*map(str, command), fingerprint.hex()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def victims_of(attack, tmp_path):
    """Let a program of its own be attacked: what a crash would end is not this process."""
    program = Path(__file__).parent / "programs" / "small_victim.py"
    settings = {"limits": LIMITS, "transport": "tcp", "log_level": "error"}
    path = tmp_path / "nodes.json"
    mapping = config_of(2, **settings)
    path.write_text(json.dumps(mapping))
    process = start(program, path, stdin=subprocess.PIPE)
    return process, load_config(mapping)


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, marks=[] if attack in BY_DEFAULT else [pytest.mark.slow])
        for attack in (*COUNTED, *OTHERS)
    ],
)
def test_an_attack_does_no_harm(attack, tmp_path):
    print(f"seed {SEED}")
    victim, config = victims_of(attack, tmp_path)
    attacker = None
    try:
        assert victim.stdout.readline() == "ready\n"
        with DpwaConnection("w2", config) as honest:
            merged = [0]

            def exchange():
                honest.update_send(np.zeros(125_000), 0.1)
                parameters, _ = honest.update_wait(0.1)
                merged[0] += parameters is not None
                return parameters is not None

            eventually(exchange)
            fingerprint = honest.node._context.pool.layout().fingerprint
            memory, files = resident_mb(victim.pid), entries(victim.pid, "fd")
            port = config.node("w1").port
            merged[0], most_mb, open_files = 0, 0.0, []
            while merged[0] < 3:  # a busy machine may need another turn
                attacker = start_attack(attack, port, fingerprint)
                while attacker.poll() is None:
                    exchange()
                    most_mb = max(most_mb, resident_mb(victim.pid))
                    open_files.append(entries(victim.pid, "fd") - files)
                    time.sleep(0.01)
                output, errors = attacker.communicate()
                assert attacker.returncode == 0, errors
                sent = json.loads(output)
                assert sent["connections"] > 0
            print(sent, merged, most_mb - memory, max(open_files))
            bound_mb = EMPTY_FRAMES_MB if attack == "endless_empty" else GROWTH_MB
            assert most_mb - memory < bound_mb
            # Not the most: many may come between two looks.
            assert np.median(open_files) < CONNECTIONS + SLACK
            eventually(exchange)
        report, errors = victim.communicate("end\n", timeout=60)
        assert (victim.returncode, errors) == (0, "")
        refused = json.loads(report)
        print(refused)
        if attack in COUNTED:
            assert refused[COUNTED[attack]] > 0
        assert refused["forged"] == refused["revoked"] == 0
    finally:
        for process in filter(None, (victim, attacker)):
            process.kill()
            process.communicate()
