"""What the processes are told."""

import pytest

from dpwa.bench.collectives import CollectivesSpec
from dpwa.bench.plan import PlanePlan, Rank
from dpwa.bench.plane import PlaneSpec
from dpwa.bench.suites.plane import BARE_ZEROMQ, LINKS, RAW_TCP
from dpwa.bench.tables import TablesSpec
from dpwa.errors import UserError


def test_every_link_and_process_has_a_port_of_its_own():
    plan = PlaneSpec(1, hosts=("127.0.0.1",) * 3).plan()
    assert set(plan.ports) == {*LINKS, RAW_TCP, BARE_ZEROMQ}
    assert {len(ports) for ports in plan.ports.values()} == {3}
    assert len({port for ports in plan.ports.values() for port in ports}) == 3 * len(plan.ports)


@pytest.mark.parametrize("link", LINKS)
def test_a_link_is_configured_as_the_catalogue_says_whatever_the_environment(monkeypatch, link):
    monkeypatch.setenv("DPWA_TRANSPORT", "auto")
    monkeypatch.setenv("DPWA_TIMEOUT_MS", "1")
    plan = PlaneSpec(100).plan()
    config = plan.config(link, LINKS[link])
    assert [node.port for node in config.nodes] == list(plan.ports[link])
    assert (config.transport, config.codec) == (LINKS[link].transport, LINKS[link].codec)
    assert config.timeout_ms == 15_000


def test_a_size_is_in_millions_of_bytes_and_whole_values():
    assert PlaneSpec(100).plan().nbytes == 100_000_000
    assert PlaneSpec(0.01).plan().nbytes == 10_000


def test_a_table_is_rows_of_float32():
    assert TablesSpec().plan().nbytes == 256_000_000
    plan = TablesSpec(rows=1000, columns=3).plan()
    assert (plan.nbytes, plan.rows, plan.columns) == (12_000, 1000, 3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (PlaneSpec(1, measures=("copy", "cpoy")), r"\(got cpoy\)"),
        (PlaneSpec(1, measures=()), r"expected measures of copy, .*\(got none\)"),
        (CollectivesSpec(1, measures=("shm_barrier", "copy")), r"\(got copy\)"),
        (TablesSpec(measures=("tcp_get_rows", "shm_barrier")), r"\(got shm_barrier\)"),
        (PlaneSpec(0.01, tensors=2501), "2501 tensors do not fit into 2500 values"),
    ],
)
def test_impossible_wishes_are_told_before_anything_starts(spec, message):
    with pytest.raises(UserError, match=message):
        spec.plan()


def test_a_process_finds_its_seat_and_plan_in_its_environment(monkeypatch, tmp_path):
    path = tmp_path / "plan.json"
    plan = PlaneSpec(1).plan()
    path.write_text(plan.model_dump_json())
    monkeypatch.setenv("DPWA_RANK", "1")
    monkeypatch.setenv("DPWA_WORLD_SIZE", "2")
    monkeypatch.setenv("DPWA_CONFIG", str(path))
    rank = Rank.from_environment()
    assert (rank.index, rank.count, rank.name) == (1, 2, "w2")
    assert rank.plan(PlanePlan) == plan


@pytest.mark.parametrize("spec", [PlaneSpec(1), CollectivesSpec(1), TablesSpec()])
def test_a_process_knows_which_benchmark_it_is_for(spec, tmp_path):
    plan = spec.plan()
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    found = Rank(0, 2, tmp_path / "plan.json").benchmark_plan()
    assert found == plan
    assert type(found) is type(plan)
