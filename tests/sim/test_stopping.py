"""A run ends soon after somebody wants it to, however seldom it takes samples."""

import pytest

from dpwa.sim import samples
from dpwa.sim.load import load_scenario
from dpwa.sim.simulate import simulate

LONG = {"nodes": 16, "rounds": 1_000_000}  # a sample is due every 5,000 rounds


@pytest.mark.parametrize("target", [{}, {"variance_ratio": 1e-300}])
@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "lockstep"},
        {"schedule": "lockstep", "algorithm": "symmetric"},
        {"detail": "nodes"},
    ],
)
def test_whoever_watches_can_end_it_between_samples(monkeypatch, settings, target):
    monkeypatch.setattr(samples, "ASK_EVERY_S", 0.0)
    shown = []

    def watch(sample):
        shown.append(sample)
        return len(shown) < 5

    outcome = simulate(load_scenario({**LONG, **settings, "target": target}), watch)
    assert outcome.was_stopped
    assert outcome.samples[-1].round < 500
    assert len(outcome.samples) == 2  # of the beginning and of the end
    assert len(set(shown[:4])) == 1


def test_whoever_watches_is_not_asked_all_the_time():
    asked = []
    scenario = {**LONG, "schedule": "lockstep", "rounds": 2000, "nodes": 2}
    simulate(load_scenario(scenario), lambda sample: asked.append(sample) is None)
    assert len(asked) < 300  # 200 samples, and a few times in between
