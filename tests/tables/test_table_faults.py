"""Processes that are killed or stopped in the middle of what they do with tables.

Whatever happens to one of them: nobody hangs, no addition is in a table in part, twice, or not at
all when it was acknowledged.
"""

import contextlib
import random
import signal
from dataclasses import dataclass

import pytest
from support.collective_processes import collective_processes
from support.nodes import again_and_again

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
HELD_S = 2.0


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with collective_processes(tmp_path_factory.mktemp("tables"), "tables") as made:
        yield made


def opened(group, replicas, *names):
    for name in names:
        group[name].tell("open", replicas)
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


@dataclass(frozen=True)
class Trouble:
    """What happens in a run.

    Attributes:
        faults: of each victim: its name, the fault point, the n-th time, and the signal.
        count: how many processes there are; there are as many replicas as faults.
    """

    faults: tuple[tuple[str, str, int, str], ...]
    count: int
    transport: str = "auto"

    @classmethod
    def drawn(cls, rng):
        """Draw one fault for three processes, or two for four of them."""
        count, number = rng.choice([(3, 1), (3, 1), (4, 2)])
        victims = rng.sample([f"w{i + 1}" for i in range(count)], number)
        nth, kinds = [1, 1, 2, 5, 10, 20], ["SIGKILL", "SIGSTOP"]
        return cls(
            tuple((v, rng.choice(POINTS), rng.choice(nth), rng.choice(kinds)) for v in victims),
            count,
            rng.choice(["auto", "auto", "tcp"]),
        )


def run(processes, rng, trouble):
    """Let processes work, some of which get a signal; check the tables at the end."""
    settings = {"collective_timeout_s": 20.0, "transport": trouble.transport}
    replicas = len(trouble.faults)
    with processes.group(trouble.count, **settings) as group:
        victims = [fault[0] for fault in trouble.faults]
        opened(group, replicas, *group.names)
        for victim, *fault in trouble.faults:
            group[victim].arm(*fault)
        for name in group.names:
            group[name].tell("work", ROUNDS, rng.randrange(2**32))
        with woken(group, victims):
            answers = {name: group[name].answers() for name in group.names}
            remain = {victim for victim in victims if is_disarmed(group[victim])}
        # Only the last answer of all is of both tables.
        ended = {n: len(a[-1].get("acknowledged", ())) == 2 for n, a in answers.items() if a}
        assert all(ended.get(name) for name in group.names if name not in victims)
        accounts = {n: [Account(a, is_whole=ended.get(n, False))] for n, a in answers.items()}
        for victim in victims:
            if not (victim in remain and ended.get(victim)):
                group.start(victim)
                opened(group, replicas, victim)
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
    assert [group[name].answer() for name in group.names] == [{"passed": True}] * len(group.names)
    for name in group.names:
        group[name].tell("values")
    found = [group[name].answer() for name in group.names]
    assert all(one == found[0] for one in found), found
    return found[0]


@contextlib.contextmanager
def woken(group, victims):
    """Wake who has stopped, again and again: one may reach its fault point after another woke."""

    def wake():
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                group[victim].signal(signal.SIGCONT)

    with again_and_again(wake, STOPPED_FOR_S):
        yield


def check(found, accounts):
    """Compare what is in the tables with what each process, in all its lives, has added."""
    for table, (lowest, highest) in found.items():
        for rank, lives in enumerate(accounts):
            least = sum(life.acknowledged[table] for life in lives)
            most = sum(
                (life.acknowledged if life.is_whole else life.adding)[table] for life in lives
            )
            assert least <= lowest[rank] <= highest[rank] <= most, (table, rank, least, most, found)


def added(group, names, counts):
    """Let processes add once to both tables; note what was acknowledged."""
    for name in names:
        group[name].tell("add")
    for name in names:
        assert group[name].answer() == {"added": True}, name
        counts[group.names.index(name)] += 1


def assert_holds(group, names, counts):
    """Check that these all read just what was acknowledged."""
    for name in names:
        group[name].tell("values")
    for name in names:
        found = group[name].answer()
        assert found == {"small": [counts, counts], "large": [counts, counts]}, (name, found)


def test_a_copy_of_who_holds_the_gil_while_another_dies_is_not_lost(processes):
    with processes.group(3) as group:
        names, counts = group.names, [0, 0, 0]
        for name in names:
            group[name].tell("stall", 5.0)
            group[name].answer()
        opened(group, 1, *names)
        added(group, names, counts)
        group["w2"].tell("hold", HELD_S)
        assert group["w2"].answer() == {"holds": True}
        group["w3"].signal(signal.SIGKILL)
        assert group["w2"].answer() == {"held": True}
        added(group, ["w1", "w2"], counts)
        assert_holds(group, ["w1", "w2"], counts)


def stopped_while_another_dies_in_the_middle_of_copying(processes, stalled_s):
    """w2 is left out, w1 dies as it copies what w2 held, and w2 goes on."""
    with processes.group(3, collective_timeout_s=20.0) as group:
        names, counts = group.names, [0, 0, 0]
        for name in names:
            group[name].tell("stall", stalled_s)
            group[name].answer()
        opened(group, 1, *names)
        added(group, names, counts)
        group["w1"].arm("table.state.sent", 1, "SIGKILL")
        group["w2"].signal(signal.SIGSTOP)
        group["w3"].tell("meet", "w2", "w3")
        group["w1"].wait_until_gone()
        group["w2"].signal(signal.SIGCONT)
        assert group["w3"].answer() == {"members": ["w2", "w3"]}
        added(group, ["w2", "w3"], counts)
        assert_holds(group, ["w2", "w3"], counts)


def test_a_copy_of_who_was_left_out_stands_in_if_another_dies_before_it_has_copied_its_own(
    processes,
):
    stopped_while_another_dies_in_the_middle_of_copying(processes, 1.0)


@pytest.mark.slow
def test_the_same_with_the_stalled_time_of_users(processes):
    stopped_while_another_dies_in_the_middle_of_copying(processes, 5.0)


def seeded(processes, seed):
    rng = random.Random(seed)
    trouble = Trouble.drawn(rng)
    print(f"seed {seed}: {trouble}")
    run(processes, rng, trouble)


@pytest.mark.parametrize("seed", range(2))
def test_whoever_dies_or_stops_takes_nothing_along(processes, seed):
    seeded(processes, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, *range(100, 200)])
def test_whoever_dies_or_stops_takes_nothing_along_in_many_runs(processes, seed):
    seeded(processes, seed)
