"""What a reader holds, on both ends: wherever they agree, they hold the same bytes."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dpwa.data.delta_base import MAX_SHARDS, NOTHING, DeltaBase, ReaderBases

NBYTES = 12
WHOLE = (0, NBYTES)
SHARDS = [WHOLE, (0, 4), (4, 8), (8, 12)]
LIMIT = 3
RESYNC_EVERY = 4


@pytest.fixture
def served():
    return ReaderBases(LIMIT, RESYNC_EVERY)


def fetch(served, reader, token, nbytes=NBYTES, shard=WHOLE):
    """One fetch that goes well; return the token that it leads to, and whether the ends agreed."""
    held, agrees = served.take(reader, token, nbytes, shard)
    served.give_back(reader, held)
    return held.token, agrees


def test_a_reader_agrees_once_it_names_what_it_was_given(served):
    first, agreed = fetch(served, b"reader", NOTHING)
    assert (agreed, first != NOTHING) == (False, True)
    second, agreed = fetch(served, b"reader", first)
    assert (agreed, second != first) == (True, True)


def test_nothing_is_no_token_to_agree_on(served):
    held, _ = served.take(b"reader", NOTHING, NBYTES, WHOLE)
    held.token = NOTHING
    served.give_back(b"reader", held)
    assert not fetch(served, b"reader", NOTHING)[1]


@pytest.mark.parametrize("named", [NOTHING, 1, 2, 2**62])
def test_a_reader_that_names_another_token_gets_all_of_it(served, named):
    token, _ = fetch(served, b"other", NOTHING)
    token, _ = fetch(served, b"reader", NOTHING)
    token, _ = fetch(served, b"reader", token)
    assert named != token
    assert not fetch(served, b"reader", named)[1]


def test_no_reader_agrees_with_the_token_of_another(served):
    token, _ = fetch(served, b"one", NOTHING)
    fetch(served, b"other", NOTHING)
    assert not fetch(served, b"other", token)[1]


def test_a_fetch_that_broke_off_is_followed_by_all_of_it(served):
    token, _ = fetch(served, b"reader", NOTHING)
    broken, agrees = served.take(b"reader", token, NBYTES, WHOLE)
    assert agrees
    assert served.nbytes == 0
    assert not fetch(served, b"reader", token)[1]
    token, agrees = fetch(served, b"reader", broken.token)
    assert not agrees


def test_every_so_many_fetches_all_of_it_is_sent(served):
    token, agreed = NOTHING, []
    for _ in range(3 * RESYNC_EVERY):
        token, agrees = fetch(served, b"reader", token)
        agreed.append(agrees)
    assert agreed == 3 * [False, *(RESYNC_EVERY - 1) * [True]]


def test_with_a_resynchronisation_at_every_fetch_nobody_ever_agrees():
    served, token = ReaderBases(LIMIT, resync_every=1), NOTHING
    for _ in range(3):
        token, agrees = fetch(served, b"reader", token)
        assert not agrees


def test_a_snapshot_of_another_size_is_held_anew(served):
    token, _ = fetch(served, b"reader", NOTHING)
    held, agrees = served.take(b"reader", token, 2 * NBYTES, (0, 2 * NBYTES))
    assert (agrees, held.data.nbytes, held.data.any()) == (False, 2 * NBYTES, False)


def test_each_shard_is_sent_whole_before_differences_of_it_are(served):
    """What was never sent of a copy is zeros on both ends, and no snapshot of anything."""
    token, agreed = NOTHING, []
    for shard in 2 * SHARDS[1:]:
        token, agrees = fetch(served, b"reader", token, shard=shard)
        agreed.append(agrees)
    assert agreed == [False, False, False, True, True, True]


def test_each_shard_is_resynchronised_in_its_turn(served):
    token, agreed = NOTHING, {shard: [] for shard in SHARDS[1:]}
    for _ in range(2 * RESYNC_EVERY):
        for shard, of_this in agreed.items():
            token, agrees = fetch(served, b"reader", token, shard=shard)
            of_this.append(agrees)
    for of_this in agreed.values():
        assert of_this == 2 * [False, *(RESYNC_EVERY - 1) * [True]]


def test_a_reader_that_asks_for_ever_new_shards_costs_no_memory(served):
    token = NOTHING
    for start in range(5_000):
        token, _ = fetch(served, b"reader", token, shard=(start, start + 1))
    held, _ = served.take(b"reader", token, NBYTES, WHOLE)
    assert len(held.updates) <= MAX_SHARDS + 1


def test_so_many_readers_are_remembered_and_the_one_unheard_for_longest_goes(served):
    tokens = {reader: fetch(served, reader, NOTHING)[0] for reader in (b"1", b"2", b"3")}
    tokens[b"1"], _ = fetch(served, b"1", tokens[b"1"])
    assert served.nbytes == LIMIT * NBYTES
    fetch(served, b"4", NOTHING)
    assert served.nbytes == LIMIT * NBYTES
    assert fetch(served, b"1", tokens[b"1"])[1]
    assert fetch(served, b"3", tokens[b"3"])[1]
    assert not fetch(served, b"2", tokens[b"2"])[1]


READERS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])


class BothEnds(RuleBasedStateMachine):
    """Readers that fetch shards, whole or as differences, and fetches that either end breaks off.

    A fetch as differences changes one byte on both ends, one as a whole all bytes of its shard.
    """

    def __init__(self):
        super().__init__()
        self.served = ReaderBases(LIMIT, RESYNC_EVERY)
        self.readers = {}
        self.synced = {}  # the bytes of a reader that were ever sent whole
        self.value = 0

    @rule(
        reader=READERS,
        shard=st.sampled_from(SHARDS),
        sent=st.integers(0, 2),
        received=st.integers(0, 2),
    )
    def fetch(self, reader, shard, sent, received):
        """`sent` and `received`: 0 nothing (not even the header), 1 a part, 2 all of it."""
        mine = self.readers.setdefault(reader, DeltaBase(np.zeros(NBYTES, np.uint8)))
        synced = self.synced.setdefault(reader, np.zeros(NBYTES, bool))
        theirs, agrees = self.served.take(reader, mine.token, NBYTES, shard)
        start, stop = shard
        if agrees:
            assert np.array_equal(mine.data[start:stop], theirs.data[start:stop])
            assert synced[start:stop].all()
        self.value = self.value % 255 + 1
        stops = [start, (start + stop) // 2, start + 1 if agrees else stop]
        received = min(sent, received)
        if received:
            mine.token = NOTHING  # from the announcement on
        theirs.data[start : stops[sent]] = self.value
        mine.data[start : stops[received]] = self.value
        if sent == 2:
            self.served.give_back(reader, theirs)
        if received == 2:
            mine.token = theirs.token
            synced[start:stop] = True

    @rule(reader=READERS)
    def restart(self, reader):
        """A reader starts anew: it has another identity, or at least nothing in its hands."""
        self.readers.pop(reader, None)
        self.synced.pop(reader, None)

    @rule()
    def restart_the_serving_node(self):
        self.served = ReaderBases(LIMIT, RESYNC_EVERY)

    @invariant()
    def memory_is_bounded(self):
        assert self.served.nbytes <= LIMIT * NBYTES


TestBothEnds = BothEnds.TestCase
TestBothEnds.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
