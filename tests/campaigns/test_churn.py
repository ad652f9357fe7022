"""A cluster whose members die all the time, and one that is cut in two: shorter than by hand."""

from contextlib import ExitStack

import churn
import pytest

from dpwa.testing import namespaces_missing

SEED = 0


def assert_all_hold(promises):
    for promise in promises:
        print(promise.text, promise.figure)
    assert all(promise.holds for promise in promises)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_while_members_die_and_others_come(tmp_path):
    print(f"seed {SEED}")
    with ExitStack() as stack:
        assert_all_hold(churn.churn(SEED, 60.0, 8, tmp_path, stack))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing())
def test_halves_that_were_cut_off_are_one_again_soon_after(tmp_path):
    print(f"seed {SEED}")
    with ExitStack() as stack:
        assert_all_hold(churn.partition(SEED, 0.0, 8, tmp_path, stack))
