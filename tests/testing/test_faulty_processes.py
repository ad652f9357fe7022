"""Processes die or stand still at the moment of a plan, and never outlive the test."""

import os
import signal
import subprocess
import sys

import pytest
from support.processes import PROGRAMS

from dpwa import fault_points
from dpwa.errors import UserError
from dpwa.testing import Fault, FaultPlan, FaultyProcess

REACH_POINTS = PROGRAMS / "reach_points.py"


def reaching(*arguments, plan):
    return FaultyProcess(REACH_POINTS, *arguments, plan=plan, stdout=subprocess.PIPE, text=True)


def test_a_process_is_killed_the_nth_time_that_it_reaches_a_point():
    with reaching(9, "a", "b", plan=FaultPlan((Fault("b", 3),))) as process:
        assert process.wait_for_fault() == signal.SIGKILL
        assert process.wait() == -signal.SIGKILL
        assert process.popen.stdout.read() == "1 a\n1 b\n2 a\n2 b\n3 a\n3 b\n"


def test_a_process_stands_still_until_it_is_resumed():
    plan = FaultPlan((Fault("a", 2, "SIGSTOP"), Fault("b", 2, "SIGSTOP")))
    with reaching(2, "a", "b", plan=plan) as process:
        for seen in ("1 a\n1 b\n2 a\n", "2 b\n"):
            assert process.wait_for_fault() == signal.SIGSTOP
            assert "".join(process.popen.stdout.readline() for _ in seen.splitlines()) == seen
            process.resume()
        assert process.wait() == 0


def test_a_fault_that_never_comes_is_told():
    with reaching(1, "a", plan=FaultPlan((Fault("b"),))) as process:
        with pytest.raises(UserError, match="has ended with code 0 before any fault"):
            process.wait_for_fault()
        process.wait()
        with pytest.raises(UserError, match="has ended with code 0"):
            process.wait_for_fault()


def test_waiting_is_bounded(tmp_path):
    program = tmp_path / "sleep.py"
    program.write_text("import time; time.sleep(60)")
    with FaultyProcess(program) as process:
        with pytest.raises(TimeoutError):
            process.wait_for_fault(timeout_s=0.05)
        with pytest.raises(TimeoutError):
            process.wait(timeout_s=0.05)


def test_a_process_that_stands_still_can_be_killed_and_none_is_left(tmp_path):
    program = tmp_path / "sleep.py"
    program.write_text("import time; time.sleep(60)")
    with FaultyProcess(program) as process:
        process.stop()
    assert process.popen.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.popen.pid, 0)
    with FaultyProcess(program) as other:
        other.kill()
        assert other.wait_for_fault() == signal.SIGKILL


def test_a_program_runs_as_if_it_were_called_itself(tmp_path):
    (tmp_path / "neighbour.py").write_text("NAME = 'neighbour'")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, neighbour; print(__name__, sys.argv[1:], neighbour.NAME, __file__)"
    )
    with FaultyProcess(program, "x", 1, stdout=subprocess.PIPE, text=True) as process:
        assert process.wait() == 0
        told = process.popen.stdout.read()
    assert told == f"__main__ ['x', '1'] neighbour {program}\n"


def test_a_plan_in_the_environment_that_cannot_be_read_is_told():
    command = [sys.executable, "-m", "dpwa.testing", REACH_POINTS, "1", "a"]
    environment = {**os.environ, "DPWA_FAULTS": "a:zero:SIGKILL"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "DPWA_FAULTS: 'a:zero:SIGKILL' is not a fault. Expected POINT:NTH:SIGNAL [DPWA-E195]\n"
    )


def test_a_random_plan_is_the_same_for_the_same_seed_and_can_be_read_back():
    plans = [FaultPlan.random(seed, ("a", "b.c"), nth_at_most=3) for seed in range(100)]
    assert plans == [FaultPlan.random(seed, ("a", "b.c"), nth_at_most=3) for seed in range(100)]
    faults = {plan.faults for plan in plans}
    assert len(faults) == 2 * 3 * 2  # all there are: one is missed in 100 draws with P < 0.002
    for plan in plans:
        assert FaultPlan.parse(str(plan)).faults == plan.faults


@pytest.mark.parametrize("text", ["a", "a:1", ":1:SIGKILL", "a:x:SIGKILL", "a:0:SIGKILL", "a:1:X"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(UserError):
        FaultPlan.parse(text)


def test_an_empty_plan_takes_the_former_away():
    received = []
    before = signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
    try:
        FaultPlan((Fault("a", 1, "SIGUSR1"), Fault("a", 2, "SIGUSR1"))).install()
        fault_points.reached("a")
        FaultPlan.parse("").install()
        fault_points.reached("a")
    finally:
        fault_points.install(None)
        signal.signal(signal.SIGUSR1, before)
    assert received == [1]
