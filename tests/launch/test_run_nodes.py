"""Real processes and real signals. A node sends this process SIGINT where a user presses Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from support.launched import assert_gone
from support.nodes import config_of
from support.processes import descriptors
from support.times import at_most

from dpwa.data.shared_memory import SHARED_MEMORY_ROOT
from dpwa.errors import UserError
from dpwa.launch import LaunchSpec, local, run_nodes, stopping

Maker = Callable[..., LaunchSpec]

IMPORTS = "import os, signal, subprocess, sys, time\n"
PRESS_CTRL_C = "os.kill(os.getppid(), signal.SIGINT)\n"
SLEEP = "time.sleep(60)\n"
IGNORE_SIGINT = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
IGNORE_BOTH = IGNORE_SIGINT + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
END_WELL = "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n"
SHOW_INTERRUPT = (
    "def end(*_):\n"
    "    open(os.path.join(os.environ['MEETING_PLACE'], 'interrupted'), 'w').close()\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGINT, end)\n"
)
FIRST = "if os.environ['DPWA_RANK'] == '0':\n    "
LAST = "if os.environ['DPWA_RANK'] == '1':\n    "
# Both nodes have come this far, with their handlers in place.
WAIT_FOR_BOTH = (
    "place = os.environ['MEETING_PLACE']\n"
    "open(os.path.join(place, os.environ['DPWA_RANK']), 'w').close()\n"
    "while len(os.listdir(place)) < 2: time.sleep(0.01)\n"
)


class Transcript:
    """What the nodes printed and how they ended."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.exits: list[tuple[str, int]] = []
        self.signals: list[tuple[signal.Signals, list[str]]] = []

    def run(self, spec: LaunchSpec) -> dict[str, int]:
        return run_nodes(
            spec,
            lambda node, stream, line: self.lines[node, stream].append(line),
            on_exit=lambda node, code: self.exits.append((node, code)),
            on_signal=lambda number, nodes: self.signals.append((number, list(nodes))),
        )


def ignore(*_: object) -> None:
    pass


def appears(path: Path) -> bool:
    end = time.monotonic() + 0.8  # less than the patience with callbacks
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return path.exists()


@pytest.fixture
def transcript() -> Transcript:
    return Transcript()


def test_output_comes_by_node_and_stream(nodes_running: Maker, transcript: Transcript) -> None:
    code = "print('out', os.environ['DPWA_NAME']); print('err', end='', file=sys.stderr)"
    assert transcript.run(nodes_running(IMPORTS + code)) == {"w1": 0, "w2": 0}
    assert transcript.lines == {
        ("w1", "stdout"): ["out w1"],
        ("w1", "stderr"): ["err"],
        ("w2", "stdout"): ["out w2"],
        ("w2", "stderr"): ["err"],
    }


def test_output_is_seen_while_the_node_runs(nodes_running: Maker) -> None:
    code = IMPORTS + "print('ready'); time.sleep(0.5); print('done')"
    seen: list[float] = []
    run_nodes(nodes_running(code, "w1"), lambda *_: seen.append(time.monotonic()))
    assert seen[1] - seen[0] > 0.3


def test_a_flood_arrives_whole(nodes_running: Maker, transcript: Transcript) -> None:
    code = IMPORTS + "[sys.stdout.write(f'{n} {\"x\" * 50}\\n') for n in range(20_000)]"
    transcript.run(nodes_running(code, "w1"))
    assert [line.split()[0] for line in transcript.lines["w1", "stdout"]] == [
        str(number) for number in range(20_000)
    ]


def test_a_flooding_node_waits_for_a_slow_reader(nodes_running: Maker) -> None:
    code = IMPORTS + (
        "for n in range(10_000):\n    sys.stdout.write('x' * 10_000 + f' {time.monotonic()}\\n')\n"
    )
    late = 0.0

    def stall_at_first(node: str, stream: str, line: str) -> None:
        nonlocal late
        if not late:
            time.sleep(0.5)
            late = time.monotonic()
        elif float(line.split()[1]) > late:
            raise StopIteration  # written after the pause: until then, the node had to wait

    with pytest.raises(StopIteration):
        run_nodes(nodes_running(code, "w1"), stall_at_first)


def test_shared_memory_of_nodes_that_were_killed_is_removed(
    tmp_path: Path, transcript: Transcript
) -> None:
    code = IMPORTS + (
        "from dpwa import DpwaConnection\n"
        "node = DpwaConnection(os.environ['DPWA_NAME'], os.environ['DPWA_CONFIG'])\n"
        "node.update_send(bytes(100_000))\n"
        "size = node.node.report()['memory']['slot_bytes']\n"
        "print(size, node.node._context.pool.shared.name, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    config = tmp_path / "dpwa.yaml"
    config.write_text(json.dumps(config_of(2)))
    transcript.run(LaunchSpec([sys.executable, "-c", code], config, ["w1", "w2"]))
    assert sorted(transcript.exits) == [("w1", -signal.SIGKILL), ("w2", -signal.SIGKILL)]
    for node in ("w1", "w2"):
        (line,) = transcript.lines[node, "stdout"]
        size, name = line.split()
        assert int(size) == 100_000
        assert not (SHARED_MEMORY_ROOT / name).exists()


def test_one_interrupt_stops_all_nodes_and_only_them(
    nodes_running: Maker, transcript: Transcript
) -> None:
    code = IMPORTS + END_WELL + "print(os.getpid())\n" + WAIT_FOR_BOTH + LAST + PRESS_CTRL_C + SLEEP
    handlers = [signal.getsignal(number) for number in stopping.STOP_SIGNALS]
    with subprocess.Popen(["sleep", "60"]) as bystander:
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            transcript.run(nodes_running(code))
        assert time.monotonic() - started < at_most(4)
        assert bystander.poll() is None
        bystander.kill()
    for node in ("w1", "w2"):
        assert_gone(int(transcript.lines[node, "stdout"][0]))
    assert sorted(transcript.exits) == [("w1", 0), ("w2", 0)]
    assert transcript.signals == [(signal.SIGINT, ["w1", "w2"])]
    assert [signal.getsignal(number) for number in stopping.STOP_SIGNALS] == handlers


def test_a_second_interrupt_kills_stubborn_nodes_at_once(
    nodes_running: Maker, transcript: Transcript
) -> None:
    press_again = "signal.signal(signal.SIGINT, lambda *_: os.kill(os.getppid(), signal.SIGINT))\n"
    code = IMPORTS + IGNORE_BOTH + LAST + press_again + WAIT_FOR_BOTH + LAST + PRESS_CTRL_C + SLEEP
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        transcript.run(nodes_running(code))
    assert time.monotonic() - started < at_most(4)
    assert sorted(transcript.exits) == [("w1", -signal.SIGKILL), ("w2", -signal.SIGKILL)]
    assert [number for number, _ in transcript.signals] == [signal.SIGINT, signal.SIGKILL]


@pytest.mark.parametrize(
    ("stubbornness", "end"),
    [(IGNORE_SIGINT, signal.SIGTERM), (IGNORE_BOTH, signal.SIGKILL)],
    ids=["ignores SIGINT", "ignores SIGTERM too"],
)
def test_a_stubborn_node_gets_harder_signals(
    nodes_running: Maker,
    transcript: Transcript,
    monkeypatch: pytest.MonkeyPatch,
    stubbornness: str,
    end: signal.Signals,
) -> None:
    quick = tuple((number, min(grace_s, 1.0)) for number, grace_s in stopping.STEPS)
    monkeypatch.setattr(stopping, "STEPS", quick)
    code = IMPORTS + END_WELL + LAST + stubbornness + WAIT_FOR_BOTH + LAST + PRESS_CTRL_C + SLEEP
    with pytest.raises(KeyboardInterrupt):
        transcript.run(nodes_running(code))
    assert dict(transcript.exits) == {"w1": 0, "w2": -end}
    assert (end, ["w2"]) in transcript.signals  # a busy machine may see its end too late


def test_a_stopped_node_is_ended_too(
    nodes_running: Maker, transcript: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tuple((number, min(grace_s, 0.2)) for number, grace_s in stopping.STEPS)
    monkeypatch.setattr(stopping, "STEPS", quick)
    stop_self = (
        "open(note + '.new', 'w').write(str(os.getpid())); os.rename(note + '.new', note)\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    wait_for_it = (
        "while not os.path.exists(note): time.sleep(0.01)\n"
        "while ') T ' not in open(f'/proc/{open(note).read()}/stat').read(): time.sleep(0.01)\n"
    )
    code = IMPORTS + "note = os.path.join(os.environ['MEETING_PLACE'], 'pid')\n"
    code += FIRST + stop_self + wait_for_it + PRESS_CTRL_C + SLEEP
    with pytest.raises(KeyboardInterrupt):
        transcript.run(nodes_running(code))
    assert dict(transcript.exits)["w1"] == -signal.SIGKILL


def test_grandchildren_are_stopped_with_the_nodes(
    nodes_running: Maker, transcript: Transcript
) -> None:
    code = (
        IMPORTS
        + IGNORE_SIGINT
        + "p = subprocess.Popen(['sleep', '60'])\nprint(p.pid)\n"
        + END_WELL
        + WAIT_FOR_BOTH
        + LAST
        + PRESS_CTRL_C
        + SLEEP
    )
    with pytest.raises(KeyboardInterrupt):
        transcript.run(nodes_running(code))
    for node in ("w1", "w2"):
        assert_gone(int(transcript.lines[node, "stdout"][0]))


def test_who_has_a_session_of_its_own_as_workers_of_torchrun_have_does_not_outlive_a_stop(
    nodes_running: Maker, transcript: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tuple((number, min(grace_s, 0.2)) for number, grace_s in stopping.STEPS)
    monkeypatch.setattr(stopping, "STEPS", quick)
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    options = f"[sys.executable, '-S', '-c', {child!r}], start_new_session=True"
    code = IMPORTS + IGNORE_BOTH + f"child = subprocess.Popen({options})\ntime.sleep(60)\n"
    pids: list[int] = []

    def stop(node: str, stream: str, line: str) -> None:
        pids.append(int(line))
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run_nodes(nodes_running(code, "w1"), stop)
    assert_gone(*pids)


@pytest.mark.parametrize("stubbornness", ["", IGNORE_BOTH], ids=["meek", "stubborn"])
def test_what_a_node_leaves_behind_ends_with_it(
    nodes_running: Maker,
    transcript: Transcript,
    monkeypatch: pytest.MonkeyPatch,
    stubbornness: str,
) -> None:
    monkeypatch.setattr(local, "LEFTOVER_GRACE_S", 0.3)
    code = IMPORTS + stubbornness + "print(subprocess.Popen(['sleep', '60']).pid)\nos._exit(0)"
    started = time.monotonic()
    assert transcript.run(nodes_running(code, "w1")) == {"w1": 0}
    assert time.monotonic() - started < at_most(4)
    assert_gone(int(transcript.lines["w1", "stdout"][0]))


def test_what_a_node_has_started_may_finish_its_output(
    nodes_running: Maker, transcript: Transcript
) -> None:
    slow_tee = "time.sleep(0.1)\nfor line in sys.stdin: print('logged', line, end='')"
    code = IMPORTS + (
        f"tee = subprocess.Popen([sys.executable, '-S', '-c', {IMPORTS + slow_tee!r}],"
        " stdin=subprocess.PIPE)\n"
        "tee.stdin.write(b'last words\\n')\ntee.stdin.flush()\nos._exit(0)"
    )
    assert transcript.run(nodes_running(code, "w1")) == {"w1": 0}
    assert transcript.lines["w1", "stdout"] == ["logged last words"]


def test_a_process_that_left_the_group_cannot_hold_the_launcher_up(
    nodes_running: Maker, transcript: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LEFTOVER_GRACE_S", 0.3)
    code = IMPORTS + "print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    started = time.monotonic()
    transcript.run(nodes_running(code + "\nos._exit(0)", "w1"))
    assert time.monotonic() - started < at_most(4)
    os.kill(int(transcript.lines["w1", "stdout"][0]), signal.SIGKILL)


def test_nodes_stop_when_their_audience_fails(nodes_running: Maker) -> None:
    pids: list[int] = []

    def fail(node: str, stream: str, line: str) -> None:
        pids.append(int(line))
        if len(pids) == 2:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_nodes(nodes_running(IMPORTS + END_WELL + "print(os.getpid())\n" + SLEEP), fail)
    for pid in pids:
        assert_gone(pid)


def test_a_message_about_ctrl_c_that_fails_does_not_keep_it_from_the_nodes(
    nodes_running: Maker,
) -> None:
    def fail(*_: object) -> None:
        raise BrokenPipeError

    exits: list[int] = []
    spec = nodes_running(IMPORTS + SHOW_INTERRUPT + PRESS_CTRL_C + SLEEP, "w1")
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as caught:
        run_nodes(spec, ignore, on_exit=lambda _, code: exits.append(code), on_signal=fail)
    assert time.monotonic() - started < at_most(4)
    assert isinstance(caught.value.__cause__, BrokenPipeError)
    assert exits == []
    assert (Path(spec.environment["MEETING_PLACE"]) / "interrupted").exists()


def test_nodes_get_a_signal_before_anybody_is_told_of_it(nodes_running: Maker) -> None:
    spec = nodes_running(IMPORTS + SHOW_INTERRUPT + PRESS_CTRL_C + SLEEP, "w1")
    seen = Path(spec.environment["MEETING_PLACE"]) / "interrupted"
    told: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        run_nodes(spec, ignore, on_signal=lambda *_: told.append(appears(seen)))
    assert told == [True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_callback_that_hangs_cannot_prevent_a_stop(
    nodes_running: Maker, number: signal.Signals
) -> None:
    pids: list[int] = []

    def hang(node: str, stream: str, line: str) -> None:
        pids.append(int(line))
        os.kill(os.getpid(), number)
        while True:
            time.sleep(60)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_nodes(nodes_running(IMPORTS + END_WELL + "print(os.getpid())\n" + SLEEP, "w1"), hang)
    assert time.monotonic() - started < at_most(4)
    assert_gone(*pids)


def test_no_node_is_left_when_one_cannot_start(
    nodes_running: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start_really = local.start

    def start(name: str, *details: object) -> subprocess.Popen[bytes]:
        if started:
            raise UserError(f"cannot start node {name}: Too many open files")
        started.append(start_really(name, *details))
        return started[0]

    monkeypatch.setattr(local, "start", start)
    with pytest.raises(UserError, match="cannot start node w2"):
        run_nodes(nodes_running(IMPORTS + SLEEP), print)
    assert started[0].wait() != 0  # 1, if Ctrl-C comes before Python can handle it


def test_a_command_that_does_not_exist_starts_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hi')")
    for command, message in [
        (["no-such-command"], "cannot run 'no-such-command': there is no such command"),
        ([str(script)], "it is not executable"),
        ([], "no command"),
    ]:
        spec = LaunchSpec(command, Path("dpwa.yaml"), ["w1"])
        with pytest.raises(UserError, match=message):
            run_nodes(spec, print)


def test_a_file_that_the_system_cannot_run_is_a_failure_of_the_node(
    transcript: Transcript, tmp_path: Path
) -> None:
    script = tmp_path / "train"
    script.write_text("print('no interpreter line')")
    script.chmod(0o755)
    codes = transcript.run(LaunchSpec([str(script)], Path("dpwa.yaml"), ["w1"]))
    assert codes == {"w1": 1}
    assert transcript.lines["w1", "stderr"] == [
        f"dpwa launch: cannot run {script}: Exec format error"
    ]


def test_nodes_react_to_ctrl_c_even_if_this_process_ignores_it(
    nodes_running: Maker, transcript: Transcript
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = IMPORTS + "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    transcript.run(nodes_running(code, "w1"))
    assert transcript.lines["w1", "stdout"] == ["True"]


def test_nodes_run_from_another_thread(nodes_running: Maker, transcript: Transcript) -> None:
    codes: list[dict[str, int]] = []
    spec = nodes_running("print('hi')")
    thread = threading.Thread(target=lambda: codes.append(transcript.run(spec)))
    thread.start()
    thread.join()
    assert codes == [{"w1": 0, "w2": 0}]
    assert transcript.lines["w2", "stdout"] == ["hi"]


def test_no_descriptor_is_left_open(nodes_running: Maker, transcript: Transcript) -> None:
    before = descriptors()
    transcript.run(nodes_running("print('hi')", *(f"w{number}" for number in range(8))))
    assert descriptors() == before


def test_a_node_reads_an_empty_standard_input(nodes_running: Maker, transcript: Transcript) -> None:
    assert (
        transcript.run(nodes_running("import sys; print(len(sys.stdin.read()))", "w1"))["w1"] == 0
    )
    assert transcript.lines["w1", "stdout"] == ["0"]
