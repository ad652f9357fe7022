"""Ranks of a DistributedDataParallel module are one node: two groups of two ranks gossip."""

import pytest
from support.processes import told_by

from dpwa.adapters.ranks.group import Failure, pack, unpack
from dpwa.errors import DpwaError, JoinTimeoutError, PeerLost
from dpwa.state.checkpoints import BrokenCheckpointError

SILENCE_S = 15.0  # as in ddp_groups.py


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return told_by("ddp_groups.py", tmp_path_factory.mktemp("groups"), "gossip", "refused")


def test_both_ranks_of_a_group_are_bit_identical_after_merges_and_the_groups_agree(told):
    ranks = told["gossip"]
    assert all(found["has_agreed"] for found in ranks.values())
    for name in ("w1", "w2"):
        assert ranks[name, 0]["digest"] == ranks[name, 1]["digest"]
    assert ranks["w1", 0]["value"] == pytest.approx(ranks["w2", 0]["value"], abs=1e-6)
    assert 1.0 <= ranks["w1", 0]["value"] <= 2.0
    assert ranks["w1", 0]["running_mean"] == pytest.approx(ranks["w2", 0]["running_mean"], abs=1e-6)


def test_all_ranks_know_the_clock_and_the_peers_and_the_loss_is_their_mean(told):
    ranks = told["gossip"]
    for name, peer in (("w1", "w2"), ("w2", "w1")):
        assert ranks[name, 0]["clock"] == ranks[name, 1]["clock"] > 0
        assert ranks[name, 0]["updates"] == ranks[name, 1]["updates"] > 0
        assert ranks[name, 0]["peers"] == ranks[name, 1]["peers"] == [peer]
        place = [int(name == "w2"), 2, ["w1", "w2"]]
        assert ranks[name, 0]["place"] == ranks[name, 1]["place"] == place
        assert ranks[name, 0]["loss"] == 2.0  # of 1.0 and 3.0
        assert "rank 1, without the node, which rank 0 has" in ranks[name, 1]["repr"]


def test_a_closed_adapter_is_closed_on_all_ranks(told):
    assert {found["after close"] for found in told["gossip"].values()} == {"ClosedError"}


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("names", "UserError: the ranks that hold a module together are one node"),
        ("name", "UnknownNameError"),
        ("optimizer", "must both pass `optimizer`, or both omit the argument"),
        ("port", "AddressError"),
        ("loss", "ParametersError"),
        ("closed", "ClosedError"),
    ],
)
def test_what_one_rank_refuses_all_refuse(told, what, words):
    for found in told["refused"].values():
        assert words in found[what]


def as_raised_elsewhere(error):
    with pytest.raises(Exception, match=rf"rank 0 .* {error}") as caught:
        Failure(*unpack(pack(Failure.from_error(error, 0)))).throw()
    return caught.value


def test_who_ends_with_its_rank_0_has_the_same_exit_code():
    error = as_raised_elsewhere(JoinTimeoutError("nobody answers"))
    assert isinstance(error, JoinTimeoutError)
    assert error.code == 3


def test_an_error_of_rank_0_is_of_the_same_kind_on_all_ranks_or_of_the_nearest_public_one():
    lost = as_raised_elsewhere(PeerLost(["w2"], "w2 is gone"))
    assert isinstance(lost, PeerLost)
    assert lost.names == ("w2",)
    assert type(as_raised_elsewhere(BrokenCheckpointError("no such name"))) is DpwaError
    assert type(as_raised_elsewhere(OSError("no space left"))) is RuntimeError


@pytest.mark.parametrize("what", ["center", "collective", "connection", "leader"])
def test_what_only_the_rank_with_the_node_has_is_refused_elsewhere(told, what):
    for name in ("w1", "w2"):
        assert "rank 1 of the model's process group has no '" in told["refused"][name, 1][what]


@pytest.mark.slow
def test_an_optimizer_that_gossips_keeps_the_ranks_identical_at_every_step(tmp_path):
    ranks = told_by("ddp_groups.py", tmp_path, "step")["step"]
    for name, lr in (("w1", 0.005), ("w2", 0.015)):
        assert ranks[name, 0] == ranks[name, 1]
        assert ranks[name, 0]["merged"] > 0
        assert ranks[name, 0]["lr"] == pytest.approx(lr)


@pytest.mark.slow
def test_an_iterate_of_its_own_is_switched_on_all_ranks_and_left_as_evaluated(tmp_path):
    ranks = told_by("ddp_groups.py", tmp_path, "schedule_free")["schedule_free"]
    for name in ("w1", "w2"):
        assert ranks[name, 0] == ranks[name, 1]
        assert ranks[name, 0]["modes"] == [False]
    assert ranks["w1", 0]["values"] == pytest.approx(ranks["w2", 0]["values"], abs=1e-4)


@pytest.mark.slow
def test_a_group_that_comes_late_takes_over_all_of_the_state_on_all_ranks(tmp_path):
    ranks = told_by("ddp_groups.py", tmp_path, "late")["late"]
    w1, w2 = ranks["w1", 0], ranks["w2", 0]
    assert ranks["w1", 1] == w1
    assert ranks["w2", 1] == w2
    assert w2["digest"] == w1["digest"]  # frozen ones too
    assert w2["optimizer"] == w1["optimizer"] > 0
    assert w2["schedule"] == w1["schedule"] == [5, [0.01 * 0.5**5]]
    assert w2["clock"] > 4


@pytest.mark.slow
def test_a_state_of_the_optimizer_that_is_of_no_use_is_taken_over_by_no_rank(tmp_path):
    ranks = told_by("ddp_groups.py", tmp_path, "unfit")["unfit"]
    assert ranks["w2", 0]["digest"] == ranks["w1", 0]["digest"]
    assert ranks["w2", 0] == ranks["w2", 1]
    assert ranks["w2", 0]["optimizer"] == 0


@pytest.mark.slow
def test_ranks_wait_in_finish_for_longer_than_their_process_group_lets_them_be_silent(tmp_path):
    ranks = told_by("ddp_groups.py", tmp_path, "finish")["finish"]
    for name, peer in (("w1", "w2"), ("w2", "w1")):
        assert ranks[name, 0] == ranks[name, 1]
        assert ranks[name, 0]["took_part"] == [peer]
    assert ranks["w1", 0]["waited_s"] > SILENCE_S
