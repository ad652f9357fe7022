from __future__ import annotations

from pathlib import Path

import pytest

from dpwa.launch import LaunchSpec
from dpwa.launch.engine import node_environments

SPEC = LaunchSpec(["true"], Path("some/dpwa.yaml"), ("alice", "bob", "carol"))


def test_each_node_learns_who_it_is() -> None:
    found = node_environments(SPEC, {"HOME": "/home/me"}, core_count=8)
    assert [one["DPWA_NAME"] for one in found] == ["alice", "bob", "carol"]
    assert [one["DPWA_RANK"] for one in found] == ["0", "1", "2"]
    for one in found:
        assert one["DPWA_WORLD_SIZE"] == "3"
        assert one["DPWA_CONFIG"] == str(Path.cwd() / "some/dpwa.yaml")
        assert one["PYTHONUNBUFFERED"] == "1"
        assert one["HOME"] == "/home/me"


def test_all_nodes_of_a_launch_have_the_id_of_the_run_and_no_other_launch_has() -> None:
    (one, two, _), (other, *_) = node_environments(SPEC, {}, 8), node_environments(SPEC, {}, 8)
    assert one["DPWA_RUN_ID"] == two["DPWA_RUN_ID"] != other["DPWA_RUN_ID"]
    assert node_environments(SPEC, {"DPWA_RUN_ID": "x"}, 8)[0]["DPWA_RUN_ID"] == "x"
    part = LaunchSpec(["true"], Path("c"), ("w1",), world=("w1", "w2"))
    assert "DPWA_RUN_ID" not in node_environments(part, {}, 8)[0]


def test_nothing_is_set_that_would_start_a_process_group_of_another_library() -> None:
    for one in node_environments(SPEC, {}, core_count=8):
        ours = {name for name in one if not name.startswith("DPWA_")}
        assert ours == {"PYTHONUNBUFFERED", "OMP_NUM_THREADS"}


@pytest.mark.parametrize(("cores", "threads"), [(8, "2"), (3, "1"), (2, "1")])
def test_nodes_share_the_cores(cores: int, threads: str) -> None:
    for one in node_environments(SPEC, {}, cores):
        assert one["OMP_NUM_THREADS"] == threads


def test_the_users_own_number_of_threads_stays() -> None:
    assert node_environments(SPEC, {"OMP_NUM_THREADS": "5"}, 8)[0]["OMP_NUM_THREADS"] == "5"


def test_extra_variables_win_over_inherited_ones_but_not_over_identity() -> None:
    spec = LaunchSpec(["x"], Path("c"), ["w1"], environment={"A": "spec", "DPWA_NAME": "wrong"})
    (found,) = node_environments(spec, {"A": "inherited"}, 1)
    assert found["A"] == "spec"
    assert found["DPWA_NAME"] == "w1"
