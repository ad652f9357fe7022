"""Campaigns in virtual time: a few seeds of each; `./scripts/test --long virtual` plays more."""

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import virtual

PLAYED_ELSEWHERE = """
import sys, test_virtual, virtual
print(test_virtual.digest_of("paced", 91))
sys.argv[1:] = ["leader", "--seeds", "0", "-v"]
sys.exit(virtual.main())
"""
FOUND = [
    ("tables", 121),  # what could not be taken yet was asked for again with every message
    ("tables", 701),  # who was cut off as all began went on alone, and was not told
    ("paced", 13),  # two views in step each took themselves for the busier one, for good
    ("paced", 187),  # two that had begun alone let in each other, and had two states
]
FOUND_AS_WELL = [  # slow
    ("churn", 566),  # whose donor died as another node had just got its state began without one
    ("tables", 304),  # who was cut off at the start heard of it at its time-out only
    ("tables", 498),  # who was killed as all began was waited for until the time-out
    ("paced", 195),  # who was left by all others, who then died, was never in pace again
    ("paced", 403),  # on a slow network members took each other for silent
    ("paced", 91),  # who had trained alone gave others no time to get its state
    ("paced", 627),  # with delays that vary, rounds were broken off for minutes
    ("partition", 592),  # with steps of one length, pairs stayed the same for good
]
MAX_MESSAGES = 10_000


def digest_of(name, seed):
    """Play a seed; return a digest of every byte that its nodes have sent, and when."""
    case, digest = virtual.CASES[name](seed), hashlib.sha256()

    def tap(time_s, sender, to, frames):
        digest.update(f"{time_s!r} {sender} {to}".encode())
        for frame in frames:
            digest.update(frame)

    case.tcp.tap = tap
    with virtual.silence():
        assert case.play() == []
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("name", "seed"),
    [*FOUND, *(pytest.param(*each, marks=pytest.mark.slow) for each in FOUND_AS_WELL)],
)
def test_what_was_found_once_does_not_come_back(name, seed):
    case, sent = virtual.CASES[name](seed), itertools.count(1)

    def tap(*_):
        assert next(sent) <= MAX_MESSAGES, "a storm of messages"

    case.tcp.tap = tap
    with virtual.silence():
        assert case.play() == []


@pytest.mark.slow
def test_whatever_happens_to_members_all_views_are_equal_and_true():
    assert virtual.campaign("members", range(10, 13), processes=1) == []


@pytest.mark.parametrize("name", virtual.CASES)
def test_no_promise_is_broken(name):
    assert virtual.play(name, 5).broken == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "leader" else pytest.mark.slow)
        for name in virtual.CASES
    ],
)
def test_a_seed_is_the_same_run_to_the_byte_whatever_ran_before(name):
    assert digest_of(name, 5) == digest_of(name, 5)


def test_a_seed_is_the_same_run_in_another_process_which_may_log_what_its_nodes_do():
    played = subprocess.run(
        [sys.executable, "-c", PLAYED_ELSEWHERE],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    digest, log = played.stdout.split("\n", 1)
    assert digest == digest_of("paced", 91)
    assert " is killed" in log
    assert "listening on tcp://10.0.0.0:7000" in log


def test_a_broken_promise_is_told_with_its_seed_and_the_command_that_plays_it_again(
    capsys, monkeypatch
):
    monkeypatch.setattr("cases.churn.SEEN_WITHIN_S", 0.1)
    (failed,) = virtual.campaign("churn", range(3, 4), processes=1)
    assert "have not seen it" in failed.broken[0]
    told = capsys.readouterr().out
    assert "python tests/campaigns/virtual.py churn --seeds 3 -v" in told
    assert "churn: 0 of 1 seeds are right" in told
