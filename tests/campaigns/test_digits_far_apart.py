"""Nodes that are far apart learn what none of them could learn alone."""

import pytest
from digits_far_apart import GOAL, run

from dpwa.testing import namespaces_missing

SEED = 0


def assert_all_have_learnt(link):
    outcomes = run(link, SEED)
    print(f"seed {SEED}: {outcomes}")
    assert all(outcome.accuracy >= GOAL > outcome.accuracy_alone for outcome in outcomes)
    assert all(outcome.merges for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.timeout(320)
@pytest.mark.skipif(bool(namespaces_missing(loss=True)), reason=namespaces_missing(loss=True))
def test_digits_are_learnt_over_thin_links_that_lose_packets():
    assert_all_have_learnt("lossy")


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_digits_are_learnt_over_links_with_200_ms_of_delay():
    assert_all_have_learnt("slow")
