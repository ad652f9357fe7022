"""Who is asked for the state, and when it is clear that nobody has any."""

from dpwa.state.download import (
    CONTRADICTED_AFTER_S,
    GATHER_S,
    PREPARED_WITHIN_S,
    SILENT_S,
    Candidates,
)


def asked(candidates, now, **more):
    return dict(candidates.pick_due(now, **more))


def test_all_are_asked_how_far_they_are_and_the_first_to_answer_to_prepare():
    candidates = Candidates(most_donors=2)
    candidates.reach(["w1", "w2", "w3"], 0.0)
    assert asked(candidates, 0.0) == {"w1": False, "w2": False, "w3": False}
    for now, name in ((0.02, "w3"), (0.03, "w1"), (0.04, "w2")):
        candidates.stands(name, 100.0, now, is_trained=True)
    assert asked(candidates, 0.04) == {}  # others may be about to be reached
    assert asked(candidates, 0.04, are_all_met=True) == {"w1": True, "w3": True}


def test_who_is_far_behind_the_best_is_not_used():
    candidates = Candidates(most_donors=2)
    candidates.reach(["far", "near", "behind"], 0.0)
    for name, clock in (("behind", 89.0), ("near", 91.0), ("far", 100.0)):
        candidates.stands(name, clock, 0.1, is_trained=True)
    assert {name for name, prepares in asked(candidates, 1.0).items() if prepares} == {
        "near",
        "far",
    }


def test_those_who_do_not_answer_at_once_are_waited_for_a_moment_only():
    candidates = Candidates(most_donors=1)
    candidates.reach(["w1", "w2"], 0.0)
    candidates.stands("w1", 5.0, 0.0, is_trained=True)
    assert asked(candidates, GATHER_S / 2) == {"w1": False, "w2": False}
    assert asked(candidates, 2 * GATHER_S)["w1"] is True


def test_another_is_asked_in_place_of_one_that_is_busy_or_does_not_get_to_it():
    candidates = Candidates(most_donors=1)
    candidates.reach(["w1", "w2", "w3"], 0.0)
    for name in ("w1", "w2", "w3"):
        candidates.stands(name, 5.0, 0.0, is_trained=True)
    assert asked(candidates, 0.0) == {"w1": True, "w2": False, "w3": False}
    candidates.postpone("w1", until=60.0)
    assert asked(candidates, 1.0) == {"w2": True, "w3": False}
    late = 1.0 + PREPARED_WITHIN_S
    assert asked(candidates, late) == {"w2": True, "w3": True}


def test_nobody_gives_when_all_are_new_and_whoever_is_silent_does_not_count():
    candidates = Candidates(most_donors=1)
    candidates.reach(["w1", "w2"], 0.0)
    candidates.stands("w1", 0.0, 0.0, is_trained=False)
    assert not candidates.have_answered(SILENT_S - 0.1)
    assert candidates.have_answered(SILENT_S)
    assert not candidates.give
    candidates.stands("w2", 3.0, SILENT_S, is_trained=True)
    assert candidates.give


def test_who_has_brought_nonsense_is_not_asked_again():
    candidates = Candidates(most_donors=1)
    candidates.reach(["w1"], 0.0)
    candidates.stands("w1", 5.0, 0.0, is_trained=True)
    candidates.lose("w1")
    candidates.reach([], 1.0)
    candidates.reach(["w1"], 2.0)
    assert asked(candidates, 9.0) == {}
    assert not candidates.give


def stands(candidates, clocks):
    candidates.reach(list(clocks), 0.0)
    for name, clock in clocks.items():
        candidates.stands(name, clock, 0.1, is_trained=True)


def preparing(candidates, now):
    return {name for name, prepares in asked(candidates, now).items() if prepares}


def test_a_donor_that_is_far_ahead_of_all_others_is_asked_last():
    candidates = Candidates(most_donors=2)
    stands(candidates, {"liar": 1e12, "w1": 100.0, "w2": 98.0})
    assert preparing(candidates, 1.0) == {"w1", "w2"}
    assert preparing(candidates, 0.9 + CONTRADICTED_AFTER_S) == {"w1", "w2"}
    assert "liar" in preparing(candidates, 2.0 + CONTRADICTED_AFTER_S)
    assert candidates.counted(1e12) == 110.0
    assert candidates.counted(99.0) == 99.0


def test_donors_that_are_new_contradict_nobody():
    candidates = Candidates(most_donors=1)
    stands(candidates, {"w1": 500.0, "new": 9.0})
    assert preparing(candidates, 1.0) == {"w1"}
    assert candidates.counted(500.0) == 500.0


def test_an_offer_is_of_a_clock_that_its_donor_can_have_come_to():
    candidates = Candidates(most_donors=1)
    stands(candidates, {"w1": 100.0})
    donor = candidates.peers["w1"]
    assert donor.can_offer(150.0, 0.2)
    assert not donor.can_offer(1e6, 0.2)
