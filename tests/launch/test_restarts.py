"""Nodes that fail are started again: real processes, which really die."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.nodes import config_of
from support.processes import descriptors
from support.times import at_most

from dpwa.launch import LaunchSpec, Restart, local, run_nodes, spare, supervisor
from dpwa.launch.supervisor import Restarts

Maker = Callable[..., LaunchSpec]

IMPORTS = "import os, signal, sys, time\n"
FIRST_TIME = (
    "mark = os.path.join(os.environ['MEETING_PLACE'], os.environ['DPWA_NAME'])\n"
    "is_first = not os.path.exists(mark)\n"
    "open(mark, 'a').close()\n"
)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.1)
    return


class Told:
    """What is told of exits and restarts, in order."""

    def __init__(self) -> None:
        self.exits: list[tuple[str, int]] = []
        self.restarts: list[Restart] = []
        self.lines: list[tuple[str, str]] = []

    def run(self, spec: LaunchSpec) -> dict[str, int]:
        return run_nodes(
            spec,
            lambda node, _, line: self.lines.append((node, line)),
            on_exit=lambda node, code: self.exits.append((node, code)),
            on_restart=self.restarts.append,
        )


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_node_that_fails_is_started_again_and_no_other(nodes_running: Maker, told: Told) -> None:
    fail_once = "if is_first and os.environ['DPWA_NAME'] == 'w2': sys.exit(3)\nprint('well')"
    codes = told.run(nodes_running(IMPORTS + FIRST_TIME + fail_once, restarts=3))
    assert codes == {"w1": 0, "w2": 0}
    assert told.restarts == [Restart("w2", 3, number=1, most=3, pause_s=0.1)]
    assert sorted(told.exits) == [("w1", 0), ("w2", 0)]
    assert sorted(told.lines) == [("w1", "well"), ("w2", "well")]


def test_a_node_that_keeps_failing_is_given_up(nodes_running: Maker, told: Told) -> None:
    code = IMPORTS + "print('again')\nos.kill(os.getpid(), signal.SIGKILL)"
    assert told.run(nodes_running(code, "w1", restarts=2)) == {"w1": -signal.SIGKILL}
    assert [(r.number, r.code, r.pause_s) for r in told.restarts] == [(1, -9, 0.1), (2, -9, 0.2)]
    assert told.exits == [("w1", -signal.SIGKILL)]
    assert len(told.lines) == 3


def test_who_fails_after_ctrl_c_is_not_started_again(nodes_running: Maker, told: Told) -> None:
    code = IMPORTS + (
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(7))\n"
        "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        told.run(nodes_running(code, "w1", restarts=5))
    assert told.restarts == []
    assert told.exits == [("w1", 7)]


def test_ctrl_c_ends_the_pause_before_a_restart(
    nodes_running: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 30.0)
    starts: list[str] = []
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_nodes(
            nodes_running(IMPORTS + "print('started'); sys.exit(1)", "w1", restarts=5),
            lambda node, stream, line: starts.append(line),
            on_restart=lambda restart: os.kill(os.getpid(), signal.SIGINT),
        )
    assert time.monotonic() - began < at_most(4)
    assert starts == ["started"]


@pytest.mark.parametrize("way", ["killed", pytest.param("leaves", marks=pytest.mark.slow)])
def test_a_node_that_is_killed_or_leaves_comes_back_and_is_merged_again(
    way: str, tmp_path: Path, told: Told
) -> None:
    program = Path(__file__).parents[1] / "support" / "programs" / "killed_once.py"
    config = tmp_path / "dpwa.yaml"
    config.write_text(json.dumps(config_of(2)))
    command = [sys.executable, str(program), str(tmp_path), way]
    assert told.run(LaunchSpec(command, config, ["w1", "w2"], restarts=1)) == {"w1": 0, "w2": 0}
    assert [(r.node, r.code) for r in told.restarts] == [("w2", 0 if way == "leaves" else -9)]
    blamed = (
        "w2",
        "dpwa launch: this node failed: its training ended at update 7 without finish()",
    )
    assert (blamed in told.lines) is (way == "leaves")
    assert [line for node, line in told.lines if node == "w2" and "life" in line] == [
        "life 1",
        "life 2",
    ]
    assert {node for node, line in told.lines if line == "met"} == {"w1", "w2"}


def test_a_node_whose_training_has_ended_badly_counts_as_failed_and_is_not_started_again(
    nodes_running: Maker, told: Told
) -> None:
    tells = "is_first and open(os.environ['DPWA_ENDING'], 'w').write('it is alone')\n"
    heals = "if os.environ['DPWA_NAME'] == 'w2': open(os.environ['DPWA_ENDING'], 'w').close()"
    codes = told.run(nodes_running(IMPORTS + FIRST_TIME + tells + heals, restarts=3))
    assert codes == {"w1": 1, "w2": 0}
    assert told.restarts == []
    assert told.lines == [("w1", "dpwa launch: this node failed: it is alone")]


@pytest.mark.parametrize(
    ("others", "codes"),
    [
        ("sys.exit(3)", {"w1": 0, "w2": 3, "w3": 3}),  # it had nobody to finish with
        ("tell('12')", {"w1": 0, "w2": 1, "w3": 1}),
        ("tell('finished together with no other node')", {"w1": 1, "w2": 1, "w3": 1}),
        ("name == 'w2' and sys.exit(3)", {"w1": 1, "w2": 3, "w3": 0}),
        ("tell('')", {"w1": 1, "w2": 0, "w3": 0}),
    ],
)
def test_a_node_that_finishes_alone_is_not_blamed_if_all_others_have_failed(
    others: str, codes: dict[str, int], nodes_running: Maker, told: Told
) -> None:
    code = IMPORTS + (
        "def tell(said): open(os.environ['DPWA_ENDING'], 'w').write(said)\n"
        "name = os.environ['DPWA_NAME']\n"
        "alone = 'finished together with no other node. Missing peers: w2'\n"
        f"tell(alone) if name == 'w1' else {others}"
    )
    assert told.run(nodes_running(code, "w1", "w2", "w3")) == codes
    blamed = {node for node, line in told.lines if "this node failed" in line}
    assert blamed == {node for node, code in codes.items() if code == 1}


BREAKS_OFF = """
import os
import numpy as np
from dpwa import DpwaConnection

is_broken = os.environ["DPWA_NAME"] == "w1"
with DpwaConnection(os.environ["DPWA_NAME"], os.environ["DPWA_CONFIG"]) as node:
    node.barrier(timeout_s=60)  # each has heard of the other
    while node.updates < (4 if is_broken else 9):
        node.update_send(np.ones(4), 1.0)
        node.update_wait(1.0)
    if is_broken:
        raise ZeroDivisionError
    node.finish(np.ones(4))
"""


@pytest.mark.parametrize("has_own_launcher", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_node_whose_only_peer_breaks_off_has_not_failed(
    has_own_launcher: bool, tmp_path: Path, told: Told
) -> None:
    config = tmp_path / "dpwa.yaml"
    config.write_text(json.dumps(config_of(2, timeout_ms=300)))
    command = [sys.executable, "-c", BREAKS_OFF]
    if has_own_launcher:  # that does not see how the peer ends
        elsewhere = {**os.environ, "DPWA_NAME": "w1", "DPWA_CONFIG": str(config)}
        with subprocess.Popen(command, env=elsewhere, stderr=subprocess.DEVNULL) as peer:
            codes = told.run(LaunchSpec(command, config, ["w2"], world=["w1", "w2"]))
        assert (peer.returncode, codes) == (1, {"w2": 0})
    else:
        assert told.run(LaunchSpec(command, config, ["w1", "w2"])) == {"w1": 1, "w2": 0}
    (said,) = [line for node, line in told.lines if node == "w2" and "DPWA-W051" in line]
    assert "Missing peers: w1 (has left: broken off by ZeroDivisionError at update 4)" in said


def test_a_node_that_leaves_after_a_signal_was_passed_on_has_not_failed(
    nodes_running: Maker, told: Told
) -> None:
    code = IMPORTS + (
        "open(os.environ['DPWA_ENDING'], 'w').write('3')\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        "os.kill(os.getppid(), signal.SIGUSR1)\ntime.sleep(60)"
    )
    assert told.run(nodes_running(code, "w1", restarts=1)) == {"w1": 0}
    assert (told.restarts, told.lines) == ([], [])


def test_a_node_is_not_started_again_into_a_run_that_is_over(
    nodes_running: Maker, told: Told
) -> None:
    code = IMPORTS + (
        "if os.environ['DPWA_NAME'] == 'w2': sys.exit(3)\n"
        "open(os.environ['DPWA_ENDING'], 'w').close()"
    )
    assert told.run(nodes_running(code, "w1", "w2", "w3", restarts=9)) == {
        "w1": 0,
        "w2": 3,
        "w3": 0,
    }
    assert 1 <= len(told.restarts) < 9
    assert told.lines == [
        ("w2", "dpwa launch: no restart of this node, because the other nodes have finished")
    ]
    assert sorted(told.exits) == [("w1", 0), ("w2", 3), ("w3", 0)]


def test_no_name_of_a_node_is_in_the_way_of_what_the_launcher_writes(
    nodes_running: Maker, told: Told
) -> None:
    names = (".", "..", "lock", "dpwa.yaml")
    tells = (
        "folder = os.path.dirname(os.environ['DPWA_ENDING'])\n"
        "print(os.path.exists(os.path.join(folder, 'lock')))\n"
        "open(os.environ['DPWA_ENDING'], 'w').write(os.environ['DPWA_NAME'] + ' ends badly')\n"
    )
    assert told.run(nodes_running(IMPORTS + tells, *names)) == dict.fromkeys(names, 1)
    blamed = [(name, f"dpwa launch: this node failed: {name} ends badly") for name in names]
    assert sorted(told.lines) == sorted([*blamed, *((name, "True") for name in names)])


def test_what_a_node_told_before_it_was_started_again_counts_no_more(
    nodes_running: Maker, told: Told
) -> None:
    fails = "if is_first: open(os.environ['DPWA_ENDING'], 'w').write('alone'); sys.exit(1)"
    codes = told.run(nodes_running(IMPORTS + FIRST_TIME + fails, "w1", restarts=1))
    assert codes == {"w1": 0}


def test_who_has_run_for_long_is_started_again_at_once_and_its_pauses_begin_anew() -> None:
    restarts = Restarts(most=9)
    pauses = []
    for lived_s in (1, 1, supervisor.STEADY_S, 1):
        restarts.began("w1", 100.0)
        restart = restarts.after("w1", 1, 100.0 + lived_s)
        assert restart is not None
        pauses.append(restart.pause_s)
    assert pauses == [0.1, 0.2, 0.0, 0.1]


def spares_of(launcher: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{launcher}/task").glob("*/children"):
        for pid in children.read_text().split():
            with suppress(OSError):  # it has ended meanwhile
                command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
                found += [int(pid)] if "spare.py" in command else []
    return found


FOUND_BESIDE_THE_SCRIPT = f"""
import os, time
from contextlib import suppress
from pathlib import Path

{inspect.getsource(spares_of)}

def wait_for(what):
    while not what():
        time.sleep(0.01)
    time.sleep(0.3)  # until the launcher has seen it, too
"""

FAILS_BESIDE_A_SPARE = f"""
import gc, json, multiprocessing, os, signal, sys
is_spare = "spare.py" in open("/proc/self/cmdline").read()
imported = "torch" in sys.modules
from beside_script import spares_of, wait_for
{FIRST_TIME}
if is_first and os.environ["DPWA_NAME"] == "w2":
    wait_for(lambda: os.path.exists("ended") or sys.argv[1] == "at-once")
    if sys.argv[1] != "without":
        wait_for(lambda: spares_of(os.getppid()))
    os.kill(os.getpid(), signal.SIGKILL)
assert os.path.isabs(__file__) and gc.isenabled()

def work(_):
    return sys.modules["__main__"].__file__.endswith("train.py")

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(work, [0]) == [True]
    node = os.environ["DPWA_NAME"], os.environ["DPWA_RANK"], sys.argv[1:]
    print(json.dumps([*node, is_spare, imported, sys.stdin.read()]))
"""


@pytest.fixture
def spec_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Return a maker of specs whose nodes run a script in the working folder, beside a spare.

    To import torch takes seconds of processor time, so a spare finds it only where it has to.
    Elsewhere a module that stands in for it has all that a spare uses.
    """
    monkeypatch.setattr(local, "SPARE_AFTER_S", 0.0)
    monkeypatch.chdir(tmp_path)
    Path("beside_script.py").write_text(FOUND_BESIDE_THE_SCRIPT)

    def make(code: str, *arguments: str, imports_torch: bool = False, **options: Any) -> LaunchSpec:
        Path("train.py").write_text(code)
        if not imports_torch:
            Path("torch.py").write_text(
                "zeros = range\nclass optim: SGD = list\nclass default_generator: seed = int\n"
            )
        return LaunchSpec(
            [sys.executable, "train.py", *arguments], tmp_path / "dpwa.yaml", ["w1", "w2"],
            environment={"MEETING_PLACE": str(tmp_path)}, restarts=2, spare=True, **options,
        )  # fmt: skip

    return make


@pytest.mark.parametrize(
    ("as_module", "imports_torch"),
    [
        (True, False),
        pytest.param(True, True, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_a_spare_process_becomes_the_node_that_failed(
    spec_of: Maker, told: Told, *, as_module: bool, imports_torch: bool
) -> None:
    spec = spec_of(FAILS_BESIDE_A_SPARE, "at-once", "--lr=.1", imports_torch=imports_torch)
    if as_module:
        spec = replace(spec, command=[sys.executable, "-m", "train", *spec.command[2:]])
    assert told.run(spec) == {"w1": 0, "w2": 0}
    found = {row[0]: row[1:] for row in map(json.loads, (line for _, line in told.lines))}
    assert found == {
        "w1": ["0", ["at-once", "--lr=.1"], False, False, ""],
        "w2": ["1", ["at-once", "--lr=.1"], True, True, ""],
    }
    assert spares_of(os.getpid()) == []


@pytest.mark.parametrize(("again_s", "ready"), [(30.0, "without"), (0.0, "with")])
def test_a_spare_process_that_has_ended_is_replaced_after_a_while(
    spec_of: Maker, told: Told, monkeypatch: pytest.MonkeyPatch, again_s: float, ready: str
) -> None:
    monkeypatch.setattr(local, "SPARE_AGAIN_S", again_s)
    ends_once = "import os, sys\nif not os.path.exists('ended'): open('ended', 'w'); sys.exit(3)\n"
    Path("spare.py").write_text(ends_once + local.SPARE_SCRIPT.read_text())
    monkeypatch.setattr(local, "SPARE_SCRIPT", Path("spare.py").absolute())
    assert told.run(spec_of(FAILS_BESIDE_A_SPARE, ready)) == {"w1": 0, "w2": 0}
    was_spare = {row[0]: row[3] for row in map(json.loads, (line for _, line in told.lines))}
    assert was_spare == {"w1": False, "w2": ready == "with"}
    assert len(told.restarts) == 1


FAILS_THREE_TIMES = """
import json, os, signal, sys
import numpy as np
from beside_script import spares_of, wait_for
if os.environ["DPWA_NAME"] == "w2":
    with open("lives", "a+") as lives:
        is_spare = "spare.py" in open("/proc/self/cmdline").read()
        row = is_spare, os.getpgid(0) == os.getpid(), np.random.random()
        lives.write(json.dumps(row) + "\\n")
        lives.seek(0)
        number = len(lives.readlines())
    if number < 4:
        wait_for(lambda: set(spares_of(os.getppid())) - {os.getpid()})
        os.kill(os.getpid(), signal.SIGKILL)
    print(sys.stdin.read() + "is over")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others do not adopt processes")
def test_a_spare_process_forks_the_next_one_so_that_all_is_imported_once(
    spec_of: Maker, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = "open('imports', 'a').write('x')\n"
    Path("spare.py").write_text(counts + local.SPARE_SCRIPT.read_text())
    monkeypatch.setattr(local, "SPARE_SCRIPT", Path("spare.py").absolute())
    monkeypatch.setattr(local, "SPARE_AFTER_S", 2.0)
    spec = replace(spec_of(FAILS_THREE_TIMES), restarts=3)
    before = descriptors()
    assert told.run(spec) == {"w1": 0, "w2": 0}
    assert descriptors() == before
    lives = [json.loads(line) for line in Path("lives").read_text().splitlines()]
    assert [row[:2] for row in lives] == [[False, True], *[[True, True]] * 3]
    assert len({row[2] for row in lives}) == 4
    assert told.lines == [("w2", "is over")]
    assert Path("imports").read_text() == "x"
    assert spares_of(os.getpid()) == []


DRAWS = """
import json, multiprocessing, os, random, signal, tempfile, uuid
import numpy as np
import torch
from beside_script import spares_of, wait_for
generator = torch.utils.data.DataLoader(range(1000), shuffle=True)
drawn = {
    "torch's seed": torch.initial_seed(),
    "torch": torch.rand(1).item(),
    "another generator": torch.Generator().seed(),
    "shuffled": int(next(iter(generator))),
    "numpy": np.random.random(),
    "numpy's newer": np.random.default_rng().random(),
    "random": random.random(),
    "key": multiprocessing.current_process().authkey.hex(),
    "name of a file": next(tempfile._get_candidate_names()),
    "name": str(uuid.uuid1()),
}
torch.manual_seed(7), np.random.seed(7), random.seed(7)
seeded = torch.rand(1).item(), np.random.random(), random.random()
with open("lives-" + os.environ["DPWA_NAME"], "a+") as lives:
    lives.write(json.dumps([drawn, seeded]) + "\\n")
    lives.seek(0)
    number = len(lives.readlines())
if number < 3:
    wait_for(lambda: set(spares_of(os.getppid())) - {os.getpid()})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_forked_process_draws_is_renewed() -> None:
    import torch

    process = multiprocessing.current_process()
    before = np.random.get_state(), process.authkey
    drawn = []
    with torch.random.fork_rng():
        for _ in range(2):
            torch.manual_seed(7)
            np.random.seed(7)
            spare.renew()
            drawn.append((torch.rand(1).item(), np.random.random(), process.authkey))
    np.random.set_state(before[0])
    process.authkey = before[1]
    assert all(one != other for one, other in zip(*drawn, strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others are not forked")
def test_forked_processes_draw_as_if_each_had_been_started(spec_of: Maker, told: Told) -> None:
    assert told.run(replace(spec_of(DRAWS, imports_torch=True), names=["w1"])) == {"w1": 0}
    lives = [json.loads(line) for line in Path("lives-w1").read_text().splitlines()]
    assert len(lives) == 3
    for kind in lives[0][0]:
        if kind != "shuffled":  # one of 1,000
            assert len({drawn[kind] for drawn, _ in lives}) == 3, kind
    assert len({drawn["shuffled"] for drawn, _ in lives}) > 1
    assert len({tuple(seeded) for _, seeded in lives}) == 1


SEES_A_SPARE = """
import os, time
from beside_script import spares_of, wait_for
wait_for(lambda: spares_of(os.getppid()))
print("there it is")
"""


def test_a_spare_process_that_nobody_needed_ends_with_the_run(spec_of: Maker, told: Told) -> None:
    before = descriptors()
    assert told.run(spec_of(SEES_A_SPARE)) == {"w1": 0, "w2": 0}
    assert descriptors() == before
    assert len(told.lines) == 2
    assert spares_of(os.getpid()) == []


def test_ctrl_c_ends_the_spare_process_before_the_nodes(spec_of: Maker) -> None:
    left: list[list[int]] = []

    def press(node: str, stream: str, line: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_nodes(
            spec_of(SEES_A_SPARE + "time.sleep(60)"),
            press,
            on_signal=lambda *_: left.append(spares_of(os.getpid())),
        )
    assert left[0] == []
