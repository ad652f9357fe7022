"""Pairs of an algorithm and what people do to a training loop, each judged by its values.

Usage: pairs.py                          all pairs of an algorithm and a feature
       pairs.py --random 300 --seed S    pairs and triples that the seed draws
       pairs.py together clip scaler     one cell
       pairs.py --table                  write the table of docs/algorithms.md

The nodes of a cell are threads of this process that train a small regression, or processes, where
something happens to one of them or a node is more than one. A cell is right if
the nodes end with the same parameters, these are the mean of what the nodes had, the regression was
learned about as fast as by averaged gradients, and (where nodes are equal after each step) all have
been so bit by bit, and equal to a reference that averages exactly without dpwa. A cell that is
refused raises the same sentence with the same code on all nodes. Where a section of the docs says
that values may differ, all other values are equal, and those are bounded. Anything else is a
finding. Prints each finding with the command that plays it
again; exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import logging
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from cases.loops import ITEMS, MAX_WAIT_S, Board, Exact, Plan, Told, Training, connected, train
from support.keys import key_folders
from support.nodes import config_of, eventually
from support.ports import ports_in_a_row
from support.processes import PROGRAMS, Program, ended, shared_fork_servers

from dpwa.errors import DpwaError

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
BEGIN, END = "<!-- table of tests/campaigns/pairs.py -->", "<!-- end of the table -->"

# The rows

RULES: dict[str, dict[str, Any]] = {
    "gossip": {},
    "interpolate": {"merge": "interpolate"},
    "clock": {"interpolation": "clock"},
    "loss": {"interpolation": "loss"},
    "leader": {"interpolation": "leader"},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    **RULES,
    "together": {"algorithm": "together"},
    # Each of two equal nodes may lead by what it knows, so that neither jumps in a period.
    "lsgd": {"algorithm": "lsgd", "lsgd": {"local_period": 4, "global_period": 4}},
    "symmetric": {"algorithm": "symmetric"},
    "push_sum": {"algorithm": "push_sum"},
    "outer": {"algorithm": "outer", "outer": {"period": 2}},
    "noloco": {"algorithm": "noloco", "noloco": {"period": 2}},
    "local": {"algorithm": "local", "local": {"period": 2}},
    "elastic": {"algorithm": "elastic", "elastic": {"period": 2}},
    "AllReduceSGD": {},
    "AllReduceEA": {},
    "EASGD": {},
}
SYNCHRONOUS = ("AllReduceSGD", "AllReduceEA", "EASGD")
CENTERS = ("AllReduceEA", "EASGD")
TRANSACTIONS = ("symmetric", "push_sum", "outer")
WHOLE = (*TRANSACTIONS, "lsgd", "noloco", "local", "elastic")  # they need whole snapshots
PARAMETERS = (*RULES, *WHOLE)  # they exchange parameters, not gradients
COLUMNS = {  # of the table
    "gossip": tuple(RULES),
    **{name: (name,) for name in ALGORITHMS if name not in (*RULES, *CENTERS)},
    "AllReduceEA, EASGD": CENTERS,
}


# The columns

Change = Callable[[Plan], None]


@dataclass(frozen=True)
class Feature:
    """What people do to a loop.

    Attributes:
        text: for the table.
        change: of the plan.
        slot: of two features with the same one, a cell has one.
        excludes: other features that make no sense beside it.
        only: the features that go with it, if not all others do.
        keeps_pace: whether all nodes do.
        ends_at_mean: whether `finish` leaves the mean of what the nodes had.
        refused: the code with which an algorithm refuses it, by algorithm.
        unequal: the section that says which values may differ, by algorithm.
        differs: which ones: those of the frozen "head", or "told": all, if `finish` says so.
        without: algorithms with which it makes no sense.
        needs: a library, without which its cells are skipped.
    """

    text: str
    change: Change
    slot: str = ""
    excludes: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    keeps_pace: bool = True
    ends_at_mean: bool = True
    refused: Mapping[str, str] = field(default_factory=dict)
    unequal: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""
    without: tuple[str, ...] = ()
    needs: str = ""


def setting(**settings: Any) -> Change:
    """Change settings of all nodes."""
    return lambda plan: plan.settings.update(settings)


def attribute(**values: Any) -> Change:
    """Change fields of the plan."""

    def change(plan: Plan) -> None:
        for name, value in values.items():
            setattr(plan, name, value)

    return change


def part(name: str, **settings: Any) -> Change:
    """Give the module a part."""

    def change(plan: Plan) -> None:
        plan.makes.add(name)
        plan.settings.update(settings)

    return change


def extra(what: Callable[[Any, int], None]) -> Change:
    """Do something after each step."""
    return lambda plan: plan.extras.append(what)


def all_reduce_now_and_then(driver: Any, step: int) -> None:
    """Sum a value up over all nodes every fifth step, and check the sum."""
    if step % 5 == 4:
        value = torch.full((3,), float(driver.index + 1))
        driver.collectives.all_reduce(value, "sum")
        count = len(driver.collectives.peers) + 1
        assert value.tolist() == [count * (count + 1) / 2] * 3, value


def with_keys(plan: Plan) -> None:
    """Have a key for each node."""
    folder = tempfile.TemporaryDirectory()
    names = ["w1", "w2", "w3"]  # another feature may add the last one
    folders = key_folders(Path(folder.name), *names)
    plan.settings["security"] = "curve"

    plan.kept.append(folder)

    def own(_: Plan, index: int) -> dict[str, Any]:
        return {"keys": str(folders[f"w{index + 1}"].path)}

    plan.per_node.append(own)


def joining(plan: Plan) -> None:
    """Have nodes find each other at the address of the first, without a list."""

    def own(plan: Plan, index: int) -> dict[str, Any]:
        first, *_ = nodes = plan.settings["nodes"]
        address = "tcp://127.0.0.1:{}"
        return {
            "nodes": [],
            "listen": address.format(nodes[index]["port"]),
            # With its name, by which a key is known.
            "join": [f"{first['name']}@{address.format(first['port'])}"] if index else [],
        }

    plan.per_node.append(own)


def codec_of_a_link(plan: Plan) -> None:
    """Have the first two nodes send bfloat16 to each other."""
    plan.settings.update(transport="tcp", links=[{"between": ["w1", "w2"], "codec": "bf16"}])


def fault(kind: str, **settings: Any) -> Change:
    """Have something happen to the last of three processes."""

    def change(plan: Plan) -> None:
        plan.fault, plan.nodes, plan.steps = kind, 3, 100
        plan.pause_s = lambda *_: 0.02
        plan.settings.update(settings)

    return change


def three(plan: Plan) -> None:
    """Add a node."""
    plan.nodes = 3


def slow_last(index: int, _: int) -> float:
    """Sleep longer on the second node."""
    return 0.004 * (index == 1)


def refused(code: str, *algorithms: str) -> dict[str, str]:
    """Name the code with which these algorithms refuse a feature."""
    return dict.fromkeys(algorithms, code)


TENSORS = "pytorch.md#what-is-gossiped"
ENDS = "state.md#how-a-run-ends"
INEXACT = refused("E217", *TRANSACTIONS)
FROZEN_AT = 20  # the step at which a layer is frozen
UNEVEN = frozenset({"collectives", "uneven_steps", "late"})
SETTINGS = frozenset(
    {
        *("tcp", "shm", "fp16", "bf16", "int8", "link_codec", "fraction", "robust", "quarantine"),
        *("guard_off", "lr_spread", "own_state", "peers_state"),
    }
)
TRAINERS = {
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "trainer": "the Trainer of Transformers",
}
BESIDE_RANKS = SETTINGS | {
    *("step", "attach", "wrapped", "clip", "clip_value", "adamw", "scheduler", "float64")
}

FEATURES: dict[str, Feature] = {
    "plain": Feature("nothing more", lambda _: None),
    "step": Feature("`gossip.step(loss)`", attribute(loop="step"), "loop", without=SYNCHRONOUS),
    "attach": Feature("`gossip.attach`", attribute(loop="attach"), "loop", without=SYNCHRONOUS),
    "wrapped": Feature("`GossipOptimizer`", attribute(loop="wrapped"), "loop", without=SYNCHRONOUS),
    "three": Feature("three nodes", three),
    "autocast": Feature("mixed precision (autocast to bfloat16)", attribute(autocasts=True)),
    "scaler": Feature("`GradScaler`", attribute(scales=True)),
    "accumulate": Feature("accumulation in `no_sync`", attribute(micro=3), "micro"),
    "accumulate_bare": Feature(
        "accumulation without `no_sync`", attribute(micro=3, has_no_sync=False), "micro"
    ),
    "clip": Feature("clipping by norm", attribute(clip=("norm", 0.3)), "clip"),
    "clip_value": Feature("clipping by value", attribute(clip=("value", 0.05)), "clip"),
    "two_optimizers": Feature("two optimizers", attribute(has_two_optimizers=True)),
    "adamw": Feature("AdamW", attribute(optimizer="AdamW"), "optimizer"),
    "schedule_free": Feature(
        "a schedule-free optimizer",
        attribute(optimizer="ScheduleFree"),
        "optimizer",
        without=CENTERS,
    ),
    "scheduler": Feature("a scheduler", attribute(has_scheduler=True)),
    "freeze": Feature(
        "a layer that you freeze during the run",
        attribute(frozen=lambda step: step >= FROZEN_AT),
        "frozen",
        unequal=dict.fromkeys(PARAMETERS, TENSORS),
        differs="head",
    ),
    "unfreeze": Feature(
        "a layer that you unfreeze during the run",
        attribute(frozen=lambda step: step < 10),
        "frozen",
    ),
    "tied": Feature("tied parameters", part("tied")),
    "unused": Feature("unused parameters", part("unused")),
    "sparse": Feature(
        "sparse gradients",
        part("sparse"),
        excludes={"clip", "clip_value", "adamw"},  # torch has none for sparse gradients
        refused={"AllReduceSGD": "E124"},
    ),
    "batch_norm": Feature("batch norm with `buffers: average`", part("batch_norm"), "norm"),
    "batch_norm_keep": Feature(
        "batch norm with `buffers: keep`", part("batch_norm", buffers="keep"), "norm"
    ),
    "float64": Feature("float64", attribute(dtype=torch.float64), "dtype"),
    "bfloat16": Feature("bfloat16", attribute(dtype=torch.bfloat16), "dtype"),
    "skips": Feature("a step that all nodes leave out", attribute(skips=lambda s: s % 9 == 5)),
    "tcp": Feature("`transport: tcp`", setting(transport="tcp"), "transport"),
    "shm": Feature("`transport: shm`", setting(transport="shm"), "transport"),
    "fp16": Feature(
        "`codec: fp16`", setting(codec="fp16", transport="tcp"), "transport", refused=INEXACT
    ),
    "bf16": Feature(
        "`codec: bf16`", setting(codec="bf16", transport="tcp"), "transport", refused=INEXACT
    ),
    "int8": Feature(
        "`codec: int8`", setting(codec="int8", transport="tcp"), "transport", refused=INEXACT
    ),
    "link_codec": Feature("a codec on one link", codec_of_a_link, "transport", refused=INEXACT),
    "fraction": Feature(
        "`fraction` below 1",
        setting(fraction=0.3, transport="tcp"),
        "transport",
        refused=refused("E178", "together", *WHOLE),
        without=SYNCHRONOUS,
    ),
    "collectives": Feature(
        "collectives between rounds", extra(all_reduce_now_and_then), excludes=UNEVEN
    ),
    "uneven_steps": Feature(
        "fewer steps on one node",
        attribute(short_steps=9),
        excludes=UNEVEN,
        keeps_pace=False,
        ends_at_mean=False,
    ),
    "uneven_speeds": Feature("a slower node", attribute(pause_s=slow_last), keeps_pace=False),
    "late": Feature(
        "a node that starts late",
        attribute(late_steps=15),
        excludes=UNEVEN,
        keeps_pace=False,
        ends_at_mean=False,
        without=SYNCHRONOUS,  # which begin when all are there
    ),
    "sampler": Feature(
        "`SharedSampler`",
        attribute(epochs=2),
        excludes=UNEVEN | {"accumulate", "accumulate_bare"},
        keeps_pace=False,
        ends_at_mean=False,
        without=SYNCHRONOUS,  # whose sums need nodes that wait in the sampler
    ),
    "robust": Feature(
        "`robust: clip`",
        setting(robust="clip"),
        ends_at_mean=False,
        refused=refused("E217", "together", *TRANSACTIONS),
        unequal=dict.fromkeys(PARAMETERS, ENDS),
        differs="told",
        without=SYNCHRONOUS,
    ),
    "quarantine": Feature(
        "`quarantine_s`",
        setting(quarantine_s=60),
        refused=refused("E217", "together", "lsgd", "outer", "noloco", "local", "elastic"),
        without=SYNCHRONOUS,
    ),
    "guard_off": Feature("`guard: off`", setting(guard="off")),
    "lr_spread": Feature(
        "`lr_spread`",
        setting(lr_spread="linear"),
        refused=refused("E217", "together"),
        without=SYNCHRONOUS,
    ),
    "curve": Feature("`security: curve`", with_keys),
    "join": Feature("`join` instead of a list", joining),
    "own_state": Feature("`initial_state: own`", setting(initial_state="own"), "state"),
    "peers_state": Feature("`initial_state: peers`", setting(initial_state="peers"), "state"),
    "leader_loss": Feature("`leader_loss`", attribute(chooses_leaders=True), without=SYNCHRONOUS),
    **{
        name: Feature(
            text,
            fault(kind),
            "fault",
            excludes=UNEVEN | {"uneven_speeds", "curve", "join", "three", "own_state", "sampler"},
            keeps_pace=False,
            ends_at_mean=False,
        )
        for name, text, kind in [
            ("kill", "a kill with a restart", "kill"),
            ("kill_checkpoint", "a kill with a restart from a checkpoint", "kill_checkpoint"),
            ("stop", "a process that stops for 1.5 s", "stop"),
            ("terminate", "SIGTERM", "terminate"),
            ("spare", "a kill with `--spare`", "spare"),
        ]
    },
    **{
        name: Feature(
            text,
            attribute(inside=name),
            "inside",
            only=BESIDE_RANKS,
            keeps_pace=False,
            ends_at_mean=False,
            refused=codes,
            without=SYNCHRONOUS,
        )
        for name, text, codes in [
            ("ddp", "nodes of two DistributedDataParallel ranks", refused("E308", "together")),
            (
                "fsdp",
                "nodes of two FSDP2 ranks",
                refused("E308", "together") | refused("E132", *TRANSACTIONS, "lsgd"),
            ),
        ]
    },
    **{
        name: Feature(
            text,
            attribute(inside=name, loop="step"),
            "inside",
            only=SETTINGS | {"adamw"},
            keeps_pace=False,
            ends_at_mean=False,
            without=SYNCHRONOUS,
            needs="transformers" if name == "trainer" else name,
        )
        for name, text in TRAINERS.items()
    },
    "finish_twice": Feature("`finish` twice", attribute(finishes=2), without=SYNCHRONOUS),
}
REFUSED_PAIRS = {
    **{frozenset({each, "lr_spread"}): "E047" for each in ("attach", *TRAINERS)},  # these attach
    frozenset({"robust", "fraction"}): "E178",
    frozenset({"join", "lr_spread"}): "E217",
    frozenset({"join", "link_codec"}): "E178",  # a link is between nodes of the list
    frozenset({"fraction", "fsdp"}): "E132",
}


# A cell


@dataclass
class Verdict:
    """How a cell has ended.

    Attributes:
        kind: right, refused, documented, meaningless, skipped or finding.
        text: the sentence, or what is wrong.
        warned: codes of warnings.
    """

    kind: str
    text: str = ""
    warned: list[str] = field(default_factory=list)
    seconds: float = 0.0


def plan_of(algorithm: str, features: tuple[str, ...], seed: int) -> Plan:
    """Make the plan of a cell."""
    plan = Plan({**ALGORITHMS[algorithm]}, kind=algorithm if algorithm in SYNCHRONOUS else "")
    if algorithm == "lsgd":  # losses travel every 2 ms
        plan.pause_s = lambda *_: 0.002
    for name in features:
        FEATURES[name].change(plan)
    nodes = config_of(plan.nodes)
    if plan.ranks > 1:  # of which each takes the next port
        port = ports_in_a_row(plan.ranks * plan.nodes)
        for index, node in enumerate(nodes["nodes"]):
            node["port"] = port + plan.ranks * index
    plan.settings = {"log_level": "warning", **nodes, "seed": seed, **plan.settings}
    return plan


def on_threads(count: int, task: Callable[[int], Any], board: Board) -> list[Any]:
    """Run a task for each node; return what each has returned or raised."""
    found: list[Any] = [None] * count

    def run(index: int) -> None:
        try:
            found[index] = task(index)
        except Exception as error:  # noqa: BLE001
            found[index] = error
            board.barrier.abort()
            board.steps[index] = 1 << 30

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 4 * MAX_WAIT_S
    for index, thread in enumerate(threads):
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            frames = sys._current_frames()[thread.ident or 0]
            stack = "".join(traceback.format_stack(frames))
            found[index] = TimeoutError(f"hangs:\n{stack}")
            board.barrier.abort()
    return found


def reference_of(features: tuple[str, ...], algorithm: str) -> list[Any]:
    """Train the same without dpwa, with gradients (or the center) averaged exactly."""
    kind = algorithm if algorithm in ("AllReduceEA", "EASGD") else ""
    return _reference(tuple(sorted(features)), kind)


@functools.cache
def _reference(features: tuple[str, ...], kind: str) -> list[Any]:
    plan = plan_of("gossip", features, 7)
    plan.extras, plan.short_steps, plan.late_steps, plan.epochs = [], 0, 0, 0
    plan.loop = "send"
    plan.pause_s = lambda *_: 0.0
    board = Board(plan.nodes)

    def task(index: int) -> Told:
        training = Training(plan)
        return train(plan, training, Exact(training, index, board, kind), board)

    return on_threads(plan.nodes, task, board)


def trained(plan: Plan, algorithm: str) -> list[Any]:
    """Run the nodes of a cell; return what each has told, or raised."""
    board = Board(plan.nodes)

    def task(index: int) -> Told:
        if index == plan.nodes - 1 and plan.late_steps:
            eventually(lambda: board.steps[0] >= plan.late_steps, MAX_WAIT_S)
        training = Training(plan)
        with connected(plan, training, index, plan.settings) as driver:
            told = train(plan, training, driver, board)
            if plan.is_lockstep:
                board.meet()
            return told

    return on_threads(plan.nodes, task, board)


def play(
    algorithm: str, features: tuple[str, ...], seed: int = 7, spoil: Change = lambda _: None
) -> Verdict:
    """Play a cell, and judge it; `spoil` makes it wrong, to see that this is found."""
    began = time.monotonic()
    for library in filter(None, (FEATURES[name].needs for name in features)):
        if find_spec(library) is None:
            return Verdict("skipped", f"needs {library}, which is not installed")
    reference = reference_of(features, algorithm)
    if wrong := [each for each in reference if isinstance(each, Exception)]:
        return Verdict("meaningless", f"torch alone: {wrong[0]!r}"[:200])
    plan = plan_of(algorithm, features, seed)
    spoil(plan)
    with warnings_noted() as warned:
        if plan.are_processes:
            told = trained_by_processes(algorithm, features, plan, seed)
        else:
            told = trained(plan, algorithm)
    verdict = judged(algorithm, features, plan, told, reference)
    verdict.warned, verdict.seconds = sorted(set(warned)), time.monotonic() - began
    return verdict


FAULT_AT = 20  # steps of the last node


def trained_by_processes(
    algorithm: str, features: tuple[str, ...], plan: Plan, seed: int
) -> list[Any]:
    """Run the nodes of a cell as processes; return what each has told, or raised."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if plan.fault == "spare":
            return _launched(algorithm, features, plan, seed, folder)
        begun = functools.partial(_begun, algorithm, features, plan, seed, folder)
        nodes = [f"w{index + 1}" for index in range(plan.nodes)]
        told = [(name, rank) for name in nodes for rank in range(plan.ranks)]
        processes = {each: begun(*each) for each in told}
        stack.enter_context(ended(*processes.values()))
        if plan.fault:
            last = told[-1]
            harmed = _harm(plan.fault, processes[last])
            if harmed and plan.fault.startswith("kill"):
                processes[last] = begun(*last)
                stack.enter_context(ended(processes[last]))
            elif harmed and plan.fault == "terminate":
                told.remove(last)
        said = {each: processes[each].communicate(timeout=4 * MAX_WAIT_S) for each in told}
        return [_told(Path(folder), each, processes[each], said[each][1]) for each in told]


def _begun(
    algorithm: str,
    features: tuple[str, ...],
    plan: Plan,
    seed: int,
    folder: str,
    name: str,
    rank: int,
) -> Program:
    environment = {}
    if plan.fault == "kill_checkpoint":
        environment = {
            "DPWA_INITIAL_STATE": "own",
            "DPWA_CHECKPOINT__DIR": folder,
            "DPWA_CHECKPOINT__EVERY_STEPS": "10",
        }
    program = str(PROGRAMS / ("pair_trainer.py" if plan.inside in TRAINERS else "pair_node.py"))
    cell = [algorithm, ",".join(features), str(seed), json.dumps(plan.settings["nodes"])]
    return Program([program, *cell, folder, name, str(rank)], **environment)


def _launched(
    algorithm: str, features: tuple[str, ...], plan: Plan, seed: int, folder: str
) -> list[Any]:
    """Have `dpwa launch --spare` start the nodes, the last of which kills itself once."""
    launch = ["launch", "-n", str(plan.nodes), "--spare", "--restart", "on-failure"]
    cell = [algorithm, ",".join(features), str(seed), json.dumps(plan.settings["nodes"])]
    nodes = [sys.executable, str(PROGRAMS / "pair_node.py"), *cell, folder, "", "0"]
    launcher = Program([str(PROGRAMS / "dpwa_command.py"), *launch, "--", *nodes])
    with ended(launcher):
        said = "".join(launcher.communicate(timeout=4 * MAX_WAIT_S))
    names = [(f"w{index + 1}", 0) for index in range(plan.nodes)]
    return [_told(Path(folder), each, launcher, said) for each in names]


def _harm(fault: str, victim: Program) -> bool:
    """Do something to a node when it has taken some steps; return whether it took so many."""
    if not any(int(line) >= FAULT_AT for line in victim.stdout):
        return False
    if fault.startswith("kill"):
        victim.kill()
        victim.wait()
    elif fault == "stop":
        victim.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        victim.send_signal(signal.SIGCONT)
    else:
        victim.terminate()
    return True


def _told(folder: Path, each: tuple[str, int], process: Program, errors: str) -> Any:
    """Return what a process has left, or why it has left nothing."""
    file = folder / TOLD.format(*each)
    if process.returncode != 0 or not file.exists():
        return RuntimeError(f"{each} ends with {process.returncode}: {errors[-1500:]}")
    return torch.load(file, weights_only=False)


def _wait_for_the_killed_one(driver: Any, step: int) -> None:
    """Have the others not end before a node that was killed is back, however busy the machine."""
    if step != 3 * FAULT_AT:
        return
    node = getattr(driver.collectives, "connection", driver.collectives).node
    eventually(lambda: all(link.value == "up" for link in node.links.values()), MAX_WAIT_S)


def _kill_once(mark: Path, _: Any, step: int) -> None:
    """Kill this process at a step; the next one must be the spare one of the launcher."""
    if not mark.exists() and step >= FAULT_AT:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    elif mark.exists() and b"spare.py" not in Path("/proc/self/cmdline").read_bytes():
        raise RuntimeError("this process is not the spare one")


TOLD = "{}-{}.pt"  # of a node's name, and a rank


def node_of_a_cell() -> tuple[Plan, int, Callable[[Any], None]]:
    """Return the plan of the cell that this process is a node of, its index, and where to tell."""
    algorithm, features, seed, nodes, folder, name, rank = sys.argv[1:]
    name = name or os.environ["DPWA_NAME"]  # of a launcher's node
    torch.set_num_threads(1)
    plan = plan_of(algorithm, tuple(features.split(",")), int(seed))
    plan.settings["nodes"], plan.rank = json.loads(nodes), int(rank)
    file = Path(folder) / TOLD.format(name, rank)
    if plan.fault in ("kill", "kill_checkpoint", "spare"):
        plan.extras.append(_wait_for_the_killed_one)
    if plan.fault == "spare" and name == f"w{plan.nodes}":
        plan.extras.append(functools.partial(_kill_once, Path(folder) / "killed"))
    return plan, int(name.removeprefix("w")) - 1, functools.partial(torch.save, f=file)


@contextmanager
def warnings_noted() -> Iterator[list[str]]:
    """Note the codes of all warnings, instead of printing them."""
    codes: list[str] = []

    class Noted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                found = re.findall(r"DPWA-(\w+)\]", record.getMessage())
                codes.extend(found or [record.getMessage()[:80]])

    logger, handler = logging.getLogger("dpwa"), Noted()
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield codes
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def judged(
    algorithm: str, features: tuple[str, ...], plan: Plan, told: list[Any], reference: list[Any]
) -> Verdict:
    """Say what a cell is."""
    raised = [each for each in told if isinstance(each, BaseException)]
    if raised:
        return _refusal(told, raised)
    exact = plan.settings.get("algorithm") == "together" or algorithm in SYNCHRONOUS
    wrong = list(_wrong(algorithm, features, plan, told, reference, exact))
    return Verdict("finding", "; ".join(wrong)) if wrong else Verdict("right")


def _refusal(told: list[Any], raised: list[BaseException]) -> Verdict:
    said = [str(each).removeprefix("rank 0 of the model's process group: ") for each in raised]
    sentences = {re.sub(r"\bw\d\b", "w_", each) for each in said}
    first = raised[0]
    is_clear = isinstance(first, DpwaError) and "DPWA-E" in str(first)
    if len(raised) == len(told) and len(sentences) == 1 and is_clear:
        return Verdict("refused", str(first))
    real = [each for each in raised if not isinstance(each, threading.BrokenBarrierError)]
    lines = ["".join(traceback.format_exception(each))[-1500:] for each in real or raised]
    return Verdict("finding", f"{len(raised)} of {len(told)} raise: " + "\n".join(lines))


# The checks

END_SHARE = 1e-5  # of the length of the parameters, which `finish` may leave between nodes
FAR_SHARE = 0.1  # of that length, which values that may differ are apart at most
HEAD = 10  # parameters of the last layer
MIN_SHARE = 0.4  # of the steps of averaged gradients that training is ahead by


def _wrong(
    algorithm: str,
    features: tuple[str, ...],
    plan: Plan,
    told: list[Told],
    reference: list[Told],
    is_exact: bool,
) -> Iterator[str]:
    quiet = all(FEATURES[name].keeps_pace for name in features)
    # Where only steps of the optimizer are updates, one that was left out is made again.
    repeats = plan.loop in ("attach", "wrapped") and any(map(plan.skips, range(plan.steps)))
    first = told[0]
    near = 0.0 if is_exact else END_SHARE * float(first.after.norm())
    differs = {FEATURES[name].differs for name in features if algorithm in FEATURES[name].unequal}
    for index, each in enumerate(told):
        yield from _apart_at_the_end(f"w{index + 1}", each, first, differs, near)
        if plan.settings.get("buffers") != "keep" and not torch.equal(each.buffers, first.buffers):
            apart = float((each.buffers - first.buffers).abs().max())
            if apart > near and algorithm not in SYNCHRONOUS:
                yield f"w{index + 1}'s buffers end {apart:.2g} apart from w1's"
        for report in each.reports:
            if plan.fault and len(report.took_part) == len(told) - 1 and not report.problem:
                continue  # and missed those that have ended before
            if (report.problem and "told" not in differs) or report.missed:
                yield f"w{index + 1}: finish says {report}"
        if plan.has_scheduler and quiet and not repeats and each.rates != reference[0].rates:
            yield f"w{index + 1}: rates {each.rates} instead of {reference[0].rates}"
        # A late node adopts a state during an update. This state may be that of the last step.
        may_be_more = int(algorithm == "together" and plan.late_steps > 0 and each is told[-1])
        if not 0 <= each.updates - plan.steps_of(index) <= may_be_more and not plan.epochs:
            yield f"w{index + 1} has made {each.updates} updates of {plan.steps_of(index)}"
    items = [(epoch, item) for epoch in range(plan.epochs) for item in range(ITEMS)]
    if (seen := sorted(each for one in told for each in one.seen)) != items:
        yield f"items {seen} were seen in place of each once"
    if is_exact and quiet and algorithm not in ("AllReduceEA", "EASGD"):
        yield from _apart_in_steps(told, plan)
    if is_exact and quiet and plan.loop == "send":
        yield from _unlike(first, reference[0], plan)
    if not is_exact:
        shared = slice(-HEAD) if "head" in differs else slice(None)
        yield from _unlike_the_mean(features, plan, told, shared)
        if not any(each.merges for each in told):
            yield "nothing was merged"
    elif (
        algorithm == "together"
        and not plan.late_steps  # one that is late may come when few steps are left
        and all(len(pace) < 2 for _, pace, _ in first.rows)
    ):
        yield "w1 was never in sync with another node"
    yield from _slow(algorithm, plan, told, reference, differs)


def _apart_at_the_end(
    name: str, one: Told, first: Told, differs: set[str], near: float
) -> Iterator[str]:
    """Compare what a node ends with; values that may differ are bounded, too."""
    gap = (one.after - first.after).abs()
    if not float(gap.max()) <= FAR_SHARE * float(first.after.norm()):  # nor not a number
        yield f"{name} ends {float(gap.max()):.2g} apart from w1"
    elif "told" in differs and any(report.problem for report in one.reports):
        return
    shared = gap[:-HEAD] if "head" in differs else gap
    if (apart := float(shared.max())) > near:
        yield f"{name} ends {apart:.2g} apart from w1"
    if "head" in differs:  # a process that was started again has no rows of its first steps
        frozen = next(values for step, _, values in one.rows if step > FROZEN_AT)
        if not torch.equal(one.after[-HEAD:], frozen[-HEAD:]):
            yield f"{name}'s frozen layer has changed"


def _apart_in_steps(told: list[Told], plan: Plan) -> Iterator[str]:
    everyone = len(told)
    for number, rows in enumerate(zip(*(each.rows for each in told), strict=True)):
        paces = {len(pace) for _, pace, _ in rows} - {0, everyone}
        if paces:
            yield f"out of sync after step {number + 1}: {[pace for _, pace, _ in rows]}"
            return
        if number == 0 and plan.loop != "send":
            continue  # the first step is each node's own
        if any(not torch.equal(values, rows[0][2]) for _, _, values in rows):
            apart = max(float((values - rows[0][2]).abs().max()) for _, _, values in rows)
            yield f"apart after step {number + 1} by {apart:.2g}"
            return


def _tolerance(plan: Plan) -> float:
    codec = {"fp16": 2e-3, "bf16": 2e-2, "int8": 5e-2}.get(plan.settings.get("codec", ""), 0.0)
    if plan.autocasts or plan.dtype is torch.bfloat16:
        return 5e-2
    if "links" in plan.settings:
        codec = 2e-2
    return max(codec, 1e-12 if plan.dtype is torch.float64 else 2e-6)


def _unlike(one: Told, reference: Told, plan: Plan) -> Iterator[str]:
    for number, (row, expected) in enumerate(zip(one.rows, reference.rows, strict=False)):
        apart = float((row[2] - expected[2]).abs().max())
        if apart > _tolerance(plan) * (1 + number):
            yield f"after step {number + 1} {apart:.2g} from training on the mean of gradients"
            return
    apart = float((one.after - reference.after).abs().max())
    if apart > _tolerance(plan) * (1 + plan.steps):
        yield f"ends {apart:.2g} from training on the mean of gradients"


def _unlike_the_mean(
    features: tuple[str, ...], plan: Plan, told: list[Told], shared: slice
) -> Iterator[str]:
    if (
        not all(FEATURES[name].ends_at_mean for name in features)
        or plan.optimizer == "ScheduleFree"
    ):
        return
    may_move = 2.0 if plan.settings.get("algorithm") in TRANSACTIONS else 0.02  # they settle some
    before = torch.stack([each.before[shared] for each in told])
    spread = float((before - before.mean(0)).abs().max())
    apart = float((told[0].after[shared] - before.mean(0)).abs().max())
    rounding = {torch.bfloat16: 1e-2}.get(plan.dtype, 1e-5)
    if apart > rounding + may_move * spread:
        yield f"ends {apart:.2g} from the mean of all, of which nodes were up to {spread:.2g} away"


def _slow(
    algorithm: str, plan: Plan, told: list[Told], reference: list[Told], differs: set[str]
) -> Iterator[str]:
    """Say if training went less far than a share of the steps of averaged gradients."""
    curve = reference[0].losses
    least = (0.5 if differs else 1.0) * MIN_SHARE * (plan.steps - plan.short_steps)
    if algorithm in ("AllReduceEA", "EASGD"):
        least *= 0.5  # the center follows
    goal = max(curve[int(least) :])
    for index, each in enumerate(told):
        # Each node has a layer that it froze itself, as good as its training was by then.
        since = min(plan.steps_of(index) - FROZEN_AT, len(each.losses))
        frozen_at = each.losses[-since] if "head" in differs else 0.0
        if not each.losses[-1] <= max(1.05 * goal + 1e-4, 0.95 * frozen_at):  # nor not a number
            yield (
                f"w{index + 1} ends with a loss of {each.losses[-1]:.3g}, which averaged "
                f"gradients pass after {int(least)} of {plan.steps} steps ({goal:.3g})"
            )
            return


# The campaign


def expected(algorithm: str, features: tuple[str, ...]) -> tuple[str, str]:
    """Return what a cell is to be, and the code or section."""
    codes = [FEATURES[name].refused.get(algorithm, "") for name in features]
    codes += [code for pair, code in REFUSED_PAIRS.items() if pair <= set(features)]
    if any(codes):
        return "refused", next(filter(None, codes))
    sections = [FEATURES[name].unequal.get(algorithm, "") for name in features]
    return ("documented", next(filter(None, sections))) if any(sections) else ("right", "")


def held_against(verdict: Verdict, algorithm: str, features: tuple[str, ...]) -> Verdict:
    """Compare how a cell has ended with what it is to be."""
    kind, what = expected(algorithm, features)
    is_told = kind != "refused" or "DPWA-E" in verdict.text
    if verdict.kind in ("meaningless", "skipped") or (verdict.kind == kind and is_told):
        return verdict
    if kind == "documented" and verdict.kind == "right":  # within the bounds of what may differ
        return Verdict("documented", verdict.text, verdict.warned, verdict.seconds)
    text = f"expected {kind} {what}, is {verdict.kind}: {verdict.text}"
    return Verdict("finding", text, verdict.warned, verdict.seconds)


def rows_of_table() -> list[tuple[str, list[str]]]:
    """Return each feature with how it goes with the algorithms of each column."""
    rows = []
    for feature in FEATURES.values():
        cells = []
        for algorithms in COLUMNS.values():
            cell, *others = [_cell(feature, algorithm) for algorithm in algorithms]
            assert all(other == cell for other in others), (feature.text, algorithms)
            cells.append(cell)
        rows.append((feature.text, cells))
    return rows


def _cell(feature: Feature, algorithm: str) -> str:
    if algorithm in feature.without:
        return "-"
    if algorithm in feature.refused:
        return "refused"
    if section := feature.unequal.get(algorithm):
        return f"[unequal]({section})"
    return "yes"


def table() -> str:
    """Return what works under which algorithm, as docs/algorithms.md says it."""
    texts: dict[tuple[str, ...], list[str]] = {}  # of the features that have these cells
    for text, cells in rows_of_table()[1:]:
        texts.setdefault(tuple(cells), []).append(text)
    everywhere = texts.pop(("yes",) * len(COLUMNS))
    head = " | ".join(f"`{name}`" for name in COLUMNS)
    lines = [
        "Each feature of this list works with every algorithm. The table shows the other features.",
        "",
        *(f"- {text}" for text in everywhere),
        "",
        f"| | {head} |",
        "|---|" + "---|" * len(COLUMNS),
        *(f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in texts.items()),
    ]
    return "\n".join(lines)


def page_with_table(page: str) -> str:
    """Return the page with the table of this campaign in its section."""
    start = page.index("\n", page.index(BEGIN)) + 1
    return page[:start] + table() + "\n" + page[page.index(END) :]


def is_sensible(algorithm: str, features: tuple[str, ...]) -> bool:
    """Whether features can be together in a loop of an algorithm."""
    for name in features:
        if (only := FEATURES[name].only) and set(features) - {name} - only:
            return False
    slots = [FEATURES[name].slot for name in features if FEATURES[name].slot]
    return len(slots) == len(set(slots)) and not any(
        algorithm in FEATURES[name].without or FEATURES[name].excludes & (set(features) - {name})
        for name in features
    )


def drawn(count: int, seed: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Draw so many pairs and triples of features, each with an algorithm."""
    rng = random.Random(seed)
    while count:
        algorithm = rng.choice(sorted(ALGORITHMS))
        features = tuple(sorted(rng.sample(sorted(FEATURES), rng.choice([2, 3]))))
        if is_sensible(algorithm, features):
            count -= 1
            yield algorithm, features


def campaign(cells: list[tuple[str, tuple[str, ...]]], seed: int) -> int:
    """Play cells, and print what has come of them; return how many findings there were."""
    counts: collections.Counter[str] = collections.Counter()
    warned: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    for algorithm, features in cells:
        verdict = held_against(play(algorithm, features, seed), algorithm, features)
        counts[verdict.kind] += 1
        warned.update(verdict.warned)
        if verdict.kind in ("finding", "skipped"):
            print(f"pairs.py {algorithm} {' '.join(features)} --seed {seed}\n    {verdict.text}")
        if verdict.warned:
            print(f"    ({algorithm} {' '.join(features)} warned: {', '.join(verdict.warned)})")
        if verdict.seconds > 10.0:
            print(f"    ({algorithm} {' '.join(features)} took {verdict.seconds:.0f} s)")
        sys.stdout.flush()
    kinds = ("right", "refused", "documented", "meaningless", "skipped", "finding")
    found = ", ".join(f"{counts[kind]} {kind}" for kind in kinds)
    print(f"{len(cells)} cells: {found}, in {time.monotonic() - began:.0f} s; {dict(warned)}")
    return counts["finding"]


def main() -> int:
    """Play what is asked for; return 1 if there was a finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cell", nargs="*", help="an algorithm, and features")
    parser.add_argument("--seed", type=int, default=7, help="(%(default)s)")
    parser.add_argument("--random", type=int, default=0, help="so many pairs and triples")
    parser.add_argument("--only", default="", help="algorithms, with commas in between")
    parser.add_argument("--features", default="", help="likewise")
    parser.add_argument("--table", action="store_true", help="write the table of the page")
    options = parser.parse_args()
    if options.table:
        PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    torch.set_num_threads(1)
    rows = options.only.split(",") if options.only else ALGORITHMS
    names = options.features.split(",") if options.features else FEATURES
    cells = [(row, (name,)) for row in rows for name in names if is_sensible(row, (name,))]
    if options.cell:
        cells = [(options.cell[0], tuple(options.cell[1:]) or ("plain",))]
    elif options.random:
        print(f"seed {options.seed}")
        cells = list(drawn(options.random, options.seed))
    has_processes = any(plan_of(row, some, 0).are_processes for row, some in cells)
    with shared_fork_servers() if has_processes else contextlib.nullcontext():
        return int(campaign(cells, options.seed) > 0)


if __name__ == "__main__":
    sys.exit(main())
