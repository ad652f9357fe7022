"""Real training processes that are started, stopped, killed and started again."""

import json
import signal
import threading
import time

import pytest
from support.nodes import free_ports
from support.processes import ended, start
from support.times import at_most

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

    def __init__(self, config, name, rounds=0, pause_ms=5):
        self.name = name
        self.process = start("train.py", config, name, rounds, pause_ms)
        self.rounds = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.rounds.append(json.loads(line))

    def wait_for(self, check, after=None, timeout_s=60):
        """Wait until some round (after a number of rounds, else after now) passes the check."""
        seen = len(self.rounds) if after is None else after
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for line in self.rounds[seen:]:
                if check(line):
                    return line
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.02)
        raise AssertionError(f"{self.name}: no such round; the last: {self.rounds[-3:]}")

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

    def starts(*arguments, **options):
        trainer = Trainer(*arguments, **options)
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
    started = [trainers(config, f"w{index}", rounds=100) for index in range(1, count + 1)]
    for trainer in started:
        rounds = trainer.finish()
        assert len(rounds) == 100
        assert sum(map(merged, rounds)) > 10
        assert_waits_are_bounded(rounds)


def test_a_killed_node_is_missed_by_nobody_and_merges_again_after_its_restart(config, trainers):
    others = [trainers(config, f"w{index}") for index in (1, 2, 3)]
    victim = trainers(config, "w4")
    for trainer in (*others, victim):
        trainer.wait_for(merged)
    victim.process.kill()
    victim.process.wait()
    for trainer in others:
        trainer.wait_for(merged)
    again = trainers(config, "w4")
    again.wait_for(merged)
    for trainer in others:
        trainer.wait_for(lambda line: line["peer"] == "w4")
    for trainer in (*others, again):
        trainer.interrupt()
    for trainer in (*others, again):
        assert_waits_are_bounded(trainer.finish())


# Patience is learnt from fetches of a millisecond, and who fails again and again is left alone, so
# that few rounds wait, and not for long.
NOTICED_S = 0.02


def test_a_stopped_node_holds_nobody_longer_than_the_timeout(config, trainers):
    others = [trainers(config, f"w{index}") for index in (1, 2, 3)]
    stopped = trainers(config, "w4")
    for trainer in others:
        trainer.wait_for(lambda line: line["peer"] == "w4")
    stopped.wait_for(merged)
    before = {trainer: len(trainer.rounds) for trainer in others}
    stopped.process.send_signal(signal.SIGSTOP)
    for trainer in others:
        trainer.wait_for(lambda line: line["wait_s"] > NOTICED_S, after=before[trainer])
        trainer.wait_for(merged)
    stopped.process.send_signal(signal.SIGCONT)
    stopped.wait_for(merged)
    for trainer in (*others, stopped):
        trainer.interrupt()
    for trainer in others:
        assert_waits_are_bounded(trainer.finish())
    stopped.finish()


def test_a_program_that_forgets_to_close_still_ends():
    process = start("forget_to_close.py", *free_ports(1))
    with ended(process):
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "done\n", "")
