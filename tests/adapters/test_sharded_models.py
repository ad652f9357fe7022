"""Ranks of a model that is sharded by `fully_shard` are one member: two groups of two ranks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.processes import ended, start, told_by

from dpwa.launch.ports import free_ports

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return told_by(
        "sharded_groups.py", tmp_path_factory.mktemp("groups"), "merge", "finish", "late", "refused"
    )


@pytest.fixture(scope="module")
def told_slowly(tmp_path_factory):
    return told_by(
        "sharded_groups.py", tmp_path_factory.mktemp("groups"), "merge_bf16", "clip", "checkpoints"
    )


def assert_merged(ranks, tolerance):
    for rank in (0, 1):
        found = ranks["w1", rank]
        assert found["began_with"] == 0.0
        assert found["is_mean"] <= tolerance
        assert found["moved"] > 0.5
        assert ranks["w2", rank]["moved"] == 0.0


def test_whole_tensors_are_the_merge_of_the_whole_models(told):
    assert_merged(told["merge"], 1e-6)


@pytest.mark.slow
def test_parameters_in_bf16_are_merged_alike(told_slowly):
    assert_merged(told_slowly["merge_bf16"], 0.01)


def test_all_ranks_merge_the_same_and_groups_that_end_together_have_one_model(told):
    assert_alike(told["finish"])


@pytest.mark.slow
def test_merges_are_clipped_by_the_distance_over_all_shards(told_slowly):
    assert_alike(told_slowly["clip"])


def assert_alike(ranks):
    for name, other in (("w1", "w2"), ("w2", "w1")):
        first, second = ranks[name, 0], ranks[name, 1]
        assert first["merges"] == second["merges"]
        assert len(first["merges"]) > 10
        assert {peer for peer, *_ in first["merges"]} == {other}
        assert first["clock"] == second["clock"]
        assert first["took_part"] == [other]
        for each in (first, second):  # all ranks are told, of a shard that rank 0 has not
            assert each["differing"] == {other: ["frozen [4, 6] S(0) at (1,) of [2]"]}
            assert each["has_finished"]
        assert sum(first["losses"][-10:]) < sum(first["losses"][:10])
    for rank in (0, 1):
        assert ranks["w1", rank]["digest"] == ranks["w2", rank]["digest"]
    assert ranks["w1", 0]["digest"] != ranks["w1", 1]["digest"]  # they are other shards


def test_a_group_that_comes_late_takes_over_parameters_and_optimizer(told):
    for rank in (0, 1):
        first, late = told["late"]["w1", rank], told["late"]["w2", rank]
        assert late["digest"] == first["digest"]
        assert late["optimizer"] == first["optimizer"]
        assert late["updates"] > 20


@pytest.mark.slow
def test_a_group_goes_on_from_the_newest_checkpoint_that_all_of_its_ranks_have(told_slowly):
    for name in ("w1", "w2"):
        first, second = (told_slowly["checkpoints"][name, rank] for rank in (0, 1))
        assert first["kept"] == second["kept"] >= 2
        assert first["is_same"]
        assert second["is_same"]
        assert first["updates"] == second["updates"] == 10 * (first["kept"] - 1)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("algorithm", "UserError: a model that is sharded .* algorithm symmetric, whose two nodes"),
        ("leader", "UserError: a model .* algorithm lsgd, which follows a leader"),
        ("fraction", "UserError: a model .* fraction below 1"),
        ("topology", "UserError: a model .* topology one_peer_exponential, whose neighbours"),
        ("one rank", "ClosedError: |ParametersError: the same call .* on another rank"),
        (
            "peers refused",
            "MismatchError: every peer|ParametersError: the same call .* on another rank",
        ),
        ("ports", "UserError: the ports of nodes 'w1' and 'w2' on 127.0.0.1 are too close"),
        ("seconds", "UserError: (rank 0 of the model's process group: )?finish: seconds"),
        ("later", "ParametersError: parameter 'weight' was sharded after the adapter was made"),
    ],
)
def test_what_cannot_be_is_refused_on_all_ranks(told, what, words):
    for found in told["refused"].values():
        assert re.match(words, found[what])


class Rank:
    """A rank of a group whose parameters are all one number, and the rows that it has printed."""

    def __init__(self, folder, name, rank, plan="", run=0):
        config = folder / "run.yaml"
        self.program = start("sharded_rank.py", folder, name, rank, config, plan, run)
        self.rows = []

    def follow(self, until=lambda row: False):
        """Read rows until one is as wanted, or there are no more."""
        for line in self.program.stdout:
            self.rows.append(json.loads(line))
            if until(self.rows[-1]):
                break
        return self.rows[-1]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("point", ["shards.arrived", "shards.agreed", "shards.called"])
def test_a_rank_is_killed_no_group_is_half_merged_and_its_group_comes_back(tmp_path, point, rank):
    ports = free_ports(4)
    places = zip(("w1", "w2"), (ports[0], ports[2]), strict=True)
    nodes = [{"name": name, "host": "127.0.0.1", "port": port} for name, port in places]
    config = {"nodes": nodes, "timeout_ms": 1000, "log_level": "error"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    plan = f"{point}:15:SIGKILL"
    staying = [Rank(tmp_path, "w2", r) for r in (0, 1)]
    dying = [Rank(tmp_path, "w1", r, plan if r == rank else "") for r in (0, 1)]
    with ended(*(r.program for r in (*staying, *dying))):
        died_at = [r.follow()[0] for r in dying]
        assert dying[rank].program.wait(PATIENCE_S) == -9
        assert dying[1 - rank].program.wait(PATIENCE_S) == 1  # its model cannot go on, either
        reached = staying[0].follow(lambda row: row[0] >= died_at[0])[0]
        updates, *_, merges = staying[0].follow(lambda row: row[0] >= reached + 20)  # w2 goes on
        coming = [Rank(tmp_path, "w1", r, run=1) for r in (0, 1)]
        with ended(*(r.program for r in coming)):
            for r in coming:
                r.follow(lambda row: row[3] >= 3)
            staying[0].follow(lambda row: row[3] >= merges + 3)
            (tmp_path / "stop").touch()
            for r in (*staying, *coming):
                r.follow()
                assert r.program.wait(PATIENCE_S) == 0
    assert coming[0].rows[0][0] >= updates  # it has taken over the state of w2
    for ranks in (staying, dying, coming):
        first, second = ({row[0]: row[1:] for row in r.rows} for r in ranks)
        assert all(least == largest for least, largest, _ in (*first.values(), *second.values()))
        both = first.keys() & second.keys()
        assert len(both) >= min(len(first), len(second)) - 1
        assert all(first[updates] == second[updates] for updates in both)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("all",)], ids=["two groups", "one group"])
def test_one_run_of_torchrun_may_hold_all_groups_but_not_only_one(arguments):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    program = Path(__file__).parent.parent / "support" / "programs" / "sharded_mesh.py"
    ran = subprocess.run(
        [*torchrun, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = dict(line.split(": ", 1) for line in ran.stdout.splitlines() if line[1:2] == ":")
    assert said.keys() == set("0123"), ran.stderr
    if arguments:
        assert all("no peers to gossip with. Start each group" in text for text in said.values())
        return
    for rank, text in said.items():
        own, other = ("rank0", "rank2") if rank in "01" else ("rank2", "rank0")
        assert text.startswith(f"{own} with ('{other}',), sum ")
    assert len({text.rpartition(" ")[2] for text in said.values()}) == 1
