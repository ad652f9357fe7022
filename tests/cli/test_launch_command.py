"""`dpwa launch` as users run it: a process of its own, with real signals and a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.launched import IMPORTS, LAUNCH, assert_gone, interruptible, launch, python
from support.ports import free_ports
from support.processes import Program, ended, start
from support.terminals import IN_A_TERMINAL, on_terminal
from support.times import at_most

from dpwa.config import load_config
from dpwa.errors import without_codes
from dpwa.launch.configs import run_folder
from dpwa.launch.stopping import PASSED_ON, STOP_SIGNALS

Launcher = Program | subprocess.Popen
ENVIRONMENT = IMPORTS + (
    "for name in 'NAME RANK WORLD_SIZE CONFIG'.split(): print(name, os.environ['DPWA_' + name])\n"
)
READY_THEN_SLEEP = IMPORTS + (
    "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):\n"
    "    signal.signal(number, lambda *_: sys.exit(0))\n"
    "print(os.getpid())\ntime.sleep(60)\n"
)
STUBBORN = IMPORTS + (
    "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
    "print(os.getpid())\ntime.sleep(60)\n"
)


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    with interruptible():
        yield


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what a killed launcher leaves out of the machine's temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def lines_of(output: str, node: str) -> list[str]:
    return re.findall(rf"^{node} \| (.*)$", output, re.MULTILINE)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration of the nodes alice, bob and carol on free ports."""
    names = ("alice", "bob", "carol")
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "nodes:\n"
        + "".join(
            f"- {{name: {name}, host: 127.0.0.1, port: {port}}}\n"
            for name, port in zip(names, free_ports(3), strict=True)
        )
    )
    return path


@pytest.fixture
def launcher() -> Iterator[Callable[..., Launcher]]:
    """Return a function that starts a launcher in the background, killed when the test ends."""
    with ExitStack() as stack:

        def run(*arguments: str, **options: int) -> Launcher:
            if options:
                pipes = {"stdout": subprocess.PIPE} | options
                process = subprocess.Popen([*LAUNCH, *arguments], text=True, **pipes)
            else:
                process = start("dpwa_command.py", "launch", *arguments)
            stack.enter_context(ended(process))
            return process

        yield run


def pids_of_ready_nodes(process: Launcher, count: int) -> list[int]:
    return [int(process.stdout.readline().split("| ")[1]) for _ in range(count)]


def test_nodes_of_a_generated_configuration_know_who_they_are(temporary_folder: Path) -> None:
    done = launch("-n", "2", *python(ENVIRONMENT))
    assert done.returncode == 0, done.stderr
    first, second = lines_of(done.stdout, "w1"), lines_of(done.stdout, "w2")
    assert first[:3] == ["NAME w1", "RANK 0", "WORLD_SIZE 2"]
    assert second[:3] == ["NAME w2", "RANK 1", "WORLD_SIZE 2"]
    assert first[3] == second[3]
    assert first[3].startswith(f"CONFIG {temporary_folder}/dpwa-launch-")
    assert done.stderr == "dpwa launch: all 2 nodes succeeded\n"
    assert list(temporary_folder.iterdir()) == []


def test_all_nodes_of_a_configuration_start(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config.parent)
    done = launch("-c", config.name, *python(ENVIRONMENT))
    assert done.returncode == 0, done.stderr
    for rank, node in enumerate(["alice", "bob  ", "carol"]):
        assert lines_of(done.stdout, node) == [
            f"NAME {node.strip()}",
            f"RANK {rank}",
            "WORLD_SIZE 3",
            f"CONFIG {config}",
        ]


def test_the_first_nodes_of_a_configuration_start(config: Path) -> None:
    done = launch("-c", str(config), "-n", "2", *python(ENVIRONMENT))
    assert lines_of(done.stdout, "bob  ")[2] == "WORLD_SIZE 2"
    assert "carol" not in done.stdout


def test_the_command_may_have_options_without_a_separator() -> None:
    done = launch("-n", "1", "echo", "-n", "3", "--cpus")
    assert (done.returncode, done.stdout) == (0, "w1 | 3 --cpus\n")


def test_streams_stay_apart_and_uncoloured_without_a_terminal() -> None:
    code = "import sys; print('result'); print('log', file=sys.stderr)"
    done = launch("-n", "1", *python(code), start_new_session=True, stdin=subprocess.DEVNULL)
    assert done.stdout == "w1 | result\n"
    assert done.stderr == "w1 | log\ndpwa launch: the node succeeded\n"


def test_any_character_can_be_shown_in_any_locale() -> None:
    code = "import sys; sys.stdout.buffer.write('90\N{DEGREE SIGN}\\n'.encode() + bytes([255]))"
    done = launch("-n", "1", *python(code), env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.stdout == "w1 | 90\\xb0\nw1 | \\ufffd\n"


def test_a_failing_node_is_named_and_the_others_finish() -> None:
    code = IMPORTS + (
        "if os.environ['DPWA_RANK'] == '0': sys.exit(3)\n"
        "if os.environ['DPWA_RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(0.3); print('finished')"
    )
    done = launch("-n", "3", *python(code))
    assert done.returncode == 1
    assert lines_of(done.stdout, "w3") == ["finished"]
    *failures, summary = done.stderr.splitlines()
    assert sorted(failures) == [
        "dpwa launch: node w1 failed: exit code 3",
        "dpwa launch: node w2 failed: ended by SIGKILL",
    ]
    assert summary == "dpwa launch: 2 of 3 nodes failed: w1, w2"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stop_signal_reaches_the_nodes_as_it_came_and_stops_them_cleanly(
    launcher: Callable[..., Launcher], temporary_folder: Path, number: signal.Signals
) -> None:
    only = f"(signal.Signals({int(number)}),)"
    code = READY_THEN_SLEEP.replace(
        "(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)", only
    )
    process = launcher("-n", "2", *python(code))
    pids = pids_of_ready_nodes(process, 2)
    started = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - started < at_most(4)
    assert process.returncode == 130
    hint = " (a second Ctrl-C kills the nodes)" if number == signal.SIGINT else ""
    assert errors == (
        f"dpwa launch: stopping w1, w2 with {number.name}{hint}\n"
        "dpwa launch: all nodes have stopped\n"
    )
    assert_gone(*pids)
    assert list(temporary_folder.iterdir()) == []


def test_what_schedulers_send_runs_the_handlers_of_the_nodes_which_go_on(
    launcher: Callable[..., Launcher], temporary_folder: Path
) -> None:
    numbers = ", ".join(f"signal.{number.name}" for number in PASSED_ON)
    code = IMPORTS + (
        "came = set()\n"
        f"for number in ({numbers}): signal.signal(number, lambda n, _: came.add(n))\n"
        "print(os.getpid())\n"
        f"while len(came) < {len(PASSED_ON)}: time.sleep(0.01)\n"
        "print('saved')\n"
    )
    process = launcher("-n", "2", *python(code))
    pids_of_ready_nodes(process, 2)
    for number in PASSED_ON:
        process.send_signal(number)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (lines_of(said, "w1"), lines_of(said, "w2")) == (["saved"], ["saved"])
    assert sorted(errors.splitlines()[:-1]) == sorted(
        f"dpwa launch: passing {number.name} on to w1, w2" for number in PASSED_ON
    )
    assert list(temporary_folder.iterdir()) == []


def test_nodes_that_end_of_what_was_passed_on_are_not_started_again_and_leave_nothing(
    launcher: Callable[..., Launcher], temporary_folder: Path
) -> None:
    code = IMPORTS + (
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print(child.pid)\ntime.sleep(60)\n"
    ).replace("subprocess", "__import__('subprocess')")
    process = launcher("-n", "1", "--restart", "on-failure", *python(code))
    pids = pids_of_ready_nodes(process, 1)
    started = time.monotonic()
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - started < at_most(10)
    assert process.returncode == 1
    assert errors.splitlines()[1:] == [
        "dpwa launch: node w1 failed: ended by SIGUSR1",
        "dpwa launch: 1 of 1 nodes failed: w1",
    ]
    assert_gone(*pids)
    assert list(temporary_folder.iterdir()) == []


def test_a_signal_before_the_nodes_run_leaves_no_folder() -> None:
    with pytest.raises(KeyboardInterrupt), run_folder() as folder:
        os.kill(os.getpid(), signal.SIGTERM)
    assert not folder.exists()


def test_of_what_nodes_print_at_ctrl_c_only_its_own_tracebacks_are_not_shown(
    launcher: Callable[..., Launcher],
) -> None:
    process = launcher(
        "-n",
        "2",
        *python(
            IMPORTS + "try:\n    print(os.getpid())\n    time.sleep(60)\n"
            "finally:\n    if os.environ['DPWA_RANK'] == '1': int('two')\n"
        ),
    )
    pids = pids_of_ready_nodes(process, 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert lines_of(errors, "w1") == []
    lines = lines_of(errors, "w2")
    assert "Traceback (most recent call last):" in lines
    assert lines[-1].startswith("ValueError: invalid literal")
    assert "KeyboardInterrupt" not in errors
    assert_gone(*pids)


def test_nodes_end_when_the_launcher_is_killed(
    launcher: Callable[..., Launcher],
) -> None:
    process = launcher("-n", "2", *python(STUBBORN))
    pids = pids_of_ready_nodes(process, 2)
    process.kill()
    process.wait()
    assert_gone(*pids)


def test_ctrl_c_in_a_terminal_stops_the_nodes() -> None:
    master, terminal = pty.openpty()
    command = [*IN_A_TERMINAL, *LAUNCH, "-n", "2", *python(READY_THEN_SLEEP)]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        shown = read_until(master, lambda text: text.count("\r\n") == 2)
        assert "\x1b[36mw1 |\x1b[0m " in shown
        assert "\x1b[33mw2 |\x1b[0m " in shown
        os.write(master, b"\x03")
        read_until(master, lambda text: "all nodes have stopped" in text)
        assert process.wait(60) == 130
    os.close(master)
    assert_gone(*map(int, re.findall(r"\x1b\[0m (\d+)", shown)))


@pytest.mark.parametrize(
    "variable", [{"NO_COLOR": "1"}, pytest.param({"TERM": "dumb"}, marks=pytest.mark.slow)]
)
def test_names_are_not_coloured_where_that_is_not_wanted(variable: dict[str, str]) -> None:
    command = [*LAUNCH, "-n", "2", "--", "echo", "hello"]
    shown, code = on_terminal(command, environment=variable)
    assert code == 0
    assert "w1 | hello" in shown
    assert "\x1b" not in shown


def read_until(descriptor: int, enough: Callable[[str], bool]) -> str:
    text = ""
    while not enough(text):
        text += os.read(descriptor, 4096).decode()
    return text


def test_ctrl_c_reaches_the_nodes_when_it_also_ends_the_reader_of_the_messages(
    launcher: Callable[..., Launcher], tmp_path: Path
) -> None:
    marker = tmp_path / "ended well"
    end_well = f"lambda *_: (open({str(marker)!r}, 'w').close(), sys.exit(0))"
    code = READY_THEN_SLEEP.replace("lambda *_: sys.exit(0)", end_well)
    process = launcher("-n", "1", *python(code), stderr=subprocess.STDOUT)
    pids = pids_of_ready_nodes(process, 1)
    process.stdout.close()
    process.stdout = None  # so that cleaning up does not read it
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert time.monotonic() - started < at_most(4)
    assert marker.exists()
    assert_gone(*pids)


def test_a_terminal_that_is_closed_stops_the_nodes(tmp_path: Path) -> None:
    marker = tmp_path / "ended well"
    end_well = f"lambda *_: (open({str(marker)!r}, 'w').close(), sys.exit(0))"
    code = READY_THEN_SLEEP.replace("lambda *_: sys.exit(0)", end_well)
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [*IN_A_TERMINAL, *LAUNCH, "-n", "1", *python(code)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        read_until(master, lambda text: "\r\n" in text)
        os.close(master)
        assert process.wait(60) == 130
    assert marker.exists()


@pytest.mark.parametrize(
    ("numbers", "errors"),
    [
        ([signal.SIGINT] * 2, "together"),
        ([signal.SIGTERM], "apart"),
        pytest.param([signal.SIGINT] * 2, "apart", marks=pytest.mark.slow),
        pytest.param([signal.SIGTERM], "together", marks=pytest.mark.slow),
    ],
)
def test_a_flood_that_nobody_reads_can_be_stopped(
    launcher: Callable[..., Launcher], numbers: list[signal.Signals], errors: str
) -> None:
    options = {"stderr": subprocess.STDOUT} if errors == "together" else {}
    process = launcher("-n", "1", "--", "sh", "-c", "echo $$; exec yes", **options)
    pids = pids_of_ready_nodes(process, 1)
    wait_until_blocked(process)
    for number in numbers:
        process.send_signal(number)
    assert process.wait(60) == 130
    assert_gone(*pids)


def wait_until_blocked(process: Launcher) -> None:
    """Wait until the standard output of a process stays full."""
    seen = [-1, -2]
    while seen[-1] != seen[-2] or seen[-1] < 4096:
        time.sleep(0.1)
        waiting = fcntl.ioctl(process.stdout, termios.FIONREAD, b"\0" * 4)
        seen.append(int.from_bytes(waiting, sys.byteorder))


def test_every_port_in_use_is_named_and_nothing_starts(config: Path) -> None:
    nodes = load_config(config).nodes
    marker = config.parent / "started"
    with (
        socket.create_server(("127.0.0.1", nodes[0].port)),
        socket.create_server(("127.0.0.1", nodes[2].port)),
    ):
        done = launch("-c", str(config), "--", "touch", str(marker))
    assert done.returncode == 2
    *lines, advice = without_codes(done.stderr).splitlines()
    who = f"the port is already in use by process {os.getpid()} "
    assert [line.partition("(")[0] for line in lines] == [
        f"dpwa: node alice cannot listen on 127.0.0.1:{nodes[0].port}: {who}",
        f"dpwa: node carol cannot listen on 127.0.0.1:{nodes[2].port}: {who}",
    ]
    assert "`dpwa launch -n 3` finds free ports" in advice
    assert not marker.exists()


def test_a_configuration_without_nodes_says_how_they_are_started(tmp_path: Path) -> None:
    file = tmp_path / "others.yaml"
    file.write_text("join: ['tcp://127.0.0.1:7000']\n")
    done = launch("-c", str(file), "--", "python", "train.py")
    assert done.returncode == 2
    assert without_codes(done.stderr) == (
        f"dpwa: {file}: expected nodes to start, but the file has only `join`. Start each node by "
        f"DPWA_NAME=w1 DPWA_CONFIG={file} python train.py\n"
    )


def test_folders_for_a_generated_configuration_are_those_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPWA_CHECKPOINT__DIR", "kept")
    shown = "import os; print(os.environ['DPWA_CHECKPOINT__DIR'], 'DPWA_KEYS' in os.environ)"
    done = launch("-n", "1", *python(shown))
    assert done.stdout == f"w1 | {tmp_path}/kept False\n"


def test_more_nodes_than_the_configuration_has_is_a_usage_error(config: Path) -> None:
    done = launch("-c", str(config), "-n", "4", "true")
    assert done.returncode == 2
    assert f"-n 4 is more than the 3 nodes of {config}" in done.stderr


def test_the_cores_are_shared_unless_the_user_says_otherwise() -> None:
    code = "import os; print(os.environ['OMP_NUM_THREADS'], len(os.sched_getaffinity(0)))"
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    cores = len(os.sched_getaffinity(0))
    shared = launch("-n", "1", *python(code), env=inherited)
    assert shared.stdout == f"w1 | {cores} {cores}\n"
    chosen = launch("-n", "1", *python(code), env=inherited | {"OMP_NUM_THREADS": "7"})
    assert chosen.stdout == f"w1 | 7 {cores}\n"


def test_a_reader_that_leaves_ends_the_nodes_quietly(
    launcher: Callable[..., Launcher],
) -> None:
    chatter = IMPORTS + "print(os.getpid())\nwhile True: print('tick'); time.sleep(0.01)"
    process = launcher("-n", "1", *python(chatter))
    pids = pids_of_ready_nodes(process, 1)
    process.stdout.close()
    process.wait(60)
    assert process.returncode == 1
    assert process.stderr.read() == ""
    assert_gone(*pids)


ENDS_ALONE = (
    "import os, numpy, dpwa\n"
    "with dpwa.DpwaConnection(os.environ['DPWA_NAME'], os.environ['DPWA_CONFIG']) as connection:\n"
    "    connection.finish(numpy.zeros(4), timeout_s=0.0)\n"
)


@pytest.mark.slow
def test_a_node_that_starts_when_all_others_have_left_counts_as_failed(config: Path) -> None:
    command = ["--", sys.executable, "-c", ENDS_ALONE]
    result = launch("-c", str(config), "-n", "1", "--restart", "on-failure", *command)
    assert result.returncode == 1
    notice = (
        "alice | dpwa launch: this node failed: finished together with no other node. "
        "Missing peers: bob ("
    )
    assert notice in result.stderr
    assert "dpwa launch: 1 of 1 nodes failed: alice\n" in result.stderr
    assert launch("-n", "1", *command).returncode == 0  # there is nobody to miss
