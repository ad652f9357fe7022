"""Transactions between real processes, some of which are stopped or killed in the middle."""

import json
import signal
import time
from contextlib import ExitStack, contextmanager

import pytest
from support.nodes import config_of, eventually
from support.shared_memory import told

UNIT = 2**40
TIMEOUT_MS = 1000
LONGEST_S = (TIMEOUT_MS + 50) / 1000
VALUES = (1.0, 2.0, 3.0, 4.0)


class Process:
    """A node of its own process."""

    def __init__(self, obedient):
        self._obedient = obedient

    def begin(self, *command):
        """Give a command without waiting for the answer."""
        stdin = self._obedient.process.stdin
        stdin.write(" ".join(map(str, command)) + "\n")
        stdin.flush()

    def answer(self):
        """Return the answer."""
        line = self._obedient.process.stdout.readline()
        assert line, self._obedient.process.stderr.read()
        return json.loads(line)

    def tell(self, *command):
        """Give a command; return the answer."""
        return self._obedient.tell(*command)

    def signal(self, number):
        self._obedient.process.send_signal(number)

    def kill(self):
        self._obedient.kill()


@contextmanager
def processes(tmp_path, algorithm, transport="auto", values=VALUES, size=1000, **settings):
    """One process for each value, which it keeps even if others have gossiped before it begins."""
    path = tmp_path / "nodes.yaml"
    settings = {"initial_state": "own", **settings}
    config = config_of(
        len(values), algorithm=algorithm, transport=transport, timeout_ms=TIMEOUT_MS, **settings
    )
    path.write_text(json.dumps(config))
    with ExitStack() as stack:
        yield [
            Process(stack.enter_context(told("told_member.py", f"w{index}", path, value, size)))
            for index, value in enumerate(values, start=1)
        ]


def run(nodes, seconds):
    """Let all gossip at once; check that no round was longer than it may be."""
    for node in nodes:
        node.begin("run", seconds)
    ended = [node.answer() for node in nodes]
    assert max(longest_s for longest_s, _ in ended) <= LONGEST_S, ended
    return [merges for _, merges in ended]


def settle(nodes):
    eventually(lambda: min(node.tell("settle") for node in nodes), timeout_s=20.0)


def states(nodes):
    """Return the value of each node, having checked that all of its values are the same."""
    told_of = [node.tell("state") for node in nodes]
    for lowest, highest, _ in told_of:
        assert lowest == highest, "a part of a vector was merged"
    return [lowest for lowest, _, _ in told_of], [report for _, _, report in told_of]


def states_after_a_stop(nodes):
    """The states, after the last of nodes that run has stood still while the others went on."""
    *others, stopped = nodes
    time.sleep(0.3)
    stopped.signal(signal.SIGSTOP)
    longest_s = max(node.answer()[0] for node in others)
    assert longest_s <= LONGEST_S
    assert min(run(others, 2.5)) > 3  # once flow control has learnt whom not to ask
    stopped.signal(signal.SIGCONT)
    stopped.answer()
    settle(nodes)
    return states(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_exchanges_of_processes_keep_the_sum(tmp_path, transport):
    with processes(tmp_path, "symmetric", transport) as nodes:
        run(nodes, 0.3)  # to find each other
        run(nodes, 1.0)
        settle(nodes)
        values, reports = states(nodes)
        assert sum(values) == pytest.approx(sum(VALUES), rel=1e-12)
        assert min(report["transactions"]["committed"] for report in reports) > 3


@pytest.mark.slow
def test_a_partner_that_is_killed_is_missed_by_nobody(tmp_path):
    with processes(tmp_path, "symmetric") as nodes:
        *others, victim = nodes
        run(nodes, 0.5)
        victim.begin("run", 60)
        for node in others:
            node.begin("run", 1.5)
        time.sleep(0.5)
        victim.kill()
        longest_s = max(node.answer()[0] for node in others)
        assert longest_s <= LONGEST_S
        before = [report["version"] for report in states(others)[1]]
        assert min(run(others, 2.5)) > 3  # once flow control has learnt whom not to ask
        for report, version in zip(states(others)[1], before, strict=True):
            assert report["version"] > version + 10
            assert report["memory"]["slots"] + report["memory"]["lost_slots"] <= 6


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_partner_that_is_stopped_for_a_while_neither_holds_up_nor_changes_the_sum(
    tmp_path, transport
):
    with processes(tmp_path, "symmetric", transport) as nodes:
        *others, stopped = nodes
        run(nodes, 0.5)
        stopped.begin("run", 0.1)
        for node in others:
            node.begin("run", 2.0)
        stopped.answer()
        stopped.begin("run", 3.0)
        values, reports = states_after_a_stop(nodes)
        assert sum(values) == pytest.approx(sum(VALUES), rel=1e-12)
        assert not any(
            r["transactions"]["unresolved"] + r["transactions"]["given_up"] for r in reports
        )


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_mass_survives_a_process_that_is_stopped_for_a_while(tmp_path, transport):
    with processes(tmp_path, "push_sum", transport, push_sum={"probability": 1.0}) as nodes:
        *others, stopped = nodes
        run(nodes, 0.5)
        stopped.begin("run", 3.0)
        for node in others:
            node.begin("run", 2.0)
        values, reports = states_after_a_stop(nodes)
        assert sum(report["transactions"]["units"] for report in reports) == 4 * UNIT
        assert not any(report["transactions"]["units_in_flight"] for report in reports)
        weighted = [
            value * report["transactions"]["units"] / UNIT
            for value, report in zip(values, reports, strict=True)
        ]
        assert sum(weighted) == pytest.approx(sum(VALUES), rel=1e-9)


@pytest.mark.slow
def test_a_process_that_closes_takes_only_its_own_mass_along(tmp_path):
    with processes(tmp_path, "push_sum", push_sum={"probability": 1.0}) as nodes:
        *others, leaver = nodes
        run(nodes, 0.7)
        settle(nodes)
        its_own = states([leaver])[1][0]["transactions"]["units"]
        leaver.tell("close")
        run(others, 0.7)
        settle(others)
        _, reports = states(others)
        assert sum(report["transactions"]["units"] for report in reports) + its_own == 4 * UNIT
