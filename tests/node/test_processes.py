"""Real training processes that are started, stopped, killed and started again."""

import json
import signal
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest
from support.nodes import config_of, eventually, status_of
from support.ports import free_ports
from support.processes import ended, start
from support.shared_memory import told
from support.times import at_most

from dpwa import DpwaConnection

TIMEOUT_MS = 1000


@pytest.fixture
def config(tmp_path):
    """The original form of the configuration, a list of single-key maps, of four nodes."""
    nodes = "\n".join(
        f"  - {{name: w{index}, host: localhost, port: {port}}}"
        for index, port in enumerate(free_ports(4), start=1)
    )
    path = tmp_path / "nodes.yaml"
    path.write_text(
        f"- nodes:\n{nodes}\n"
        "- fetch_probability: 1\n"
        f"- timeout_ms: {TIMEOUT_MS}\n"
        "- interpolation: constant\n"
        "- divergence_threshold: 0.0\n"
        "- constant: {value: 0.5}\n"
        "- clock: 0\n"
        "- loss: 0\n"
    )
    return path


class Trainer:
    """A training process whose rounds are read as they come."""

    def __init__(self, config, name):
        self.name = name
        self.process = start("train.py", config, name, 0.005)
        self.rounds = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.rounds.append(json.loads(line))

    def finish(self, timeout_s=60):
        """Wait for its end; return its rounds, having checked that it ended well."""
        code = self.process.wait(timeout_s)
        self._reader.join()
        errors = self.process.stderr.read()
        assert code == 0, errors
        assert "Traceback" not in errors
        return self.rounds

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def reap(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()
        self.process.stdout.close()


@pytest.fixture
def trainers():
    started = []

    def starts(config, name):
        trainer = Trainer(config, name)
        started.append(trainer)
        return trainer

    yield starts
    for trainer in started:
        trainer.reap()


def merged(line):
    return line["peer"] is not None


def assert_waits_are_bounded(rounds):
    assert max(line["wait_s"] for line in rounds) <= at_most((TIMEOUT_MS + 50) / 1000)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_original_loop_runs_unmodified_in_several_processes(config, trainers, count):
    started = [trainers(config, f"w{index}") for index in range(1, count + 1)]
    for trainer in started:
        eventually(lambda trainer=trainer: sum(map(merged, trainer.rounds)) > 10, 60)
    for trainer in started:
        trainer.interrupt()
    for trainer in started:
        assert_waits_are_bounded(trainer.finish())


@pytest.fixture
def others(config):
    """Three nodes of this process, which play the rest of the cluster."""
    with ExitStack() as stack:
        config.write_text(config.read_text() + "- transport: tcp\n")
        yield {
            value: stack.enter_context(DpwaConnection(f"w{value}", config)) for value in (1, 2, 3)
        }


def a_round(others):
    """One round of all three; what each of them got."""
    for value, node in others.items():
        node.update_send(np.full(1000, float(value)), 0.5)
    found = {}
    for value, node in others.items():
        start = time.monotonic()
        parameters, _ = node.update_wait(0.5)
        assert time.monotonic() - start <= at_most((TIMEOUT_MS + 50) / 1000)
        found[value] = None if parameters is None else parameters[0]
    return found


def rounds_until_all_get(others, wanted):
    """Make rounds until each of the three has got one of these values."""
    got = set()

    def have_got():
        got.update(value for value, found in a_round(others).items() if found in wanted)
        return got == set(others)

    eventually(have_got)


def victim(config):
    return start("gossip.py", "w4", config, "--value", 4, "--elements", 1000)


def test_a_stopped_node_holds_nobody_longer_than_the_timeout(config, others):
    stopped = victim(config)
    with ended(stopped):
        rounds_until_all_get(others, {4.0})
        stopped.send_signal(signal.SIGSTOP)

        def all_have_waited():
            a_round(others)
            outcomes = [status_of(node, "w4")["outcomes"] for node in others.values()]
            return all(found.get("timed_out") for found in outcomes)

        eventually(all_have_waited)
        rounds_until_all_get(others, {1.0, 2.0, 3.0})
        stopped.send_signal(signal.SIGCONT)
        rounds_until_all_get(others, {4.0})


def test_a_program_that_forgets_to_close_still_ends(tmp_path):
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(config_of(2, log_level="error")))
    with told("told_node.py", "w1", path, 4) as node:
        node.tell("send", 1)
        node.tell("wait")
        node.tell("send", 1)
        assert node.end() == (0, "")
