"""Processes that are killed or stopped in the middle of what they do with tables.

Whatever happens to one of them: nobody hangs, no addition is in a table in part, twice, or not at
all when it was acknowledged.
"""

import random
import signal
import threading
import time

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
        assert "opened" in group[name].answer(), name


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
        names = group.names
        victim = rng.choice(names)
        opened(group, *names)
        group[victim].arm(point, nth, kind)
        for name in names:
            group[name].tell("work", ROUNDS, rng.randrange(2**32))
        waker = threading.Timer(STOPPED_FOR_S, lambda: wake(group[victim]))
        if kind == "SIGSTOP":
            waker.start()
        answers = {name: group[name].answers() for name in names}
        waker.cancel()
        wake(group[victim])
        has_ended = "acknowledged" in answers[victim][-1] if answers[victim] else False
        accounts = {n: [Account(a, n != victim or has_ended)] for n, a in answers.items()}
        if kind == "SIGKILL" and not has_ended:
            group.start(victim)
            opened(group, victim)
            group[victim].tell("work", 5, rng.randrange(2**32))
            accounts[victim].append(Account(group[victim].answers(), True))
        elif kind == "SIGKILL":
            pass
        for name in names:
            group[name].tell("barrier")
        for name in names:
            assert group[name].answer() == {"passed": True}, name
        found = []
        for name in names:
            group[name].tell("values")
            found.append(group[name].answer())
        assert all(one == found[0] for one in found), found
        check(found[0], [accounts[name] for name in names])
        return has_ended


def wake(process):
    try:
        process.signal(signal.SIGCONT)
    except ProcessLookupError:
        pass


def check(found, accounts):
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
    start = time.monotonic()
    try:
        return run(processes, rng, point, nth, kind)
    finally:
        print(f"   took {time.monotonic() - start:.1f} s")


@pytest.mark.parametrize("seed", range(4))
def test_whoever_dies_or_stops_takes_nothing_along(processes, seed):
    seeded(processes, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_whoever_dies_or_stops_takes_nothing_along_in_many_runs(processes, seed):
    seeded(processes, seed)
