"""Collectives, tables, shared ranges and ends of runs among whole nodes in virtual time."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.simulated_nodes import ProgramRun, traced
from support.simulations import run_spec

from dpwa.dataset.range_table import DatasetRanges, RangeTable
from dpwa.tables.node_tables import Tables

LINKS = {"latency_ms": 5.0, "jitter_ms": 4.0, "loss": 0.02}
MANY = 200_000  # values of an array that goes in many pieces


def run_of(nodes, program, seed=1, **scenario):
    return ProgramRun(
        run_spec(nodes, seed=seed, **{"network": LINKS, "seconds": 60.0, **scenario}), program
    )


def finished(run):
    """Let a run happen; return what its programs have returned, by name of the node."""
    run.simulate()
    assert not run.errors
    return run.results


def all_reduced(connection, value):
    array = np.full(MANY, value)
    connection.all_reduce(array)
    assert (array == array[0]).all()
    return array[0]


def test_a_large_array_takes_what_its_bytes_take():
    def program(node, runtime, connection):
        connection.barrier()
        began = runtime.now()
        all_reduced(connection, 1.0)
        return runtime.now() - began

    links = {"latency_ms": 1.0, "upload_mbps": 8.0, "download_mbps": 8.0}
    for took_s in finished(run_of(4, program, network=links)).values():
        # 1.6 MB: three quarters go out and come in twice, of 1 MB/s.
        assert took_s == pytest.approx(2.4, rel=0.15)


def mixed(node, runtime, connection):
    """Call a bit of everything."""
    with Tables(connection) as tables:
        table = tables.array(10, [7.0] * 10, dtype="float64")
        total = all_reduced(connection, float(node.index))
        table.add([1.0] * 10)
        tables.barrier()
        return total, table.get().tolist()


def test_the_same_seed_is_the_same_run_of_collectives_to_the_byte():
    one, again, other = (traced(run_of(4, mixed, seed))[1] for seed in (1, 1, 2))
    assert one == again != other


def test_one_process_may_read_a_table_twice_at_a_time_but_not_call_a_collective_twice():
    def program(node, runtime, connection):
        tables = Tables(connection)
        table = tables.array(4, [3.0] * 4)
        asked = [table.get_async(), table.get_async()]
        values = [table.get(), *(get.wait() for get in asked)]
        passed = []
        for number in range(2):
            call = lambda number=number: (connection.barrier(), passed.append(number))  # noqa: E731
            runtime.thread(call, f"call-{number}").start()
        runtime.sleep(2.0)
        return [value.tolist() for value in values], passed

    for values, passed in finished(run_of(2, program)).values():
        assert values == [[3.0] * 4] * 3
        assert passed == [0, 1]  # two threads take turns


def test_ranges_are_shared_and_each_is_acknowledged_once():
    def program(node, runtime, connection):
        ranges = DatasetRanges(40, 4, True, 0)
        table = RangeTable(Tables(connection), ranges, replicas=2, lease_s=100.0)
        table.begin_epoch(0)
        taken = []
        while (number := table.wait_for_range()) is not None:
            runtime.sleep(0.2 + 0.1 * node.index)
            table.acknowledge(number)
            taken.append(number)
        return taken

    found = finished(run_of(3, program)).values()
    assert sorted(number for taken in found for number in taken) == list(range(10))
    assert all(found)


def test_whom_finish_waits_for_is_said_after_ten_seconds_and_then_once_a_minute(monkeypatch):
    said = []

    def program(node, runtime, connection):
        if node.index == 0:
            warn = lambda *_: said.append(runtime.now() - began)  # noqa: E731
            log = SimpleNamespace(warning=warn, log=lambda *_: None)
            monkeypatch.setattr("dpwa.node.finish_run.log", log)
            began = runtime.now()
        else:
            for _ in range(75):
                connection.update_send(np.zeros(4), 0.5)
                connection.update_wait(0.5)
                runtime.sleep(1.0)
        connection.finish(np.zeros(4), timeout_s=1000.0)

    run = ProgramRun(run_spec(2, seed=1, seconds=150.0), program)
    run.simulate()
    assert not run.errors
    assert [round(at) for at in said] == [10, 70]
