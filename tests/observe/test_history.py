"""Samples in bounded memory: the last minutes in full, the last hours at ten seconds."""

import numpy as np
import pytest

from dpwa.observe.figures import NAMES
from dpwa.observe.history import OTHER_NODE, SampleHistory

HOUR_S = 3600.0


def filled(seconds, width=2, **options):
    history = SampleHistory(width, **options)
    for at in range(seconds):
        history.add_sample(1e9 + at, [at] * width)
    return history


def test_the_last_ten_minutes_are_there_second_by_second():
    rows = filled(2000).since(1e9 + 2000 - 601)
    assert list(rows[:, 1]) == list(range(1400, 2000))


def test_before_that_there_is_a_sample_every_ten_seconds_for_more_than_three_hours():
    rows = filled(int(4 * HOUR_S)).since()
    coarse = rows[:-600]
    assert rows[-1, 1] - rows[0, 1] > 3 * HOUR_S
    assert set(np.diff(coarse[:, 0])) <= {9.0, 10.0}


def test_times_rise_and_each_is_there_once():
    rows = filled(5000).since()
    assert (np.diff(rows[:, 0]) > 0).all()


def test_all_samples_come_in_batches_of_any_size():
    history, since, found = filled(3000), 0.0, []
    while len(batch := history.since(since, 700)):
        assert len(batch) <= 700
        found.append(batch)
        since = batch[-1, 0]
    assert np.array_equal(np.concatenate(found), history.since())


def test_a_sample_that_is_not_newer_is_left_out():
    history = SampleHistory(1)
    for at in (5.0, 5.0, 4.0):
        history.add_sample(at, [at])
    assert history.since().tolist() == [[5.0, 5.0]]


def test_what_a_dashboard_keeps_of_64_nodes_for_3_hours_takes_less_than_50_mb():
    one = filled(int(3 * HOUR_S), len(NAMES))
    assert 64 * one.nbytes < 50e6


def test_what_a_node_keeps_of_itself_and_63_others_takes_less_than_5_mb():
    own, other = filled(12_000, len(NAMES)), filled(12_000, 4, resolutions=OTHER_NODE)
    assert own.nbytes + 63 * other.nbytes < 5e6


@pytest.mark.parametrize("seconds", [0, 1, 16, 17, 600, 601])
def test_nothing_is_lost_while_the_memory_grows(seconds):
    assert list(filled(seconds).since()[:, 1]) == list(range(seconds))
