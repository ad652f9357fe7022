"""What the benchmarks share: processes, samples, and the figures that are made of them."""

import json
import sys
import time

import numpy as np
import pytest
from support.launched import assert_gone

from dpwa.errors import UserError

PROCESS = "import json, os, sys; rank = int(os.environ['DPWA_RANK']); "


@pytest.fixture(autouse=True)
def scripts(scripts_of_benchmarks):
    """The scripts can be imported."""


def run(code):
    """Run Python code in two processes; return what they have told, by rank."""
    import common

    return common.run_again(common.plan_of(4, []), [sys.executable, "-c", code])


def took(*seconds):
    return [{"round": second} for second in seconds]


def figures_of(*samples):
    import common

    return common.figures_of([{"round": each} for each in samples])["round"]


def test_each_process_has_a_rank_and_one_thread():
    assert run(f"{PROCESS}print(json.dumps([rank, os.environ['OMP_NUM_THREADS']]))") == [
        [0, "1"],
        [1, "1"],
    ]


def test_what_a_process_writes_to_standard_error_is_shown_with_its_name(capfd):
    run(f"{PROCESS}sys.stderr.write('oh' * rank)")
    assert "w2: oh\n" in capfd.readouterr().err


def test_one_that_fails_stops_the_others_and_is_named(tmp_path):
    import common

    code = (
        f"{PROCESS}import pathlib, time\n"
        f"mine = pathlib.Path({str(tmp_path)!r}, str(rank))\n"
        "mine.with_suffix('.new').write_text(str(os.getpid()))\n"
        "mine.with_suffix('.new').rename(mine)\n"
        "while not mine.with_name('0').exists(): time.sleep(0.01)\n"
        "sys.exit(3) if rank == 1 else time.sleep(60)"
    )
    with pytest.raises(common.BenchmarkError, match=r"process w2 failed \(exit code 3\)"):
        run(code)
    assert_gone(int((tmp_path / "0").read_text()))


def test_every_link_and_process_has_a_port_of_its_own():
    import common

    plan = common.plan_of(4, ["a", "b"], 3)
    assert {len(ports) for ports in plan.ports.values()} == {3}
    assert len({port for ports in plan.ports.values() for port in ports}) == 6


def test_a_link_is_configured_as_it_is_told_whatever_the_environment(monkeypatch):
    import common

    monkeypatch.setenv("DPWA_TRANSPORT", "auto")
    monkeypatch.setenv("DPWA_TIMEOUT_MS", "1")
    plan = common.plan_of(100_000_000, ["a"])
    config = plan.config("a", transport="tcp", codec="int8")
    assert [node.port for node in config.nodes] == list(plan.ports["a"])
    assert (config.transport, config.codec, config.timeout_ms) == ("tcp", "int8", 15_000)


def test_sizes_are_in_millions_of_bytes_and_whole_values():
    import common
    import plane

    assert (common.nbytes_of(100), common.nbytes_of(0.01)) == (100_000_000, 10_000)
    with pytest.raises(UserError, match="2501 tensors do not fit into 2500 values"):
        plane.plane_plan(0.01, ("copy",), 1, tensors=2501)


@pytest.mark.slow
def test_measures_take_turns_in_being_first():
    import common

    code = (
        f"sys_path = {sys.path!r}\n"
        "import sys; sys.path[:] = sys_path\n"
        "from common import Measure, Session, tell\n"
        "order = []\n"
        "with Session() as session:\n"
        "    measures = {n: Measure(dict, lambda n=n: order.append(n)) for n in 'abc'}\n"
        "    session.repeat(measures, 3)\n"
        "tell(''.join(order))"
    )
    expected = "bca" + "cab" + "abc" + "bca" + "cab"  # the first two do not count
    assert common.run_again(common.plan_of(4, []), [sys.executable, "-c", code]) == [expected] * 2


def test_the_time_of_many_calls_in_a_row_is_that_of_one():
    import common

    calls = []

    def work():
        calls.append(1)
        time.sleep(0.002)

    began = time.perf_counter()
    sample = common.timed("nap", work, calls=5).run()
    assert len(calls) == 5
    assert 0.002 <= sample["nap"] <= (time.perf_counter() - began) / 5


def test_who_does_not_take_part_does_nothing():
    import common

    assert common.timed("oh", pytest.fail, takes_part=False).run() == {}


def test_a_repetition_takes_as_long_as_its_slowest_process():
    figure = figures_of(took(0.001, 0.005, 0.003), took(0.002, 0.001, 0.009))
    assert figure == {"median_ms": 5, "min_ms": 2, "max_ms": 9, "repetitions": 3}


def test_what_one_process_times_alone_is_its_own():
    assert figures_of(took(0.002, 0.004), [{}, {}])["median_ms"] == 3


def test_a_repetition_in_which_any_process_failed_does_not_count():
    import common

    samples = [None, *took(*[0.002] * 9)], took(9.0, *[0.001] * 9)
    figure = figures_of(*samples)
    assert (figure["max_ms"], figure["repetitions"]) == (2, 9)
    assert common.failures_of([{"round": each} for each in samples]) == {"round": 1}


@pytest.mark.parametrize("idle", [[{}] * 10, []])
def test_more_than_a_tenth_of_the_rounds_failing_is_no_result(idle):
    import common

    samples = [[None, None, *took(*[0.002] * 8)], *([idle] if idle else [])]
    with pytest.raises(common.BenchmarkError, match="round: 2 of 10 rounds merged nothing"):
        figures_of(*samples)


def test_ratios_are_quotients_of_summed_medians():
    import common
    import plane

    figures = {n: {"median_ms": ms} for n, ms in (("shm_round", 30), ("copy", 8), ("lerp", 4))}
    assert common.ratios_of(figures, plane.RATIOS) == {"shm_round / (copy + lerp)": 2.5}


@pytest.mark.parametrize("name", ["plane", "collectives", "tables"])
def test_every_ratio_is_of_figures_that_some_measure_has(name):
    script = __import__(name)
    assert script.RATIOS
    for above, below in script.RATIOS:
        assert {*above, *below} <= set(script.TITLES)


class Lonely:
    """A connection whose peers have gone."""

    class node:  # noqa: N801
        class config:  # noqa: N801
            nodes = ("w1", "w2")

    def all_reduce(self, value, op):
        return value, 1


def test_a_collective_that_not_all_contribute_to_is_no_figure():
    import common
    import measures

    with pytest.raises(common.BenchmarkError, match="1 of 2 processes have contributed"):
        measures.reduces_mean(Lonely(), None)()


@pytest.mark.parametrize("tensors", [1, 3, 2500])
def test_the_parts_of_the_model_are_the_flat_memory(tensors):
    import measures
    import torch

    model = measures.FlatModel(10_000, tensors, seed=0)
    parts = list(model.module.parameters())
    assert len(parts) == tensors
    model.flat.fill_(7.0)
    assert torch.equal(torch.cat([part.detach() for part in parts]), torch.full((2500,), 7.0))


class LocalTable:
    """A table of this process alone."""

    def __init__(self, rows):
        self.values = np.zeros((rows, 2), np.float32)
        self.got = []

    def get(self, row_ids=None):
        self.got.append(row_ids)

    def add(self, data, row_ids=None, *, sync=False):
        self.values[slice(None) if row_ids is None else row_ids] += data


def test_one_percent_of_the_rows_is_drawn_anew_and_added_to_once():
    import tables

    table = LocalTable(1000)
    work = tables.TableWork(table, np.ones_like(table.values), np.random.default_rng(0))
    work.add_rows()
    assert sorted(table.values.sum(axis=1).tolist())[-11:] == [0, *[2] * 10]
    for _ in range(2):
        work.get_rows()
        work.draw()
    first, second = map(set, table.got)
    assert len(first) == len(second) == 10
    assert first != second
    work.add_all()
    assert table.values.min() == 1


def test_a_result_is_shown_and_told_as_json(capsys):
    import common

    figure = {"median_ms": 3.0, "min_ms": 1.0, "max_ms": 4.0, "repetitions": 9}
    result = {
        "processes": 2,
        "repetitions": 9,
        "machine": common.this_machine(),
        "figures": {"copy": figure},
        "failed_rounds": {"copy": 1},
        "ratios": {"copy / copy": 1.0},
    }
    common.show(result, "a heading", {"copy": "what it is"}, as_json=True)
    told, shown = capsys.readouterr()
    assert json.loads(told) == result
    for text in ("a heading, 2 processes", "what it is", "copy / copy", "1 rounds merged nothing"):
        assert text in shown
