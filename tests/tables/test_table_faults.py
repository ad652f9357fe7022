"""Processes that are killed or stopped in the middle of what they do with tables.

Whatever happens to one of them: nobody hangs, no addition is in a table in part, twice, or not at
all when it was acknowledged.
"""

import contextlib
import random
import signal
import threading

import pytest
from support.collective_processes import collective_processes

POINTS = [
    "table.add.sent",
    "table.add.applied",
    "table.add.forwarded",
    "table.add.replicated",
    "table.add.acknowledged",
    "table.get.asked",
    "table.get.answered",
    "table.state.sent",
    "table.state.taken",
    "table.holdings.told",
]
ROUNDS = 30
STOPPED_FOR_S = 2.5


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with collective_processes(tmp_path_factory.mktemp("tables"), "table_members.py") as made:
        yield made


def opened(group, *names):
    for name in names:
        group[name].tell("open")
    for name in names:
        answer = group[name].answer()
        assert "opened" in answer, (name, answer)


class Account:
    """What one process has said of its additions, by table."""

    def __init__(self, answers, is_whole):
        self.adding = {"small": 0, "large": 0}
        self.acknowledged = {"small": 0, "large": 0}
        self.is_whole = is_whole
        for answer in answers:
            assert "error" not in answer, answer
            if "adding" in answer:
                self.adding[answer["adding"]] += 1
            self.acknowledged.update(answer.get("acknowledged", {}))


def run(processes, rng, point, nth, kind):
    """Let three processes work, one of which gets a signal; check the tables at the end."""
    with processes.group(3, collective_timeout_s=20.0) as group:
        victim = rng.choice(group.names)
        opened(group, *group.names)
        group[victim].arm(point, nth, kind)
        for name in group.names:
            group[name].tell("work", ROUNDS, rng.randrange(2**32))
        waker = threading.Timer(STOPPED_FOR_S, lambda: wake(group[victim]))
        if kind == "SIGSTOP":
            waker.start()
        answers = {name: group[name].answers() for name in group.names}
        waker.cancel()
        wake(group[victim])
        has_ended = bool(answers[victim]) and "large" in answers[victim][-1].get("acknowledged", {})
        accounts = {n: [Account(a, n != victim or has_ended)] for n, a in answers.items()}
        if not (has_ended and is_disarmed(group[victim])):
            group.start(victim)
            opened(group, victim)
            group[victim].tell("work", 5, rng.randrange(2**32))
            accounts[victim].append(Account(group[victim].answers(), is_whole=True))
        check(values_of(group), [accounts[name] for name in group.names])


def is_disarmed(process):
    """Take the fault away; return whether the process is still there."""
    try:
        process.arm("nowhere", 1, "SIGKILL")
    except (BrokenPipeError, AssertionError):
        return False
    return True


def values_of(group):
    """Return what all processes read after a barrier: the same."""
    for name in group.names:
        group[name].tell("barrier")
    assert [group[name].answer() for name in group.names] == [{"passed": True}] * 3
    for name in group.names:
        group[name].tell("values")
    found = [group[name].answer() for name in group.names]
    assert all(one == found[0] for one in found), found
    return found[0]


def wake(process):
    with contextlib.suppress(ProcessLookupError):
        process.signal(signal.SIGCONT)


def check(found, accounts):
    """Compare what is in the tables with what each process, in all its lives, has added."""
    for table, (lowest, highest) in found.items():
        for rank, lives in enumerate(accounts):
            least = sum(life.acknowledged[table] for life in lives)
            most = sum(
                (life.acknowledged if life.is_whole else life.adding)[table] for life in lives
            )
            assert least <= lowest[rank] <= highest[rank] <= most, (table, rank, least, most, found)


def seeded(processes, seed):
    rng = random.Random(seed)
    point, kind = rng.choice(POINTS), rng.choice(["SIGKILL", "SIGSTOP"])
    nth = rng.choice([1, 1, 2, 5, 10, 20])
    print(f"seed {seed}: {kind} at {point}, {nth}")
    run(processes, rng, point, nth, kind)


@pytest.mark.parametrize("seed", range(4))
def test_whoever_dies_or_stops_takes_nothing_along(processes, seed):
    seeded(processes, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_whoever_dies_or_stops_takes_nothing_along_in_many_runs(processes, seed):
    seeded(processes, seed)
