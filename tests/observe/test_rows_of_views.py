"""Rows of a view: what a node tells, what others tell of it, and its verdicts."""

import math

import numpy as np
import pytest
from support.told_reports import told_answer

from dpwa.cli.top_page import Shown, ViewChoices, printed
from dpwa.observe.figures import NAMES, OTHER_NAMES
from dpwa.observe.history import OTHER_NODE, SampleHistory
from dpwa.observe.rows import groups, missing, rows_of
from dpwa.observe.run_view import Followed, RunView, read_answer
from dpwa.wire.messages import pack


def peer(name, health="alive", *, quarantined=False, score=1000, heard_s=0.1):
    return [name, f"tcp://{name}:1", health, quarantined, score, 1, 0.5, 0.0, 0, 0, 1.0, 1.0,
            heard_s, 0, 0]  # fmt: skip


def answer(name, peers=(), members=(), ending=None, ended=None, sync=None):
    told = {
        "endpoint": f"tcp://{name}:1", "figures": NAMES, "peers": list(peers),
        "members": list(members), "ending": ending, "ended": ended, "sync": sync,
    }  # fmt: skip
    return read_answer(pack(told_answer(name, **told)))


def node(
    name, speed=5.0, *, peers=(), members=(), silent_s=0.0, problem="", told=None, losses=None,
    ending=None, ended=None, sync=None,
):  # fmt: skip
    """A node that has answered, for ten seconds; with `told`: one that only others tell of."""
    history, heard = SampleHistory(len(NAMES)), SampleHistory(len(OTHER_NAMES), OTHER_NODE)
    if told is not None:
        heard.add_sample(1e9, told)
        return Followed(name, f"tcp://{name}:1", None, silent_s, problem, history, heard)
    for second, loss in enumerate(losses or [0.5] * 11):
        figures = dict.fromkeys(NAMES, 0.0) | {
            "steps": speed * second, "train_s": 0.9 * second, "wait_s": 0.1 * second,
            "clock": speed * second, "loss": loss, "consensus_distance": math.nan,
        }  # fmt: skip
        history.add_sample(1e9 + second, [figures[each] for each in NAMES])
    said = answer(name, peers, members, ending, ended, sync)
    return Followed(name, f"tcp://{name}:1", said, silent_s, problem, history, heard)


def rows(*nodes, through="w1", **options):
    return {row.name: row for row in rows_of(RunView(1e9, through, nodes, ()), **options)}


def kinds(row):
    return [verdict.kind for verdict in row.verdicts]


def test_a_node_that_lives():
    row = rows(node("w1", peers=[peer("w2")]), node("w2", peers=[peer("w1", score=400)]))["w1"]
    assert (row.state, row.through, row.problem, row.verdicts) == ("live", "", "", ())
    assert (row.loss, row.clock, row.consensus_distance, row.score) == (0.5, 50.0, None, 400.0)
    assert row.rates.steps_per_s == pytest.approx(5.0)
    assert row.losses == (0.5,) * 11


def test_the_score_is_the_mean_of_those_who_answer():
    nodes = [
        node("w1"),
        node("w2", peers=[peer("w1", score=400)]),
        node("w3", peers=[peer("w1", score=800)]),
        node("w4", peers=[peer("w1", score=0)], silent_s=9.0),
    ]
    assert rows(*nodes)["w1"].score == 600.0


def test_at_most_so_many_losses_are_told_and_all_of_them_as_they_are():
    row = rows(node("w1", losses=[3.0, math.nan, math.inf]), losses=2)["w1"]
    assert np.isnan(row.losses[0])
    assert (row.losses[1], row.loss) == (math.inf, math.inf)
    assert kinds(row) == ["diverged"]


def test_a_node_that_is_silent_has_no_rates():
    row = rows(node("w1", peers=[peer("w2", "unreachable")]), node("w2", silent_s=6.0))["w2"]
    assert row.state == "silent"
    assert row.rates.steps_per_s is None
    assert [v.text for v in row.verdicts] == ["has not answered for 6 s. w1 cannot reach this node"]


def test_a_node_that_has_left_is_not_silent():
    one = node("w1", peers=[peer("w2", "left")])
    assert rows(one, node("w2", silent_s=6.0))["w2"].state == "left"
    other = node("w1", peers=[peer("w2", "finished")])
    assert rows(other, node("w2", silent_s=6.0))["w2"].state == "finished"
    member = node("w1", members=[["w2", "tcp://w2:1", "left"]])
    assert rows(member, node("w2", silent_s=6.0))["w2"].state == "left"
    assert rows(one, node("w2"))["w2"].state == "live"  # it is back, and w1 has not noticed yet


def test_nodes_that_had_finished_are_finished_unless_others_have_lost_them():
    last, live = node("w2", silent_s=6.0, ending=[True, []]), node("w3", silent_s=6.0)
    assert {n: row.state for n, row in rows(last, live).items()} == {
        "w2": "finished",
        "w3": "silent",
    }
    other = node("w1", peers=[peer("w2", "unreachable")])
    assert rows(other, last)["w2"].state == "silent"
    assert rows(node("w2", silent_s=6.0, ending=[False, []]))["w2"].state == "silent"  # killed


def test_how_a_node_has_ended_is_what_it_says_itself_whatever_others_say():
    other = node("w1", peers=[peer("w2", "unreachable"), peer("w3", "unreachable")])
    well = node("w2", silent_s=0.1, ended="", problem="nothing answers")
    badly = node("w3", silent_s=0.1, ended="broken off by ValueError")
    found = rows(other, well, badly)
    assert [(found[n].state, found[n].problem, kinds(found[n])) for n in ("w2", "w3")] == [
        ("finished", "", []), ("left", "broken off by ValueError", ["left"])
    ]  # fmt: skip


@pytest.mark.parametrize(("heard_s", "silent_s"), [(None, 0.0), (None, 4.0), (60.0, 4.0)])
def test_a_node_that_is_not_there_or_never_was_has_no_score(heard_s, silent_s):
    never = node("w2", told=[math.nan] * 4, silent_s=silent_s)
    assert (
        rows(node("w1", peers=[peer("w2", "unknown", heard_s=heard_s)]), never)["w2"].score is None
    )
    assert rows(node("w1", peers=[peer("w2")]), node("w2", silent_s=6.0))["w2"].score is None
    assert rows(node("w1", peers=[peer("w2", heard_s=1.0)]), never)["w2"].score == 1000.0


def test_the_first_line_tells_a_run_that_has_ended_from_one_that_is_lost():
    def first_line(*nodes, has_ended=False):
        view = RunView(1e9, "", nodes, (), has_ended)
        return printed(Shown(view, rows_of(view)), ViewChoices(), 80)[0].plain

    last, lost = node("w2", silent_s=6.0, ended=""), node("w3", silent_s=6.0)
    assert "the run has ended" in first_line(last)
    assert "no node answers any more" in first_line(last, lost)
    ended = first_line(last, lost, has_ended=True)
    assert "the run has ended" in ended
    assert "2 nodes, 1 finished, 1 gone" in ended
    assert "no node has answered yet" in first_line()


def test_of_a_node_that_never_answered_another_one_tells():
    lost = node("w2", told=[7.0, 7, 0.25, math.nan], silent_s=4.0, problem="refused")
    row = rows(node("w1", peers=[peer("w2", "unreachable", heard_s=60.0)]), lost)["w2"]
    assert (row.through, row.clock, row.loss, row.state) == ("w1", 7.0, 0.25, "silent")
    assert kinds(row) == ["gone"]
    assert row.problem == "refused"


def test_of_a_node_of_which_nobody_knows_anything_nothing_is_said():
    lost = node("w2", told=[math.nan] * 4, silent_s=4.0, problem="refused")
    row = rows(node("w1", peers=[peer("w2", "unknown", heard_s=None)]), lost)["w2"]
    assert (row.state, row.verdicts, row.loss) == ("unknown", (), None)


def test_verdicts_of_others_are_told():
    nodes = [
        node("w1", peers=[peer("w2", quarantined=True), peer("w3", "other_model")]),
        node("w2"),
        node("w3"),
        node("w4", speed=1.0),
    ]
    found = rows(*nodes)
    assert [kinds(found[name]) for name in ("w1", "w2", "w3", "w4")] == [
        [], ["quarantined"], ["refused"], ["slow"]
    ]  # fmt: skip


def test_peers_that_are_not_followed_are_passed_over():
    assert list(rows(node("w1", peers=[peer("w9")], members=[["w8", "tcp://w8:1", "dead"]]))) == [
        "w1"
    ]


def test_who_finishes_is_told_as_such_with_whom_it_waits_for_and_slows_nobody():
    nodes = [
        node("w1", 0.0, ending=[False, ["w3"]]),
        node("w2", 0.0, ending=[True, []]),
        node("w3"),
        node("w4", silent_s=9.0, ending=[True, []]),
    ]
    found = rows(*nodes)
    assert [found[name].state for name in found] == ["finishing", "finished", "live", "finished"]
    assert found["w1"].waits_for == ("w3",)
    assert kinds(found["w1"]) == kinds(found["w2"]) == kinds(found["w3"]) == []


def test_nodes_that_average_together_are_in_sync_and_one_that_does_not_is_named():
    together = (["w1", "w3"], None)
    found = rows(node("w1", sync=together), node("w2", sync=([], 12.3)), node("w3", sync=together))
    assert found["w1"].in_sync == found["w3"].in_sync == ("w1", "w3")
    assert kinds(found["w1"]) == kinds(found["w3"]) == []
    assert (found["w2"].in_sync, found["w2"].out_of_sync_s) == ((), 12.3)
    (verdict,) = found["w2"].verdicts
    assert (verdict.kind, verdict.severity) == ("out of sync", "odd")
    assert verdict.text.startswith("has been out of sync for 12 s. It takes its steps with its own")


def test_one_that_averages_alone_is_named_only_if_others_train():
    alone = node("w1", sync=(["w1"], None))
    assert kinds(rows(alone, node("w2", sync=(["w2"], None)))["w1"]) == ["alone"]
    gone = node("w2", sync=(["w1", "w2"], None), silent_s=9.0)
    for other in (gone, node("w2", ending=[True, []])):
        assert kinds(rows(alone, other)["w1"]) == []


def test_a_node_that_ends_is_in_no_rounds_and_that_is_no_matter():
    row = rows(node("w1", sync=([], None), ending=[False, ["w2"]]))["w1"]
    assert (row.state, row.averages, row.in_sync) == ("finishing", True, ())
    assert (row.out_of_sync_s, row.verdicts) == (None, ())


def test_the_group_is_what_most_of_its_members_tell():
    three, two = (["w1", "w2", "w3"], None), (["w1", "w2"], None)
    other = (["w4", "w5"], None)
    told = {"w1": two, "w2": two, "w3": three, "w4": other, "w5": other}
    found = groups([*rows(*(node(name, sync=sync) for name, sync in told.items())).values()])
    assert sorted(found) == [("w1", "w2"), ("w4", "w5")]


def test_figures_that_no_node_has_are_named_with_the_reason():
    def reasons(**more):
        return missing([*rows(node("w1", **more), node("w2", **more)).values()])

    found = reasons()
    assert found["rounds"] == found["mapped"] == ""
    assert found["staleness"] == "no snapshot was merged yet"
    assert found["distance"] == "merges measure it, and there was no merge yet"
    assert not {"loss", "steps", "merges"} & found.keys()
    in_sync = reasons(sync=(["w1", "w2"], None))
    assert in_sync["merges"] == in_sync["staleness"] == "nodes in sync merge no snapshots"
    assert "rounds" not in in_sync
    idle = reasons(speed=0.0, losses=[math.nan] * 11)
    assert idle["loss"] == idle["steps"] == idle["wait"] == "no node has taken a training step"
    assert reasons(speed=0.0, losses=[math.nan] * 2).keys() == {"rounds", "mapped"}  # more may come
