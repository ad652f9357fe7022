"""The names of the Multiverso binding, in real processes, as `dpwa launch` starts them."""

import json
import subprocess
import sys

import numpy as np
import pytest
from support.nodes import config_of
from support.processes import PROGRAMS, ended

import dpwa.multiverso as mv
from dpwa.errors import ClosedError, UserError


@pytest.fixture
def alone():
    """A worker in this process."""
    mv.init(name="w1", config=config_of(1))
    yield
    mv.shutdown()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run workers that do what a name of multiverso_worker.py says; return what they print."""

    def run(what, count):
        config = tmp_path / "nodes.yaml"
        config.write_text(json.dumps(config_of(count, collective_timeout_s=20.0)))
        monkeypatch.setenv("DPWA_CONFIG", str(config))
        processes = []
        for index in range(count):
            monkeypatch.setenv("DPWA_NAME", f"w{index + 1}")
            command = [sys.executable, "-W", "error", str(PROGRAMS / "multiverso_worker.py"), what]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        with ended(*processes):
            return [json.loads(process.communicate(timeout=60)[0]) for process in processes]

    return run


def test_two_additions_a_round_of_each_worker_add_up(run):
    count = 3
    for found, matrix, keys in run("many_adds", count):
        for i, values in enumerate(found, start=1):
            assert values == [2 * delta * count * i for delta in range(1, 8)]
        assert matrix == [[0, 0], [3 * 4 * count] * 2]
        assert keys == [4, 4, 4 * count, 0]


def test_workers_know_who_they_are(run):
    assert run("who", 2) == [[2, 2, 0, 0, True], [2, 2, 1, 1, False]]


def test_only_the_first_values_of_worker_0_count(run):
    assert run("first_values", 2) == [[1.0] * 3] * 2


def test_in_step_all_read_the_same(run):
    first, *others = run("in_step", 3)
    assert all(other == first for other in others)
    assert len({str(values) for values in first}) == 5


def test_a_shared_variable_has_the_changes_of_all(run):
    assert run("shared_variable", 2) == [[[5.0 + 2 * (1 + 2)] * 3] * 2] * 2


def test_the_parameters_of_a_module_have_the_changes_of_all(run):
    assert run("module", 2) == [[1.0 + 2.0]] * 2


def test_a_worker_alone_needs_nobody(alone):
    table = mv.MatrixTableHandler(4, 2, init_value=np.ones((4, 2)), updater="sgd")
    table.add([1, 1], 3)
    assert table.get(3).tolist() == [[0, 0]]
    assert table.get().sum() == 6
    assert mv.is_master_worker()


@pytest.mark.parametrize(
    "call",
    [
        mv.barrier,
        mv.workers_num,
        mv.worker_id,
        mv.is_master_worker,
        lambda: mv.ArrayTableHandler(3),
        lambda: mv.MatrixTableHandler(3, 3),
        lambda: mv.KVTableHandler(),
        lambda: mv.SharedVariable([1.0]),
    ],
)
def test_nothing_works_before_init(call):
    with pytest.raises(UserError, match=r"call dpwa\.multiverso\.init first"):
        call()


def test_init_is_called_once(alone):
    with pytest.raises(UserError, match="init was called already"):
        mv.init(name="w1", config=config_of(1))


def test_nothing_works_after_shutdown():
    mv.init(name="w1", config=config_of(1))
    table = mv.ArrayTableHandler(3)
    mv.shutdown()
    mv.shutdown()
    with pytest.raises(ClosedError):
        table.get()
    with pytest.raises(UserError, match="init first"):
        mv.barrier()
    mv.init(name="w1", config=config_of(1))
    assert mv.ArrayTableHandler(3).get().tolist() == [0, 0, 0]
    mv.shutdown()


@pytest.mark.parametrize(
    ("variable", "argument"), [("DPWA_NAME", "name"), ("DPWA_CONFIG", "config")]
)
def test_init_says_what_it_must_know(monkeypatch, variable, argument):
    monkeypatch.setenv("DPWA_NAME", "w1")
    monkeypatch.setenv("DPWA_CONFIG", "nodes.yaml")
    monkeypatch.delenv(variable)
    with pytest.raises(UserError, match=f"give `{argument}`, .* sets {variable}"):
        mv.init()
