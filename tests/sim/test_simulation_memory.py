"""Memory of simulated runs: it is freed without a search for cycles, as none pile up."""

import gc

import pytest
from support.simulations import simulated

from dpwa.sim.rules.fleet import no_search_for_cycles


def left_over(rounds, settings, scenario):
    """How many objects a run leaves behind that only a search for cycles finds."""
    gc.disable()
    try:
        simulated(12, settings, rounds=rounds, detail="rules", **scenario)
        return gc.collect()
    finally:
        gc.enable()


SETTINGS = [
    {}, {"algorithm": "symmetric"}, {"algorithm": "push_sum"}, {"algorithm": "lsgd"},
    {"topology": "one_peer_exponential"},
]  # fmt: skip
SCENARIOS = [
    {}, {"schedule": "lockstep", "churn": {"kill_every_s": 5, "return_after_s": 1}},
    {"compute": {"jitter": 0.5}, "network": {"latency_ms": 60, "loss": 0.1}},
]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "scenario"),
    [
        pytest.param(settings, scenario, marks=[pytest.mark.slow] if settings and scenario else [])
        for settings in SETTINGS
        for scenario in SCENARIOS
    ],
)
def test_what_a_run_leaves_behind_does_not_grow_with_its_length(settings, scenario):
    left_over(3, settings, scenario)  # what is made once, or was there before
    short, long = (left_over(rounds, settings, scenario) for rounds in (10, 30))
    assert long < short + 20 * 12  # or each update would leave something


def test_the_search_goes_on_after_a_run():
    with no_search_for_cycles():
        assert not gc.isenabled()
    assert gc.isenabled()
