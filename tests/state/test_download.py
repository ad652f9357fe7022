"""Which pieces are asked of whom, whatever donors do: a simulation without messages."""

import random

from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from dpwa.state.download import DOUBLED_AFTER_S, MAX_CORRUPT_PIECES, STALL_S, WINDOW, Download


@examples(300)
@given(
    st.integers(1, 60),
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
    st.integers(0, 2**32),
    st.floats(0.0, 0.2),
)
def test_all_pieces_come_whatever_donors_do_as_long_as_one_stays(count, speeds, seed, badness):
    """Donors die, stall, come back and corrupt pieces; the first one only corrupts some."""
    rng, now = random.Random(seed), 0.0
    names = [f"w{index}" for index in range(len(speeds))]
    download, under_way, came = Download(count), [], []
    for _ in range(40 * count + 200):
        if download.is_complete:
            break
        if not download.donors or rng.random() < 0.2:
            download.add_donor(rng.choice(names), now)
        for donor, index in download.requests(now):
            assert donor in download.donors
            under_way.append((now + speeds[names.index(donor)], donor, index))
        for donor in download.donors:
            if donor != names[0] and rng.random() < badness:
                download.remove(donor)
                under_way = [r for r in under_way if r[1] != donor or rng.random() < 0.5]
        now += 0.1
        for due, donor, index in sorted(under_way):
            if due <= now:
                under_way.remove((due, donor, index))
                if rng.random() < badness / 4:
                    if download.corrupted(donor, index):
                        download.remove(donor)
                elif download.arrived(donor, index, now):
                    came.append(index)
        for donor in download.stalled(now):
            download.remove(donor)
    assert download.is_complete
    assert sorted(came) == list(range(count))
    assert sum(download.brought.values()) == count


def test_a_fast_donor_brings_more():
    download, now, left = Download(100), 0.0, {"fast": [], "slow": []}
    download.add_donor("fast", now)
    download.add_donor("slow", now)
    step = 0
    while not download.is_complete:
        for donor, index in download.requests(now):
            left[donor].append(index)
        step += 1
        now += 0.01
        for donor in ["fast", *(["slow"] if step % 9 == 0 else [])]:
            if left[donor]:
                download.arrived(donor, left[donor].pop(0), now)
    assert download.brought["fast"] > 5 * download.brought["slow"] > 0


def test_at_most_a_window_is_under_way_with_each_donor():
    download = Download(100)
    download.add_donor("w1", 0.0)
    download.add_donor("w2", 0.0)
    asked = list(download.requests(0.0))
    assert len(asked) == 2 * WINDOW
    assert len({index for _, index in asked}) == 2 * WINDOW
    assert list(download.requests(0.0)) == []


def test_what_was_under_way_with_a_lost_donor_is_asked_of_another():
    download = Download(WINDOW)
    download.add_donor("w1", 0.0)
    asked = [index for _, index in download.requests(0.0)]
    download.add_donor("w2", 0.0)
    assert list(download.requests(0.1)) == []
    download.remove("w1")
    assert sorted(index for _, index in download.requests(0.1)) == sorted(asked)


def test_the_last_pieces_of_a_donor_that_hangs_are_asked_of_another_too():
    download = Download(2 * WINDOW)
    download.add_donor("stopped", 0.0)
    download.add_donor("alive", 0.0)
    asked = list(download.requests(0.0))
    for donor, index in asked:
        if donor == "alive":
            download.arrived(donor, index, 0.1)
    assert list(download.requests(0.1)) == []
    held = {index for donor, index in asked if donor == "stopped"}
    now, again = 0.1 + DOUBLED_AFTER_S, set()
    while not download.is_complete:
        for donor, index in list(download.requests(now)):
            assert donor == "alive"
            again.add(index)
            assert download.arrived(donor, index, now)
        now += 0.01
    assert again == held
    assert now < STALL_S


def test_a_corrupt_piece_is_asked_elsewhere_and_a_donor_of_several_is_given_up():
    download = Download(10, window=1)
    download.add_donor("bad", 0.0)
    ((_, first),) = download.requests(0.0)
    download.add_donor("good", 0.0)
    assert not download.corrupted("bad", first)
    asked = dict(download.requests(0.0))
    assert asked["good"] == first
    for _ in range(MAX_CORRUPT_PIECES - 2):
        assert not download.corrupted("bad", asked["bad"])
        asked = dict(download.requests(0.0))
    assert download.corrupted("bad", asked["bad"])


def test_what_a_donor_whose_connection_was_given_up_was_asked_it_is_asked_again():
    download = Download(WINDOW)
    download.add_donor("w1", 0.0)
    asked = list(download.requests(0.0))
    download.disconnected("w1", 0.1)  # the connection is only being made
    assert list(download.requests(0.1)) == []
    download.disconnected("w1", 1.0)
    assert sorted(download.requests(1.0)) == sorted(asked)


def test_a_donor_that_brings_nothing_for_long_has_stalled():
    download = Download(10)
    download.add_donor("w1", 0.0)
    assert download.stalled(STALL_S * 2) == []  # nothing was asked yet
    list(download.requests(7.0))
    assert download.stalled(7.0 + STALL_S - 0.1) == []
    assert download.stalled(7.0 + STALL_S) == ["w1"]
