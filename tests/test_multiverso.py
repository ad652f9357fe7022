"""The names of the Multiverso binding, in real processes, as `dpwa launch` starts them."""

import json

import numpy as np
import pytest
from support.inside import pending_of
from support.nodes import config_of
from support.processes import ended, start

import dpwa.multiverso as mv
from dpwa.errors import ClosedError, TableLostError, UserError

WORKER = "multiverso_worker.py"


@pytest.fixture
def alone():
    """A worker in this process."""
    mv.init(name="w1", config=config_of(1))
    yield
    mv.shutdown()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run workers of a program with its arguments; return what they print."""

    def run(count, *command):
        config = tmp_path / "nodes.yaml"
        config.write_text(json.dumps(config_of(count, collective_timeout_s=20.0)))
        monkeypatch.setenv("DPWA_CONFIG", str(config))
        processes = []
        for index in range(count):
            monkeypatch.setenv("DPWA_NAME", f"w{index + 1}")
            processes.append(start(*command))
        with ended(*processes):
            said = [process.communicate(timeout=60) for process in processes]
        assert all(process.returncode == 0 for process in processes), said
        return [json.loads(out) for out, _ in said]

    return run


def test_two_additions_a_round_of_each_worker_add_up(run):
    count = 3
    for found, matrix, keys in run(count, WORKER, "many_adds"):
        for i, values in enumerate(found, start=1):
            assert values == [2 * delta * count * i for delta in range(1, 8)]
        assert matrix == [[0, 0], [3 * 4 * count] * 2]
        assert keys == [4, 4, 4 * count, 0]


def test_workers_know_who_they_are(run):
    assert run(2, WORKER, "who") == [[2, 2, 0, 0, True], [2, 2, 1, 1, False]]


def test_without_a_list_of_nodes_workers_have_no_numbers():
    mv.init(name="w1", config={"join": [], "initial_state": "own"})
    try:
        for numbered in (mv.workers_num, mv.worker_id, mv.server_id):
            with pytest.raises(UserError, match="position in `nodes`"):
                numbered()
        assert mv.is_master_worker()
    finally:
        mv.shutdown()


def test_only_the_first_values_of_worker_0_count(run):
    assert run(2, WORKER, "first_values") == [[1.0] * 3] * 2


def test_in_step_all_read_the_same(run):
    first, *others = run(3, WORKER, "in_step")
    assert all(other == first for other in others)
    assert len({str(values) for values in first}) == 5


def test_a_shared_variable_has_the_changes_of_all(run):
    assert run(2, WORKER, "shared_variable") == [[[5.0 + 2 * (1 + 2)] * 3] * 2] * 2


def test_the_parameters_of_a_module_have_the_changes_of_all(run):
    for changes in run(2, "multiverso_module.py"):
        assert changes == pytest.approx([1.0 + 2.0] * len(changes), abs=1e-4)


def test_a_worker_alone_needs_nobody(alone):
    table = mv.MatrixTableHandler(4, 2, init_value=np.ones((4, 2)), updater="sgd")
    table.add([1, 1], 3)
    assert table.get(3).tolist() == [[0, 0]]
    assert table.get().sum() == 6
    assert mv.is_master_worker()


def test_a_ported_program_of_vectors_adds_ranges(alone):
    size, rounds = 10_000, 10
    table = mv.ArrayTableHandler(size)
    mv.barrier()
    for i in range(1, rounds + 1):
        table.add(range(1, size + 1))
        table.add(range(1, size + 1), sync=True)
        mv.barrier()
        found = table.get()
        assert found.shape == (size,)
        assert (found == 2 * i * mv.workers_num() * np.arange(1, size + 1)).all()


def test_a_ported_program_of_matrices_adds_flat_data_whole_and_by_rows(alone):
    rows, columns, ids = 11, 10, [0, 1, 5, 10]
    table = mv.MatrixTableHandler(rows, columns)
    mv.barrier()
    for i in range(1, 11):
        table.add(range(rows * columns))
        named = [row * columns + column for row in ids for column in range(columns)]
        table.add(named, ids)
        mv.barrier()
        expected = i * np.arange(rows * columns).reshape(rows, columns)
        expected[ids] *= 2
        assert table.get().tolist() == expected.tolist()
        assert table.get(ids).tolist() == expected[ids].tolist()
        assert table.get(ids).shape == (len(ids), columns)


@pytest.mark.parametrize("sync", [False, True])
def test_data_is_taken_by_size_in_any_shape(alone, sync):
    vector = mv.ArrayTableHandler(6, init_value=np.ones((2, 3)))
    vector.add(np.arange(6).reshape(3, 2), sync=sync)
    vector.add([[1, 2, 3], [4, 5, 6]])
    assert vector.get().tolist() == [2, 4, 6, 8, 10, 12]
    matrix = mv.MatrixTableHandler(2, 3, init_value=range(6))
    matrix.add(np.ones((3, 2)), sync=sync)
    matrix.add(range(3), 1, sync=sync)
    matrix.add(range(6), range(2), sync=sync)
    assert matrix.get().tolist() == [[1, 3, 5], [7, 10, 13]]


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda: mv.ArrayTableHandler(6).add(range(5)), r"got shape \(5,\), expected \(6,\)"),
        (lambda: mv.MatrixTableHandler(2, 3).add(range(5)), r"expected \(2, 3\)"),
        (lambda: mv.MatrixTableHandler(2, 3).add(range(6), [0]), r"expected \(1, 3\)"),
        (lambda: mv.MatrixTableHandler(2, 3, init_value=range(7)), r"expected \(2, 3\)"),
    ],
)
def test_data_of_another_size_is_refused(alone, add, message):
    with pytest.raises(UserError, match=message):
        add()


def test_a_get_may_go_on_while_something_else_is_done(alone):
    matrix = mv.MatrixTableHandler(3, 2)
    matrix.add(range(6))
    ids = np.array([2, 0])
    some, everything = matrix.get_async(ids), matrix.get_async()
    ids[:] = 1
    assert some.wait().tolist() == [[4, 5], [0, 1]]
    assert everything.wait().tolist() == [[0, 1], [2, 3], [4, 5]]
    assert some.done
    assert mv.ArrayTableHandler(2).get_async().wait().tolist() == [0, 0]
    with pytest.raises(UserError, match=r"row_ids.0. is 3, expected 0 to 2"):
        matrix.get_async(3)


def test_in_step_the_order_of_calls_counts_so_that_none_goes_on_by_itself():
    mv.init(sync=True, name="w1", config=config_of(1))
    table = mv.ArrayTableHandler(3)
    with pytest.raises(UserError, match=r"`sync=True`. Call get"):
        table.get_async()
    mv.shutdown()


def test_shared_variables_that_are_registered_are_synchronized_at_once(alone):
    weights = mv.mv_shared(value=np.zeros((2, 2)), name="weights", borrow=True)
    bias = mv.mv_shared([1.0], "bias", strict=True, allow_downcast=True, updater="default")
    assert (weights.name, bias.name) == ("weights", "bias")
    weights.value += 2
    bias.value -= 1
    mv.sync_all_mv_shared_vars()
    assert weights.value.tolist() == [[2, 2], [2, 2]]
    assert weights._table.get().tolist() == [2] * 4
    assert bias._table.get().tolist() == [0]


def test_the_parameters_of_any_model_are_kept_in_step_by_a_subclass(alone):
    class Manager(mv.MVModelParamManager):
        def get_all_param_values(self):
            return [self.model["w"], self.model["b"]]

        def set_all_param_values(self, params):
            self.model["w"], self.model["b"] = params

    model = {"w": np.ones((2, 3), np.float32), "b": np.arange(2.0)}
    manager = Manager(model, dtype="float64")
    model["w"] = model["w"] + 1
    manager._variable._table.add(range(8))  # by another worker
    manager.sync_all_param()
    assert model["w"].tolist() == [[2, 3, 4], [5, 6, 7]]
    assert model["w"].dtype == np.float32
    assert model["b"].tolist() == [6, 8]


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
        lambda: mv.mv_shared([1.0]),
        mv.sync_all_mv_shared_vars,
    ],
)
def test_nothing_works_before_init(call):
    with pytest.raises(UserError, match=r"Call dpwa\.multiverso\.init\(\) first"):
        call()


def test_init_is_called_once(alone):
    with pytest.raises(UserError, match="init was called before"):
        mv.init(name="w1", config=config_of(1))


def test_nothing_works_after_shutdown():
    mv.init(name="w1", config=config_of(1))
    table = mv.ArrayTableHandler(3)
    mv.shutdown()
    mv.shutdown()
    with pytest.raises(ClosedError):
        table.get()
    with pytest.raises(UserError, match=r"init\(\) first"):
        mv.barrier()
    mv.init(name="w1", config=config_of(1))
    assert mv.ArrayTableHandler(3).get().tolist() == [0, 0, 0]
    mv.shutdown()


def test_who_was_left_out_hears_of_it_at_the_latest_when_it_shuts_down():
    mv.init(name="w1", config=config_of(1))
    pending_of(mv._session.tables).note_missed_barriers("w1", 2)
    with pytest.raises(TableLostError, match="have passed 2 barriers"):
        mv.shutdown()
    mv.init(name="w1", config=config_of(1))
    mv.shutdown()


@pytest.mark.parametrize(
    ("variable", "argument"), [("DPWA_NAME", "name"), ("DPWA_CONFIG", "config")]
)
def test_init_says_what_it_must_know(monkeypatch, variable, argument):
    monkeypatch.setenv("DPWA_NAME", "w1")
    monkeypatch.setenv("DPWA_CONFIG", "nodes.yaml")
    monkeypatch.delenv(variable)
    with pytest.raises(UserError, match=f"pass `{argument}`, .* sets {variable}"):
        mv.init()
