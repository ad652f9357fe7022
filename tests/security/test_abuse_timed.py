"""How much slower a node trains while it is attacked. Takes minutes, and wants a quiet machine:

    ./scripts/test -m slow tests/security -s

The victim trains a small network, in steps of about 5 ms, and gossips over TCP with an honest peer.
Two cores have to do for both and the attacker, so what the attacker takes of them must not count.
Therefore each attack is compared with a process that burns as much CPU time as the attacker did,
and leaves the victim alone; the ratio is that of the medians of the step times. Every turn has a
victim of its own, and the attack comes last, so that nothing that it leaves behind slows what it is
compared with. The quiet time before is printed, too.
"""

from functools import partial

import numpy as np
import pytest
from abuse import field

SEED = 1
WINDOW_S = 4
TURNS = 3
MAX_RATIO = 1.2
MIN_MERGES = 0.5  # of those beside a process that burns as much
MAX_GROWTH_MB = 300
MAX_DESCRIPTORS = 500 + 100  # what the attackers hold, and those of a node

ATTACKS = [
    "garbage", "half_open", "interrupted", "absurd_lengths", "endless_frames", "slow_writers",
    "slow_readers",
]  # fmt: skip
# Without keys nothing bounds what is sent: docs/security.md, "What stays open". ZeroMQ's thread
# takes it all in, in memory and with a core of its own.
FLOODS = [
    "status_flood", "many_floods", "news_flood", "malformed_flood", "push_flood", "fetch_flood",
    "propose_flood", "many_frames",
]  # fmt: skip


def shown(label, figures):
    print(
        f"{label:16} {figures.median_ms:7.2f} ms {figures.p90_ms:7.2f} ms "
        f"{figures.merges_per_s:5.1f} merges/s {figures.rss_mb:6.0f} MB "
        f"{figures.descriptors:4d} fds {figures.threads:3d} threads {figures.cpu_share:.2f} cores"
    )


def ratio(attacked, burnt, what):
    return np.median([getattr(f, what) for f in attacked]) / np.median(
        [getattr(f, what) for f in burnt]
    )


def assert_training_goes_on(field_of, attack):
    """Let an attack take turns with a process that burns as much; it must not cost more."""
    found, quiet, attacked = compared(field_of, attack)
    assert found < MAX_RATIO
    most_mb = max(figures.rss_mb for figures in quiet) + MAX_GROWTH_MB
    is_bounded = max(figures.rss_mb for figures in attacked) < most_mb
    if attack == "endless_frames" and not is_bounded:  # all else must hold
        pytest.xfail("libzmq hands over whole messages, and no option bounds their frames")
    assert is_bounded


def compared(field_of, attack):
    """Print how an attack compares with a process that burns as much; training goes on at least.

    Returns:
        The ratio of the medians of a step, the figures of quiet times, and those under attack.
    """
    print(f"\nseed {SEED}")
    with field_of() as scene:  # to learn how much it burns
        share = scene.attacked(attack, WINDOW_S / 2, SEED).attacker["cpu_share"]
    quiet, burnt, attacked = [], [], []
    for turn in range(1, TURNS + 1):
        with field_of() as scene:
            quiet.append(scene.watched(WINDOW_S / 2))
            shown("quiet", quiet[-1])
            burnt.append(scene.attacked(f"burn:{min(1.0, share):.3f}", WINDOW_S))
            shown("as much CPU", burnt[-1])
            attacked.append(scene.attacked(attack, WINDOW_S, SEED + turn))
            shown(attack, attacked[-1])
            share = attacked[-1].attacker["cpu_share"]
            refused = scene.victim.lines[-1]["refused"]
    found = ratio(attacked, burnt, "median_ms")
    print(f"{attack}: ratio {found:.2f}, p90 {ratio(attacked, burnt, 'p90_ms'):.2f}, ", end="")
    print(f"to quiet {ratio(attacked, quiet, 'median_ms'):.2f}")
    print(refused, attacked[-1].attacker)
    assert max(figures.descriptors for figures in attacked) < MAX_DESCRIPTORS
    assert ratio(attacked, burnt, "merges_per_s") > MIN_MERGES
    return found, quiet, attacked


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("attack", ATTACKS)
def test_training_goes_on_under_attack(attack, tmp_path):
    assert_training_goes_on(partial(field, tmp_path), attack)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flood", FLOODS)
def test_training_goes_on_more_slowly_in_a_flood(flood, tmp_path):
    settings = {"algorithm": "symmetric"} if flood == "propose_flood" else {}
    compared(partial(field, tmp_path, **settings), flood)
