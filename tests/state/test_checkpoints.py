"""Checkpoints: whatever happens while one is written, the last good one is there."""

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from support.nodes import config_of, eventually
from support.ports import free_ports
from support.processes import ended, start
from support.state_donors import (
    ALONE,
    Net,
    adapter_of,
    are_equal,
    donor_process,
    nodes,
    state_of,
    training,
    wait_until_training,
)

from dpwa import DpwaConnection
from dpwa.data.layout import Layout, TensorSpec
from dpwa.state.checkpoints import CheckpointFolder, CheckpointWriter
from dpwa.state.replaced_parts import values_of, values_part
from dpwa.state.safetensors_image import State
from dpwa.testing import Fault, FaultPlan

POINTS = (
    "checkpoint.begun",
    "file.before_rename",
    "file.renamed",
    "checkpoint.written",
    "checkpoint.pruned",
)


def state(updates, clock=None, elements=1000):
    values = np.full(elements, float(updates))
    layout = Layout((TensorSpec("parameters", "float64", values.shape, 8),))
    parts = values_part(layout, values)
    return State(float(updates) if clock is None else clock, updates, parts)


def found(folder, node="w1"):
    """The updates of all checkpoints that are whole, newest first; each with its own values."""
    updates = []
    for saved in CheckpointFolder(folder, node, 3).newest_first():
        part = saved.parts["values"]
        assert np.unique(values_of(part.image, part.numbers)).tolist() == [saved.updates]
        updates.append(saved.updates)
    return updates


def update(node, loss=None):
    node.update_send(loss)
    node.update_wait(loss)


def test_the_newest_ones_are_kept_even_if_they_have_fewer_updates(tmp_path):
    folder = CheckpointFolder(tmp_path / "new" / "folder", "w1", keep=2)
    for updates in (900, 1000, 10, 20):
        name = folder.write(state(updates, clock=updates / 2))
        assert name.endswith(f"-{updates}")
    assert found(tmp_path / "new" / "folder") == [20, 10]
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 4
    assert next(folder.newest_first()).clock == 10.0


def test_nodes_share_a_folder_and_leave_each_other_alone(tmp_path):
    names = ("w1", "w1-000001-5", "w1-000001", "w.1", "w11")
    for _ in range(3):
        for name in names:
            CheckpointFolder(tmp_path, name, keep=1).write(state(5))
    (tmp_path / "notes.txt").write_text("mine")
    for name in names:
        assert found(tmp_path, name) == [5]
    assert len(list(tmp_path.iterdir())) == 2 * len(names) + 1


@pytest.mark.parametrize("damage", ["lost", "record lost", "record {}"])
def test_a_damaged_checkpoint_is_left_out_with_a_warning(tmp_path, caplog, damage):
    folder = CheckpointFolder(tmp_path, "w1", keep=3)
    for updates in (1, 2):
        name = folder.write(state(updates))
    image, record = tmp_path / f"{name}.safetensors", tmp_path / f"{name}.json"
    match damage:
        case "lost":
            image.unlink()
        case "record lost":
            record.unlink()
        case _:
            record.write_text("{}")
    assert found(tmp_path) == [1]
    assert ("is ignored" in caplog.text) == (damage != "record lost")
    folder.write(state(3))
    assert found(tmp_path)[0] == 3
    if damage == "record lost":
        assert not image.exists()


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_moment_leaves_the_last_good_one(tmp_path, point):
    folder = tmp_path / "checkpoints"
    config = config_of(1, **ALONE, checkpoint={"dir": str(folder), "every_steps": 5, "keep": 2})
    # Each checkpoint has two files, of which the second one counts.
    nth = 2 * 2 + 1 if point in ("file.before_rename", "file.renamed") else 3
    plan = FaultPlan((Fault(point, nth),))
    with donor_process(tmp_path, "w1", config, 1000, "clock", plan=plan) as process:
        assert wait_until_training(process) == 0.0
        assert process.wait_for_fault().name == "SIGKILL"
    whole = found(folder)
    assert 1 <= len(whole) <= 3
    assert [updates % 5 for updates in whole] == [0] * len(whole)
    with DpwaConnection("w1", config) as node:
        parameters, clock = node.fetch_state()
        assert clock == whole[0]
        assert np.unique(parameters).tolist() == [whole[0]]
        for _ in range(6):  # the sixth knows what the fifth has come to
            node.update_send(np.full(1000, node.clock))
    assert found(folder)[0] > whole[0]
    assert not list(folder.glob(".*")), "something is left of the one that was interrupted"
    assert len(found(folder)) == 2


def test_a_restarted_node_has_its_module_its_optimizer_and_its_clock(tmp_path):
    config = config_of(
        1, **ALONE, checkpoint={"dir": str(tmp_path / "c"), "every_steps": 10, "keep": 1}
    )

    def made(seed):
        net = Net(seed)
        return net, torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.01)

    def step(net, adam):
        adam.zero_grad()
        net(torch.linspace(-1, 1, 48).view(3, 16)).square().mean().backward()
        adam.step()

    one, adam = made(1)
    with nodes(adapter_of(one, "w1", config, optimizer=adam)) as (node,):
        for _ in range(10):
            step(one, adam)
            node.update_send(0.5)
            node.update_wait(0.5)
        node.close()
        report = node.connection.node.report()["state"]["checkpoints"]
        assert report == {
            "written": 1,
            "skipped": 0,
            "failed": 0,
            "newest": "w1-000001-10",
            "problem": "",
        }
    saved = state_of(one)
    loaded = safetensors.torch.load_file(tmp_path / "c" / "w1-000001-10.safetensors")
    assert all(torch.equal(loaded[name], saved[name]) for name in loaded)
    two, again = made(2)
    with nodes(adapter_of(two, "w1", config, optimizer=again)) as (node,):
        assert are_equal(state_of(two), saved)
        assert node.clock == 10.0
        assert node.connection.node.report()["state"]["restored"] == "w1-000001-10"
        node.update_send()
        assert (node.clock, node.connection.node.version) == (11.0, 11)
        for net, optimizer in ((one, adam), (two, again)):
            step(net, optimizer)
    assert are_equal(state_of(one), state_of(two))


@pytest.mark.parametrize(("peers_clock", "expected"), [(20, "own"), (200, "peers")])
def test_the_newest_of_both_is_taken(tmp_path, peers_clock, expected):
    config = config_of(2, **ALONE, checkpoint={"dir": str(tmp_path), "every_steps": 100})
    nets = {"peers": Net(1), "own": Net(2), "fresh": Net(3)}
    with nodes(adapter_of(nets["own"], "w2", config)) as (node,):
        for _ in range(100):
            update(node)
    with nodes(adapter_of(nets["peers"], "w1", config)) as (peer,):
        peer.connection.node.rounds.resume(peers_clock, peers_clock)
        with training(peer) if expected == "peers" else nodes():
            peer.update_send(0.5)
            newest = {**config, "initial_state": "newest"}
            with nodes(adapter_of(nets["fresh"], "w2", newest)) as (node,):
                assert are_equal(state_of(nets["fresh"]), state_of(nets[expected]))
                assert node.clock >= (200 if expected == "peers" else 100)


def test_a_checkpoint_of_another_model_is_left_alone(tmp_path, caplog):
    config = config_of(1, **ALONE, checkpoint={"dir": str(tmp_path), "every_steps": 1})
    with nodes(adapter_of(torch.nn.Linear(2, 2), "w1", config)) as (node,):
        update(node)
    other = torch.nn.Linear(2, 3)
    own = state_of(other)
    with nodes(adapter_of(other, "w1", config)) as (node,):
        assert node.clock == 0.0
    assert are_equal(state_of(other), own)
    (warning,) = [text for text in caplog.messages if "has a different model" in text]
    assert str(tmp_path / "w1-000001-1.safetensors") in warning
    assert "first difference: here 'weight' float32[3, 2], there 'weight' float32[2, 2]" in warning


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            lambda net: torch.optim.SGD(net.parameters()),
            "first difference: here 'torch.optim.sgd.SGD' optimizer[]",
        ),
        (
            lambda net: torch.optim.Adam([net.weight]),
            "first difference: here no such tensor, there 'parameter 1 of group 0' float32[2]",
        ),
    ],
    ids=["class", "parameters"],
)
def test_the_optimizer_in_a_checkpoint_is_not_that_of_this_node(
    tmp_path, caplog, other, difference
):
    config = config_of(1, **ALONE, checkpoint={"dir": str(tmp_path), "every_steps": 1})
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(one.parameters())
    with nodes(adapter_of(one, "w1", config, optimizer=adam)) as (node,):
        update(node)
    optimizer = other(two)
    with nodes(adapter_of(two, "w1", config, optimizer=optimizer)) as (node,):
        assert node.clock == 1.0
    assert are_equal(state_of(one), state_of(two))
    assert not optimizer.state
    (warning,) = [text for text in caplog.messages if "cannot be used" in text]
    assert str(tmp_path / "w1-000001-1.optimizer.safetensors") in warning
    assert difference in warning


def test_a_full_disk_is_told_by_the_first_write_and_not_an_error_before(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpwa.files.os.fsync", full)
    monkeypatch.setattr("dpwa.state.checkpoints.os.pwrite", full)
    writer = CheckpointWriter(tmp_path, "w1", keep=1)
    writer.write(state(3))
    writer.close()
    problem = writer.report()["problem"]
    assert problem.startswith(f"no checkpoint can be written to {tmp_path} ([Errno 28] No space")
    monkeypatch.undo()
    writer.write(state(4))
    writer.close()
    assert writer.report()["problem"] == ""


def test_training_goes_on_when_nothing_can_be_written(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    config = config_of(
        1, **ALONE, checkpoint={"dir": str(tmp_path / "file" / "folder"), "every_steps": 1}
    )
    with nodes(adapter_of(Net(1), "w1", config)) as (node,):
        checkpoints = lambda: node.connection.node.report()["state"]["checkpoints"]  # noqa: E731
        for number in range(1, 4):  # one that is due while another is being written is left out
            eventually(lambda n=number: update(node) or checkpoints()["failed"] >= n)
    assert len([text for text in caplog.messages if "no checkpoint can be written" in text]) == 1


FULL_DISK = """
import sys
import numpy as np
from dpwa import DpwaConnection
config = {"nodes": [{"name": "w1", "port": int(sys.argv[2])}], "transport": "tcp",
          "checkpoint": {"dir": sys.argv[1], "every_steps": 1}}
with DpwaConnection("w1", config) as node:
    for elements in (1000, 1000, 1_000_000, 1000):
        node.update_send(np.full(elements, node.clock))
        node.states.close()
    print(node.node.report()["state"]["checkpoints"])
"""


def test_a_full_disk_leaves_nothing_behind_and_the_next_one_is_written(tmp_path):
    limit = resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)
    folder, (port,) = tmp_path / "checkpoints", free_ports(1)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder), str(port)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(*limit),
    )
    assert "'written': 2, 'skipped': 0, 'failed': 1" in done.stdout, done.stderr
    assert "File too large" in done.stderr
    assert found(folder) == [3, 1]
    assert len(list(folder.iterdir())) == 4


def test_a_checkpoint_is_skipped_while_the_one_before_is_written(tmp_path, monkeypatch):
    config = config_of(1, **ALONE, checkpoint={"dir": str(tmp_path), "every_steps": 1})
    may_go_on = threading.Event()
    write = CheckpointFolder.write
    monkeypatch.setattr(CheckpointFolder, "write", lambda *a: (may_go_on.wait(60), write(*a))[1])
    with nodes(adapter_of(Net(1), "w1", config)) as (node,):
        for _ in range(5):
            update(node)
        report = node.connection.node.report()["state"]
        assert report["checkpoints"]["skipped"] == 4
        assert report["copies"] == 0
        may_go_on.set()
    assert json.loads((tmp_path / "w1-000001-1.json").read_text())["updates"] == 1


def test_a_node_that_has_diverged_does_not_drive_out_its_good_checkpoints(tmp_path, caplog):
    config = config_of(1, **ALONE, checkpoint={"dir": str(tmp_path), "every_steps": 1, "keep": 2})
    net = torch.nn.Linear(2, 2)
    good = state_of(net)
    with nodes(adapter_of(net, "w1", config)) as (node,):
        for number, loss in enumerate((0.5, 0.5, float("nan"), float("inf"))):
            node.update_send(loss)
            if number > 0:
                torch.nn.init.constant_(net.weight, float("nan"))
            node.update_wait(loss)
            node.connection.states.close()
    assert found_names(tmp_path) == ["w1-000001-1", "w1-000002-2"]
    again = torch.nn.Linear(2, 2)
    with nodes(adapter_of(again, "w1", config)) as (node,):
        assert are_equal(state_of(again), good)
        assert node.clock == 1.0
        assert node.connection.states._restore._saved is not None
        node.update_send(0.5)
        assert node.connection.states._restore._saved is None  # its memory is given back
    assert "w1-000002-2.safetensors cannot be used" in caplog.text
    assert "w1: starts from its checkpoint w1-000001-1 (0.0 MB in" in caplog.text


def found_names(folder):
    """The names of all checkpoints."""
    return sorted(path.stem for path in folder.glob("*.json"))


def test_a_checkpoint_that_cannot_be_read_just_now_is_not_replaced_by_newer_ones(tmp_path, caplog):
    CheckpointFolder(tmp_path, "w1", keep=1).write(state(900))
    folder = CheckpointFolder(tmp_path, "w1", keep=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "fromfile", fails_with(errno.ESTALE))
        assert list(folder.newest_first()) == []
    assert "cannot be read" in caplog.text
    for updates in (100, 200):
        folder.write(state(updates))
    assert found(tmp_path) == [200, 900]


def fails_with(number):
    def fails(*rest, **options):
        raise OSError(number, os.strerror(number))

    return fails


def test_the_only_checkpoint_of_another_model_is_not_replaced(tmp_path):
    config = config_of(1, **ALONE, checkpoint={"dir": str(tmp_path), "every_steps": 1, "keep": 1})
    with nodes(adapter_of(torch.nn.Linear(2, 2), "w1", config)) as (node,):
        update(node)
    (before,) = found_names(tmp_path)
    with nodes(adapter_of(torch.nn.Linear(2, 3), "w1", config)) as (node,):
        for _ in range(3):
            update(node)
    assert before in found_names(tmp_path)


def test_old_ones_that_cannot_be_removed_do_not_spoil_the_new_one(tmp_path, monkeypatch, caplog):
    folder = CheckpointFolder(tmp_path, "w1", keep=1)
    folder.write(state(1))
    monkeypatch.setattr(Path, "unlink", fails_with(errno.EPERM))
    folder.write(state(2))
    monkeypatch.undo()
    assert found(tmp_path)[0] == 2
    assert "old checkpoints cannot be removed" in caplog.text


def test_a_copy_that_fails_does_not_end_the_training(tmp_path, caplog, monkeypatch):
    config = config_of(1, **ALONE, checkpoint={"dir": str(tmp_path), "every_steps": 1})
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with nodes(adapter_of(net, "w1", config, optimizer=optimizer)) as (node,):
        fails = fails_with(errno.EIO)  # as a sharded one, before it is gathered
        monkeypatch.setattr("dpwa.adapters.optimizer_state.optimizer_part", fails)
        for _ in range(3):
            update(node)
    told = [r for r in caplog.records if "state of this node cannot be copied" in r.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_what_was_written_of_one_that_cannot_be_is_removed_at_once(tmp_path, monkeypatch, nth):
    folder = CheckpointFolder(tmp_path, "w1", keep=3)
    folder.write(state(1))
    before, calls, flush = files(tmp_path), [], os.fsync

    def full(descriptor):
        calls.append(descriptor)
        return fails_with(errno.ENOSPC)() if len(calls) == nth else flush(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write(state(2))
    assert files(tmp_path) == before


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_crash_while_an_old_one_is_removed_leaves_no_record_of_a_missing_image(
    tmp_path, monkeypatch, caplog, is_reversed
):
    """Whatever order the folder lists its files in."""
    listed, unlink, removed = Path.iterdir, Path.unlink, []
    monkeypatch.setattr(Path, "iterdir", lambda p: iter(sorted(listed(p), reverse=is_reversed)))
    folder = CheckpointFolder(tmp_path, "w1", keep=1)
    folder.write(state(1))

    def crash_after_one(path, **options):
        if removed:
            raise KeyboardInterrupt
        removed.append(path.name)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", crash_after_one)
    with pytest.raises(KeyboardInterrupt):
        folder.write(state(2))
    assert removed == ["w1-000001-1.json"]
    assert found(tmp_path) == [2]
    assert not caplog.messages


def test_numbers_go_on_above_a_million(tmp_path):
    folder = CheckpointFolder(tmp_path, "w1", keep=2)
    first = folder.write(state(5))
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("w1-000001", "w1-999998")))
    assert first == "w1-000001-5"
    assert [folder.write(state(updates)) for updates in (6, 7, 8)] == [
        "w1-999999-6",
        "w1-1000000-7",
        "w1-1000001-8",
    ]
    assert found(tmp_path) == [8, 7]
    assert len(list(tmp_path.iterdir())) == 4


def test_checkpoints_that_another_process_keeps_are_neither_read_nor_removed(tmp_path, caplog):
    CheckpointFolder(tmp_path, "w1", keep=1).write(state(7))
    holder = start("holds_folder.py", tmp_path)
    with ended(holder):
        pid, child = map(int, holder.stdout.readline().split())
        try:
            with DpwaConnection("w1", config_of(1, checkpoint={"dir": str(tmp_path)})) as node:
                assert node.fetch_state() is None
            writer = CheckpointWriter(tmp_path, "w1", keep=1)
            assert not writer.is_free()
            assert CheckpointWriter(tmp_path, "w2", keep=1).is_free()  # a member of the same run
            said = [r.getMessage() for r in caplog.records if "W094" in r.getMessage()]
            assert len(said) == 2
            assert f"process {pid} on {socket.gethostname()}" in said[0]
            os.kill(pid, signal.SIGKILL)  # what it has forked, as a loader of data, lives on
            eventually(writer.is_free)
        finally:
            os.kill(child, signal.SIGKILL)
    writer.write(state(8))
    writer.close()
    assert found(tmp_path) == [8]
    assert not [path for path in tmp_path.iterdir() if "w1.lock" in path.name]
