"""Records go on when a disk hangs or is full, and when somebody sets the clock of the machine."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.times import SetClock
from support.told_reports import ToldReport, answer_of

from dpwa.observe.figures import NAMES
from dpwa.observe.recorder import NodeRecord, wall_from
from dpwa.observe.run_log import RunLog


@pytest.fixture
def hanging_disk(monkeypatch):
    """A disk that takes nothing until it is let go on."""
    write, goes_on = os.write, threading.Event()

    def hang(file, data):
        if threading.current_thread().name.startswith("dpwa-run-log-"):
            goes_on.wait(30)
        return write(file, data)

    monkeypatch.setattr("dpwa.observe.run_log.os.write", hang)
    yield goes_on
    goes_on.set()


@pytest.mark.parametrize("samples", [1, 10])
def test_closing_waits_for_a_disk_that_hangs_for_a_while_only(
    tmp_path, monkeypatch, hanging_disk, samples
):
    monkeypatch.setattr("dpwa.observe.run_log.MAX_WAITING", 4)
    monkeypatch.setattr("dpwa.observe.run_log.CLOSE_TIMEOUT_S", 0.1)
    log = RunLog(str(tmp_path), {"name": "w1"})
    try:
        for _ in range(samples):
            log.write_sample(1.0, [0.0] * len(NAMES), ToldReport()(), [])
        closing = threading.Thread(target=log.close)
        closing.start()
        closing.join(5.0)
        assert not closing.is_alive()
        assert ("does not answer" in log.take_problem()) is (samples > 4)  # those that may wait
    finally:
        hanging_disk.set()
        closing.join()
        log.close()  # which ends it now


class FullDisk:
    """A run log whose disk takes nothing."""

    def write_sample(self, *_):
        pass

    def take_problem(self):
        return "No space left on device"


def test_a_disk_that_stays_full_pushes_no_event_out():
    report, clock = ToldReport(w2="unknown"), SetClock()
    record = NodeRecord(report, clock.now, log=FullDisk())
    for seconds in range(600):
        clock.time = seconds
        report.healths = {"w2": "alive" if seconds > 1 else "unknown"}
        record.sample()
    kinds = [kind for _, _, _, kind, _, _ in answer_of(record)["events"]]
    assert kinds == ["log_failed", "joined"]


def test_samples_go_on_when_the_clock_of_the_machine_is_set_back():
    wall, clock, began = SetClock(1e9), SetClock(), 1e9
    runtime = SimpleNamespace(wall_time=wall.now, now=clock.now)
    record = NodeRecord(ToldReport(), wall_from(runtime))
    for second in range(5):
        clock.time = second
        wall.time = began + second - 3600.0 * (second > 2)
        record.sample()
    told = np.frombuffer(answer_of(record)["samples"], "<f8").reshape(-1, 1 + len(NAMES))
    assert told[:, 0].tolist() == [began + second for second in range(5)]
