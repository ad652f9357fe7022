"""Strangers at the authorizer of a node with keys, each kind for a moment: none gets in.

How much slower the victim trains is measured in test_key_attacks_timed.py.
"""

import pytest
from abuse import PROGRAMS, entries
from support.keys import key_folder
from support.nodes import config_of, eventually, has_merged
from support.processes import ended, resident_mb, start

from dpwa import DpwaConnection

SEED = 5
LONGEST_S = 100  # of an attack, which is ended when all has been seen
LIMITS = {"handshake_timeout_s": 0.3}
GROWTH_MB = 50
LEFT_OPEN = 2

COUNTED = {
    "hello_storm": "broken_off",
    "bad_hello_storm": "unknown_key",
    "wrong_keys": "unknown_key",
    "half_handshakes": "broken_off",
}
BY_DEFAULT = ["hello_storm", "wrong_keys"]  # one for each way of being refused


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, marks=[] if attack in BY_DEFAULT else [pytest.mark.slow])
        for attack in COUNTED
    ],
)
def test_a_storm_of_strangers_is_refused_and_counted(attack, tmp_path, caplog):
    print(f"seed {SEED}")
    keys = key_folder(tmp_path / "keys", "w1", "w2")
    settings = {"security": "curve", "keys": str(keys.path), "transport": "tcp"}
    config = config_of(2, **settings, limits=LIMITS)
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        eventually(lambda: has_merged(one, two))
        eventually(lambda: has_merged(two, one))  # so all connections are counted
        pid = one.node.report()["pid"]
        before_mb, files, merged = resident_mb(pid), entries(pid, "fd"), 0

        def has_been_seen():
            refused = one.node.report()["handshakes_refused"]
            return merged > 3 and refused[COUNTED[attack]] > 10

        key = keys.public_key("w1").encode().hex()
        port = config["nodes"][0]["port"]
        attacker = start(PROGRAMS / "key_attackers.py", attack, port, LONGEST_S, SEED, key)
        with ended(attacker):
            while not has_been_seen():
                assert attacker.poll() is None
                merged += has_merged(one, two)
        report = one.node.report()
        print(report["handshakes_refused"], report["connections"], merged)
        eventually(lambda: entries(pid, "fd") <= files + LEFT_OPEN)
        assert report["refused"]["forged"] == report["refused"]["malformed"] == 0
        assert resident_mb(pid) - before_mb < GROWTH_MB
    named = [record for record in caplog.records if "is not allowed (fingerprint" in record.message]
    assert len(named) <= 64


def test_a_peer_that_comes_during_a_storm_gets_in(tmp_path):
    keys = key_folder(tmp_path / "keys", "w1", "w2")
    settings = {"security": "curve", "keys": str(keys.path), "transport": "tcp"}
    config = config_of(2, **settings, limits=LIMITS)
    with DpwaConnection("w1", config) as one:
        key = keys.public_key("w1").encode().hex()
        port = config["nodes"][0]["port"]
        with ended(start(PROGRAMS / "key_attackers.py", "hello_storm", port, LONGEST_S, SEED, key)):
            eventually(lambda: one.node.report()["handshakes_refused"]["broken_off"] > 0)
            with DpwaConnection("w2", config) as two:
                eventually(lambda: has_merged(two, one))
