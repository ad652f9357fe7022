"""What a simulated run comes to."""

import pytest

from dpwa.sim.load import load_scenario
from dpwa.sim.samples import NodeFigures, RunOutcome, Sample
from dpwa.sim.summary import figures_of, jain_index

SPEC = {"nodes": 2, "rounds": 10, "target": {"variance_ratio": 0.1}}


def sample(time_s, ratio, accuracy=None):
    return Sample(time_s, time_s * 2, 2, ratio, ratio**0.5, None, accuracy, time_s * 100)


def node(name, served, waited_s=1.0):
    return NodeFigures(name, 10, 8, 500 * served, 500, 4.0, waited_s, served)


def outcome(*samples):
    nodes = (node("n0", 6, 0.0), node("n1", 2, 2.0))
    return RunOutcome(samples, nodes, ((1.0, "n1 was killed"),), "rules")


def test_the_target_is_reached_with_the_first_sample_that_meets_it():
    figures = figures_of(
        load_scenario(SPEC), outcome(sample(0, 1.0), sample(3, 0.09), sample(5, 0.01))
    )
    assert figures.reached
    assert (figures.seconds_to_target, figures.rounds_to_target) == (3, 6)
    assert figures.bytes_per_node == 500
    assert figures.steps_per_s == 4.0
    assert figures.waiting_share == pytest.approx(2 / 10)
    assert (figures.most_served, figures.most_bytes_sent) == (6, 3000)
    assert figures.serving_fairness == pytest.approx(64 / (2 * 40))
    assert figures.events == 1


def test_a_target_that_is_never_met_has_no_time():
    figures = figures_of(load_scenario(SPEC), outcome(sample(0, 1.0), sample(5, 0.2)))
    assert not figures.reached
    assert figures.seconds_to_target is None
    assert figures.rounds_to_target is None


def test_all_parts_of_a_target_are_to_be_met_at_once():
    spec = load_scenario(
        {
            "nodes": 2,
            "rounds": 10,
            "task": "digits",
            "target": {"variance_ratio": 0.1, "accuracy": 0.9},
        }
    )
    samples = (sample(1, 0.01, 0.5), sample(2, 0.5, 0.95), sample(3, 0.05, 0.92))
    assert figures_of(spec, outcome(*samples)).seconds_to_target == 3


def test_without_a_target_nothing_is_reached():
    figures = figures_of(load_scenario({"nodes": 2, "rounds": 3}), outcome(sample(0, 0.0)))
    assert not figures.reached
    assert figures.steps_per_s == 0.0  # of a run without length


@pytest.mark.parametrize(
    ("loads", "expected"), [([3, 3, 3], 1.0), ([0, 0, 0, 8], 0.25), ([0, 0], None), ([], None)]
)
def test_jain_index(loads, expected):
    assert jain_index(loads) == expected
