"""Each attack for a moment: no crash, nothing stays behind, and the others are served.

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
from abuse import PROGRAMS, entries
from support.inside import context_of
from support.nodes import config_of, eventually
from support.processes import resident_mb, start

from dpwa import DpwaConnection
from dpwa.config import load_config

SEED = 5
SECONDS, SECONDS_BY_DEFAULT = 0.8, 0.4
LEFT_OPEN = 10  # descriptors, of the honest peer
GROWTH_MB = 150  # as measured: below 60, but for the size of one burst of a machine that stalls

LIMITS = {"serving_share": 0.05, "serving_burst_ms": 5}
COUNTED = {
    "status_flood": "over_budget",
    "many_floods": "over_budget",
    "news_flood": "over_budget",
    "fetch_flood": "over_budget",
    "malformed_flood": "malformed",
    "push_flood": "malformed",  # nobody has registered for tables
    "many_frames": "malformed",
}
STRANGERS = [
    "garbage", "half_open", "interrupted", "absurd_lengths", "slow_writers", "many_frames",
]  # fmt: skip
OTHERS = [
    *(each for each in STRANGERS if each not in COUNTED), "slow_readers", "propose_flood",
    "endless_frames",
]  # fmt: skip
# tests/node/test_garbage.py has garbage in a node of its own process.
BY_DEFAULT = ["half_open", "status_flood"]


def start_attack(attack, port, fingerprint):
    seconds = SECONDS_BY_DEFAULT if attack in BY_DEFAULT else SECONDS
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
            fingerprint = context_of(honest.node).pool.layout().fingerprint
            memory, files = resident_mb(victim.pid), entries(victim.pid, "fd")
            port = config.node("w1").port
            merged[0], most_mb = 0, 0.0
            while merged[0] < 3:  # a busy machine may need another turn
                attacker = start_attack(attack, port, fingerprint)
                while attacker.poll() is None:
                    exchange()
                    most_mb = max(most_mb, resident_mb(victim.pid))
                    time.sleep(0.01)
                output, errors = attacker.communicate()
                assert attacker.returncode == 0, errors
                sent = json.loads(output)
                assert sent["connections"] > 0
            print(sent, merged, most_mb - memory)
            if attack in STRANGERS:  # what others send and is not read yet has no bound
                assert most_mb - memory < GROWTH_MB
            eventually(exchange)
            eventually(lambda: entries(victim.pid, "fd") - files < LEFT_OPEN)
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
