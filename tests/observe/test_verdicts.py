"""Who is slow, gone or sick: the rules at their edges, and the words."""

import math
from dataclasses import replace

import pytest

from dpwa.observe.rates import Rates
from dpwa.observe.verdicts import MIN_WINDOW_S, Condition, verdicts


def pace(speed=10.0, train_s=0.08, wait=0.1, seconds=10.0, idle_s=0.0):
    shares = {"train": 1 - wait, "publish": 0.0, "wait": wait, "merge": 0.0}
    return Rates(seconds, steps_per_s=speed, step_train_s=train_s, shares=shares, idle_s=idle_s)


def of(condition, others=3, other=None):
    """The verdicts about one node among others with which nothing is the matter."""
    usual = other or pace()
    run = {"w1": condition, **{f"w{n + 2}": Condition(usual) for n in range(others)}}
    return verdicts(run)["w1"]


def only(condition, **options):
    (verdict,) = of(condition, **options)
    return verdict


def test_nothing_is_the_matter_with_nodes_that_are_alike():
    assert verdicts({name: Condition(pace(), loss=1.0) for name in "abcd"}) == {
        name: [] for name in "abcd"
    }
    assert verdicts({}) == {}


@pytest.mark.parametrize(("speed", "is_slow"), [(5.0, True), (5.1, False), (2.0, True)])
def test_who_takes_half_the_steps_of_the_others_is_slow(speed, is_slow):
    found = of(Condition(pace(speed)))
    assert [v.kind for v in found] == ["slow"] * is_slow


def test_the_reason_of_slowness_has_both_speeds_and_the_factor():
    verdict = only(Condition(pace(2.0)))
    assert verdict.severity == "odd"
    assert verdict.text == "takes 2 steps/s (median of the other nodes: 10), which is 5.0 x slower"


def test_where_all_wait_for_the_slowest_the_time_of_training_tells():
    verdict = only(Condition(pace(10.0, train_s=0.4)))
    assert verdict.kind == "slow"
    expected = "trains 400 ms per step (median of the other nodes: 80 ms), which is 5.0 x slower"
    assert verdict.text == expected


def test_the_others_of_the_slow_one_are_not_slow_with_two_nodes():
    found = verdicts({"fast": Condition(pace(10.0)), "slow": Condition(pace(2.0))})
    assert [v.kind for v in found["slow"]] == ["slow"]
    assert found["fast"] == []


def test_a_node_alone_is_not_slow():
    assert of(Condition(pace(0.01)), others=0) == []


def test_nobody_is_called_slow_in_the_first_seconds():
    assert of(Condition(pace(1.0, seconds=MIN_WINDOW_S - 0.1))) == []
    assert of(Condition(pace(1.0)), other=pace(seconds=MIN_WINDOW_S - 0.1)) == []


def test_who_does_not_answer_is_no_measure_for_others():
    run = {"w1": Condition(pace(2.0)), "w2": Condition(pace(10.0), silent_s=4.0)}
    assert verdicts(run)["w1"] == []


@pytest.mark.parametrize(("wait", "waits"), [(0.5, False), (0.51, True)])
def test_who_waits_for_more_than_half_of_the_time(wait, waits):
    found = of(Condition(pace(wait=wait)))
    assert [(v.kind, v.severity) for v in found] == [("waiting", "odd")] * waits
    assert all(v.text == "spends 51 % of its time waiting for peers" for v in found)


@pytest.mark.parametrize(("idle_s", "stalled"), [(9.9, False), (10.0, True)])
def test_who_takes_no_step_for_ten_seconds_has_stalled(idle_s, stalled):
    found = of(Condition(pace(speed=0.0, idle_s=idle_s)))
    assert [v.kind for v in found] == ["stalled"] * stalled
    assert all((v.severity, v.text) == ("bad", "has taken no step for 10 s") for v in found)


def test_where_steps_take_long_it_has_stalled_later():
    long = pace(speed=0.1, train_s=9.0)
    assert "stalled" not in {v.kind for v in of(Condition(pace(0.1, idle_s=60.0)), other=long)}
    assert only(Condition(pace(0.1, idle_s=100.0)), other=long).kind == "stalled"


def test_a_loss_that_is_infinite_has_diverged():
    verdict = only(Condition(pace(), loss=math.inf))
    assert (verdict.kind, verdict.severity) == ("diverged", "bad")
    assert of(Condition(pace(), loss=1e300)) == []
    assert of(Condition(pace(), loss=None)) == []


def test_who_is_gone_and_who_says_so():
    said = {"w2": "unreachable", "w3": "dead", "w4": "suspect", "w5": "alive"}
    verdict = only(Condition(pace(), silent_s=7.4, said=said))
    assert (verdict.kind, verdict.severity) == ("gone", "bad")
    told = "has not answered for 7 s. w2 cannot reach this node. w3 considers this node dead"
    assert verdict.text == told


def test_who_never_answered_is_gone_with_the_reason():
    silent = Condition(Rates(), silent_s=4.0, has_answered=False, problem="connection refused")
    assert only(silent).text == "cannot be reached: connection refused"


@pytest.mark.parametrize(("heard_s", "kind"), [(5.0, "no answer"), (5.1, "gone")])
def test_who_does_not_answer_here_but_is_heard_of_is_not_gone(heard_s, kind):
    silent = Condition(Rates(), silent_s=4.0, has_answered=False, problem="no", heard_s=heard_s)
    verdict = only(silent)
    assert verdict.kind == kind
    assert verdict.text.endswith(". A peer heard from this node 5 s ago")
    known = Condition(pace(), silent_s=4.0, heard_s=heard_s)
    assert only(known).kind == "gone"  # it did answer, and does so no more


def test_who_was_heard_of_a_moment_ago_is_gone_if_nobody_can_reach_it_any_more():
    silent = Condition(Rates(), silent_s=4.0, has_answered=False, problem="no", heard_s=1.0)
    lost = replace(silent, said={"w2": "unreachable", "w3": "silent"})
    assert only(lost).kind == "gone"
    assert only(replace(lost, said={"w2": "unreachable", "w3": "alive"})).kind == "no answer"


def test_who_has_left_is_not_gone_and_nothing_is_the_matter_unless_it_was_no_good_end():
    left = Condition(pace(), silent_s=99.0, end="left", said={"w2": "unreachable"})
    assert of(left) == []
    verdict = only(replace(left, problem="broken off by ValueError"))
    assert (verdict.kind, verdict.severity) == ("left", "odd")
    assert verdict.text == "has left: broken off by ValueError"


def test_who_is_in_quarantine_and_where():
    verdict = only(Condition(pace(), quarantined_by=["w2", "w3", "w4", "w5", "w6"]))
    assert (verdict.kind, verdict.severity) == ("quarantined", "bad")
    assert verdict.text.startswith("is in quarantine at w2, w3, w4 and 2 more, because ")


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        ("other_version", "it uses a different protocol version"),
        ("other_model", "it has a different model"),
        ("other_settings", "it has different settings"),
        ("misbehaving", "it breaks the protocol"),
        ("diverged", "it has diverged"),
    ],
)
def test_who_is_refused_and_why(health, reason):
    verdict = only(Condition(pace(), said={"w2": "alive", "w3": health}))
    assert (verdict.kind, verdict.severity) == ("refused", "bad")
    assert verdict.text == f"is not merged by w3, because {reason}"


def test_several_things_may_be_the_matter():
    sick = Condition(pace(2.0, wait=0.9), loss=math.inf, quarantined_by=["w2"])
    assert [v.kind for v in of(sick)] == ["diverged", "slow", "waiting", "quarantined"]


def test_who_has_taken_its_last_step_is_neither_slow_nor_a_measure_for_those_who_train():
    ended = Condition(pace(10.0), trains=False)
    found = verdicts(
        {"w1": ended, "w2": ended, "w3": Condition(pace(1.0)), "w4": Condition(pace())}
    )
    assert [verdict.kind for verdict in found["w3"]] == ["slow"]  # than w4
    alone = verdicts({"w1": ended, "w2": ended, "w3": Condition(pace(1.0))})
    slow = Condition(pace(0.0, wait=1.0, idle_s=100.0), trains=False)
    assert alone["w3"] == [] == of(slow)
