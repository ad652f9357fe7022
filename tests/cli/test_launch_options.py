"""Options of `dpwa launch` beside those of nodes: restarts, logs, engines."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from support.launched import IMPORTS, launch, python

from dpwa.cli.launch import NodeLogs


def test_a_failing_node_is_started_again_and_its_log_goes_on(tmp_path: Path) -> None:
    mark, logs = tmp_path / "mark", tmp_path / "new" / "logs"
    fail_once = IMPORTS + (
        f"is_first = not os.path.exists({str(mark)!r}); open({str(mark)!r}, 'w').close()\n"
        "print('out', flush=True); print('err', file=sys.stderr)\n"
        "if is_first: os.kill(os.getpid(), signal.SIGKILL)"
    )
    options = ("-n", "1", "--restart", "on-failure:2", "--log-dir", str(logs))
    done = launch(*options, *python(fail_once))
    notice = (
        "dpwa launch: node w1 failed: ended by SIGKILL. Restarting the node in 1 s (restart 1 of 2)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "w1 | out\nw1 | out\n"
    assert done.stderr.splitlines() == [
        "w1 | err",
        notice,
        "w1 | err",
        "dpwa launch: the node succeeded",
    ]
    logged = (logs / "w1.log").read_text().splitlines()
    assert sorted(logged[:2]) == ["err", "out"]
    assert logged[2] == notice
    assert sorted(logged[3:]) == ["err", "out"]
    assert launch(*options, "echo", "later").returncode == 0
    assert (logs / "w1.log").read_text().splitlines() == [*logged, "later"]


def test_a_log_that_cannot_be_written_any_more_is_said_once_and_stops_no_node(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with NodeLogs(tmp_path, ["w1", "w2"], said.append) as logs:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
            for _ in range(3):
                logs.write("w1", "five5")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        logs.write("w2", "one")
    assert said == [f"{tmp_path}/w1.log can no longer be written: File too large"]
    assert (tmp_path / "w2.log").read_text() == "one\n"


def test_settings_of_a_file_without_nodes_in_the_folder_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = python("import os; print(open(os.environ['DPWA_CONFIG']).read())")
    file = tmp_path / "dpwa.yaml"
    for text, is_used in (("", True), ("join: [tcp://10.0.0.1:7000]\n", False)):
        file.write_text(f"run_log: logs\nalgorithm: elastic\n{text}")
        done = launch("-n", "1", *shown)
        assert done.returncode == 0, done.stderr
        assert ("algorithm: elastic" in done.stdout) is is_used
        assert (f"{tmp_path}/logs" in done.stdout) is is_used
    file.write_text("timeout_m: 3\n")
    done = launch("-n", "1", *shown)
    assert done.returncode == 2
    assert f"{file}:1:1: timeout_m: unknown key" in done.stderr


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError")  # as if it were not installed
    search_path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"PYTHONPATH": search_path}
    done = launch("-n", "1", "--engine", "ray", "true", env=environment)
    assert done.returncode == 2
    assert done.stderr == (
        "dpwa: --engine ray needs Ray: pip install -c constraints.txt '.[ray]' in a checkout"
        " [DPWA-E071]\n"
    )


def test_the_last_failure_says_how_often_the_node_was_started_again():
    done = launch("-n", "1", "--restart", "on-failure:1", *python("import sys; sys.exit(3)"))
    assert done.returncode == 1
    assert "dpwa launch: node w1 failed: exit code 3 (after 1 restart)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-n", "2", "no-such-command"],
            "cannot run 'no-such-command': there is no such command [DPWA-E060]\n",
        ),
        (["-c", "missing.yaml", "true"], "missing.yaml"),
        (["true"], "give a number of nodes (-n N), a configuration (-c FILE), or both"),
        (["-n", "0", "true"], "Invalid value for '-n' / '--nodes': "),
        (["-n", "2"], "Missing argument"),
        (["-n", "1", "--cpus", "pin", "true"], "--cpus was removed. Use `os.sched_setaffinity(0, "),
        (["--engine", "ray", "true"], "--engine ray needs a number of nodes (-n N)"),
        (["--engine", "ray", "-n", "1", "-c", "x", "true"], "-c needs --engine local"),
        (["--engine", "ray", "-n", "1", "--resources", "CPU", "true"], "(got CPU)"),
        (["--engine", "ray", "-n", "1", "--resources", "CPU=-1", "true"], "NAME=NUMBER,..."),
        (["-n", "1", "--resources", "CPU=1", "true"], "--resources works only with --engine ray"),
        (["-n", "1", "--restart", "always", "true"], "--restart: expected no, on-failure or"),
        (["-n", "1", "--restart", "on-failure:x", "true"], "(got on-failure:x)"),
        (["-n", "1", "--spare", "true"], "--spare needs --restart on-failure"),
        (
            ["-n", "1", "--spare", "--restart", "on-failure", "true"],
            "a spare process needs `python SCRIPT.py",
        ),
        (
            ["--engine", "ray", "-n", "1", "--spare", "true"],
            "--spare works only with --engine local",
        ),
        (["-n", "1", "--log-dir", "/dev/null/x", "true"], "dpwa: --log-dir: /dev/null/x cannot be"),
    ],
)
def test_a_mistake_is_said_in_one_message_with_code_2(arguments: list[str], message: str) -> None:
    done = launch(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
