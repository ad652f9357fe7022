"""Deals: what each side says, and that both ends apply or neither, whatever the network does."""

from __future__ import annotations

import doctest
import random

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from support.examples import examples
from support.exchanging_nodes import BUDGET_S, REMEMBER_S, Node, World, counted, one_sided
from support.lossy_networks import HostileNetwork, LossyNetwork

from dpwa.policy import deals as deals_module
from dpwa.policy.deals import MOST_COPIES, MOST_OPEN, Acceptance, Deals, Verdict

ACCEPTED, REPEATED, BUSY = Acceptance.ACCEPTED, Acceptance.REPEATED, Acceptance.BUSY
ONE, TWO, THREE = b"deal-001", b"deal-002", b"deal-003"


def deals_of(own="a", is_exclusive=True):
    return Deals(own, is_exclusive=is_exclusive, remember_s=REMEMBER_S)


def asking(deal=TWO, prepared=False):
    """A node that has asked b at time 0, and may have heard that it is prepared."""
    deals = deals_of()
    assert deals.propose(deal, "b", 0.0, BUDGET_S)
    if prepared:
        assert deals.prepared(deal)
    return deals


def answering(deal=TWO, ready=False):
    """A node that has accepted what a asked at time 0, and may be prepared."""
    deals = deals_of("b")
    assert deals.accept(deal, "a", 0.0, BUDGET_S) is ACCEPTED
    if ready:
        assert deals.ready(deal)
    return deals


# The asking side


def test_what_is_prepared_may_be_committed_before_the_deadline_only():
    deals = asking()
    assert not deals.may_commit(TWO, 1.0)
    assert deals.agreed(TWO)
    assert not deals.may_commit(TWO, 1.0)
    assert deals.prepared(TWO)
    assert deals.may_commit(TWO, BUDGET_S - 0.001)
    assert not deals.may_commit(TWO, BUDGET_S)
    assert not deals.decide(TWO, commit=True, now=BUDGET_S)
    assert deals.undelivered(BUDGET_S) == ((TWO, "b", False),)


def test_what_is_not_prepared_is_aborted_instead_of_committed():
    deals = asking()
    assert deals.agreed(TWO)
    assert not deals.decide(TWO, commit=True, now=1.0)
    assert deals.report()["aborted"] == 1


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_stands(commit):
    deals = asking(prepared=True)
    for said in (commit, not commit, commit):
        assert deals.decide(TWO, commit=said, now=1.0) is commit
    deals.noted(TWO)
    assert deals.decide(TWO, commit=not commit, now=9.0) is commit
    assert deals.report() == {
        "committed": int(commit),
        "aborted": int(not commit),
        "busy": 0,
        "unresolved": 0,
        "given_up": 0,
    }


def test_a_decision_is_sent_until_it_is_noted():
    deals = asking(prepared=True)
    deals.decide(TWO, commit=True, now=1.0)
    assert deals.undelivered(1.0) == deals.undelivered(REMEMBER_S) == ((TWO, "b", True),)
    deals.noted(TWO)
    deals.noted(TWO)
    assert deals.undelivered(REMEMBER_S) == ()
    assert deals.report()["given_up"] == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_that_is_never_noted_is_given_up_and_a_commit_is_counted(commit):
    deals = asking(prepared=True)
    deals.decide(TWO, commit=commit, now=1.0)
    assert deals.undelivered(1.0 + REMEMBER_S) == ()
    assert deals.report()["given_up"] == int(commit)
    assert deals.decide(TWO, commit=not commit, now=62.0) is commit


def test_a_proposal_that_nobody_answers_ends_at_its_deadline():
    deals = asking()
    assert not deals.propose(THREE, "c", 1.9, 3.9)
    assert deals.is_engaged(1.9)
    assert not deals.is_engaged(BUDGET_S)
    assert deals.expire(BUDGET_S) == ()
    assert deals.undelivered(BUDGET_S) == ((TWO, "b", False),)
    assert not deals.agreed(TWO)
    assert deals.propose(THREE, "c", BUDGET_S, 4.0)


def test_a_refused_proposal_is_over_and_nobody_needs_to_be_told():
    deals = asking()
    deals.refused(TWO)
    deals.refused(TWO)
    assert deals.undelivered(0.5) == ()
    assert not deals.is_engaged(0.5)
    assert not deals.agreed(TWO)
    assert deals.report()["busy"] == 1


def test_a_late_refusal_ends_an_abort_but_no_commit():
    deals = asking(prepared=True)
    deals.decide(TWO, commit=True, now=1.0)
    deals.refused(TWO)
    assert deals.undelivered(1.0) == ((TWO, "b", True),)
    deals = asking()
    deals.decide(TWO, commit=False, now=1.0)
    deals.refused(TWO)
    assert deals.undelivered(1.0) == ()


def test_an_unknown_deal_is_aborted_by_presumption():
    deals = deals_of()
    assert not deals.agreed(ONE)
    assert not deals.prepared(ONE)
    assert not deals.may_commit(ONE, 0.0)
    assert not deals.decide(ONE, commit=True, now=0.0)
    assert deals.undelivered(0.0) == ()
    assert set(deals.report().values()) == {0}


def test_a_node_makes_no_deal_with_itself():
    deals = deals_of("a")
    assert not deals.propose(ONE, "a", 0.0, BUDGET_S)
    assert deals.accept(TWO, "a", 0.0, BUDGET_S) is BUSY


# The answering side


def test_a_repeated_proposal_gets_the_same_answer_as_long_as_the_deal_is_open():
    deals = answering(ready=True)
    assert deals.accept(TWO, "a", 1.0, 3.0) is REPEATED
    assert deals.decided(TWO, commit=True) is Verdict.COMMIT
    assert deals.accept(TWO, "a", 1.0, 3.0) is BUSY
    assert not deals.ready(TWO)


def test_a_deal_that_was_refused_is_not_accepted_later():
    deals = answering(ONE)
    assert deals.accept(TWO, "c", 0.0, BUDGET_S) is BUSY
    assert deals.decided(ONE, commit=False) is Verdict.ABORT
    assert deals.accept(TWO, "c", 0.5, BUDGET_S) is BUSY
    assert deals.accept(THREE, "c", 0.5, BUDGET_S) is ACCEPTED


@pytest.mark.parametrize(
    ("commit", "verdict", "count"),
    [(True, Verdict.COMMIT, "committed"), (False, Verdict.ABORT, "aborted")],
)
def test_a_decision_is_taken_once(commit, verdict, count):
    deals = answering(ready=True)
    assert deals.decided(TWO, commit) is verdict
    assert deals.decided(TWO, commit) is deals.decided(TWO, not commit) is Verdict.KNOWN
    assert deals.report()[count] == 1
    assert not deals.is_engaged(0.5)


def test_an_abort_that_overtakes_its_proposal_wins():
    deals = deals_of("b")
    assert deals.decided(ONE, commit=False) is Verdict.UNKNOWN
    assert deals.accept(ONE, "a", 0.0, BUDGET_S) is BUSY


def test_a_commit_of_what_was_not_prepared_is_not_applied():
    deals = answering()
    assert deals.decided(TWO, commit=True) is Verdict.ABORT
    assert deals.report()["unresolved"] == 1


def test_an_unprepared_deal_ends_at_its_deadline():
    deals = answering()
    assert deals.is_engaged(1.99)
    assert deals.expire(1.99) == ()
    assert deals.expire(BUDGET_S) == (TWO,)
    assert deals.expire(BUDGET_S) == ()
    assert not deals.ready(TWO)
    assert deals.decided(TWO, commit=False) is Verdict.KNOWN
    assert deals.report()["aborted"] == 1


def test_a_prepared_deal_stays_in_doubt_but_engages_the_node_no_longer():
    deals = answering(ready=True)
    assert deals.is_engaged(1.99)
    assert not deals.is_engaged(BUDGET_S)
    assert deals.accept(ONE, "c", BUDGET_S, 4.0) is ACCEPTED
    assert deals.expire(3.0) == ()
    assert deals.decided(TWO, commit=True) is Verdict.COMMIT
    assert deals.is_engaged(3.0)  # in the other one


def test_a_prepared_deal_is_unresolved_when_the_decision_never_comes():
    deals = answering(ready=True)
    assert deals.expire(BUDGET_S + REMEMBER_S - 0.001) == ()
    assert deals.expire(BUDGET_S + REMEMBER_S) == (TWO,)
    assert deals.decided(TWO, commit=True) is Verdict.KNOWN
    assert deals.report()["unresolved"] == 1
    assert deals.report()["committed"] == 0


def test_the_copies_of_deals_in_doubt_are_bounded():
    deals = deals_of("b")
    for number in range(MOST_COPIES + 1):
        now = 3.0 * number
        deal = b"%8d" % number
        expected = ACCEPTED if number < MOST_COPIES else BUSY
        assert deals.accept(deal, "a", now, now + BUDGET_S) is expected
        assert deals.ready(deal) is (expected is ACCEPTED)
    assert deals.decided(b"%8d" % 0, commit=True) is Verdict.COMMIT
    assert deals.accept(b"another!", "a", now, now + BUDGET_S) is ACCEPTED


def test_a_proposal_without_time_left_is_refused():
    assert deals_of("b").accept(ONE, "a", 2.0, 2.0) is BUSY


# Exclusive deals


def test_an_own_proposal_gives_way_to_a_smaller_one_until_it_is_agreed():
    deals = asking(TWO)
    assert deals.accept(THREE, "c", 0.1, BUDGET_S) is BUSY
    assert deals.accept(ONE, "c", 0.1, BUDGET_S) is ACCEPTED
    assert not deals.agreed(TWO)
    assert not deals.decide(TWO, commit=True, now=0.2)
    assert deals.undelivered(0.2) == ((TWO, "b", False),)
    assert deals.accept(b"deal-000", "d", 0.2, BUDGET_S) is BUSY
    agreed = asking(TWO)
    assert agreed.agreed(TWO)
    assert agreed.accept(ONE, "c", 0.1, BUDGET_S) is BUSY


def test_an_own_proposal_that_is_over_does_not_stand_in_the_way():
    deals = asking(ONE)
    assert deals.accept(TWO, "c", BUDGET_S, 4.0) is ACCEPTED
    assert deals.undelivered(BUDGET_S) == ((ONE, "b", False),)


def test_deals_that_are_not_exclusive_engage_nobody():
    deals = deals_of(is_exclusive=False)
    assert deals.propose(ONE, "b", 0.0, BUDGET_S)
    assert deals.propose(TWO, "c", 0.0, BUDGET_S)
    assert deals.accept(THREE, "d", 0.0, BUDGET_S) is ACCEPTED
    assert deals.accept(b"deal-004", "e", 0.0, BUDGET_S) is ACCEPTED
    assert not deals.is_engaged(0.0)
    assert deals.agreed(ONE)
    assert deals.may_commit(ONE, 0.0)  # nothing is to be prepared
    assert not deals.may_commit(TWO, 0.0)
    assert deals.expire(BUDGET_S) == ()  # in doubt from the start
    assert deals.decided(THREE, commit=True) is Verdict.COMMIT


def draw_proposals(rng):
    """Some nodes propose to one other each, all at once; the ids are in no order."""
    names = [f"w{i}" for i in range(rng.randrange(2, 9))]
    askers = rng.sample(names, rng.randrange(1, len(names) + 1))
    proposals = {
        rng.randbytes(8): (name, rng.choice([other for other in names if other != name]))
        for name in askers
    }
    return {name: deals_of(name) for name in names}, proposals


def settle(rng, nodes, proposals):
    """Deliver all messages in any order; return the accepted and the agreed deals."""
    for deal, (asker, target) in proposals.items():
        assert nodes[asker].propose(deal, target, 0.0, BUDGET_S)
    under_way = [("propose", deal) for deal in proposals]
    accepted, agreed = [], []
    while under_way:
        kind, deal = under_way.pop(rng.randrange(len(under_way)))
        asker, target = proposals[deal]
        if kind == "propose":
            answer = nodes[target].accept(deal, asker, 0.0, BUDGET_S)
            assert answer is not REPEATED
            accepted += [deal] * (answer is ACCEPTED)
            under_way.append(("agreed" if answer is ACCEPTED else "busy", deal))
        elif kind == "busy":
            nodes[asker].refused(deal)
        elif nodes[asker].agreed(deal):
            agreed.append(deal)
    return accepted, agreed


@given(st.integers(0, 2**32))
@examples(400)
def test_of_simultaneous_proposals_the_smallest_accepted_one_succeeds(seed):
    rng = random.Random(seed)
    nodes, proposals = draw_proposals(rng)
    accepted, agreed = settle(rng, nodes, proposals)
    assert min(accepted) in agreed
    pairs = [name for deal in agreed for name in proposals[deal]]
    assert len(pairs) == len(set(pairs))  # nobody is in two
    smallest = min(proposals)
    _, target = proposals[smallest]
    assert smallest in agreed or target in [name for deal in accepted for name in proposals[deal]]


# Peers that end, and memory


def test_a_peer_that_has_ended_changes_no_decision_and_nothing_in_doubt():
    """It may have committed what this side has prepared, and its news of that be under way."""
    deals = asking(ONE, prepared=True)
    deals.decide(ONE, commit=True, now=0.1)
    assert deals.accept(TWO, "b", 0.1, 2.1) is ACCEPTED
    assert deals.ready(TWO)
    assert deals.forget_peer("b", 0.2) == ()
    assert deals.undelivered(0.2) == ((ONE, "b", True),)
    assert deals.decided(TWO, commit=True) is Verdict.COMMIT


def test_what_a_peer_that_has_ended_could_not_commit_is_over():
    deals = deals_of("a")
    assert deals.accept(TWO, "c", 0.1, 2.1) is ACCEPTED
    assert deals.forget_peer("b", 0.2) == ()
    assert deals.forget_peer("c", 0.3) == (TWO,)
    assert not deals.is_engaged(0.3)
    assert deals.decided(TWO, commit=True) is Verdict.KNOWN
    assert deals.report()["aborted"] == 1


def test_an_open_proposal_to_a_peer_that_has_ended_frees_the_node():
    deals = asking(prepared=True)
    deals.forget_peer("b", 0.5)
    assert not deals.is_engaged(0.5)
    assert not deals.decide(TWO, commit=True, now=0.5)
    assert [commit for _, _, commit in deals.undelivered(0.5)] == [False]


def test_finished_deals_are_remembered_for_a_while_and_not_too_many():
    deals = deals_of("b", is_exclusive=False)
    ids = [b"%8d" % number for number in range(3_000)]
    for deal in ids:
        assert deals.accept(deal, "a", 0.0, BUDGET_S) is ACCEPTED
        assert deals.decided(deal, commit=True) is Verdict.COMMIT
    assert all(deals.decided(deal, commit=True) is Verdict.KNOWN for deal in ids[-512:])
    assert all(deals.decided(deal, commit=True) is Verdict.UNKNOWN for deal in ids[:-1024])


def test_a_finished_deal_is_forgotten_with_time():
    deals = deals_of("b")
    deals.expire(0.0)
    assert deals.accept(ONE, "a", 0.0, BUDGET_S) is ACCEPTED
    assert deals.decided(ONE, commit=False) is Verdict.ABORT
    deals.expire(REMEMBER_S)
    assert deals.decided(ONE, commit=False) is Verdict.KNOWN
    deals.expire(2 * REMEMBER_S)
    assert deals.decided(ONE, commit=False) is Verdict.UNKNOWN


def test_what_is_open_is_bounded():
    deals = deals_of(is_exclusive=False)
    for number in range(MOST_OPEN):
        assert deals.propose(b"%8d" % number, "b", 0.0, BUDGET_S)
        assert deals.accept(b"in%6d" % number, "b", 0.0, BUDGET_S) is ACCEPTED
    assert not deals.propose(ONE, "b", 0.0, BUDGET_S)
    assert deals.accept(ONE, "b", 0.0, BUDGET_S) is BUSY
    deals.expire(BUDGET_S)
    assert deals.propose(ONE, "b", 3.0, 5.0)
    deals.decide(ONE, commit=False, now=3.0)
    assert len(deals.undelivered(3.0)) == MOST_OPEN


# Whole nodes on bad networks


@given(
    seed=st.integers(0, 2**32),
    loss=st.floats(0.0, 0.6),
    duplication=st.floats(0.0, 0.5),
    delay_s=st.floats(0.0, 3.0),
    deaths=st.sampled_from([0.0, 0.02]),
)
@examples(25)
def test_both_ends_apply_or_neither_on_a_bad_network(seed, loss, duplication, delay_s, deaths):
    world = World(seed, loss=loss, duplication=duplication, delay_s=delay_s)
    world.run(20.0, is_proposing=True, deaths=deaths)
    world.network.mend()
    world.run(25.0 + LossyNetwork.MOST_DELAY_S, is_proposing=False)
    nodes = world.nodes.values()
    assert one_sided(nodes) == set()
    if not deaths:
        assert sum(node.x for node in nodes) == sum(node.trained for node in nodes)
        assert counted(nodes, "unresolved") == counted(nodes, "given_up") == 0
    world.assert_all_waits_end()


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_deals_get_through_and_bring_the_nodes_together(loss):
    print("seed 5")
    world = World(5, loss=loss, duplication=0.2, delay_s=0.05)
    world.run(60.0, is_proposing=True)
    nodes = world.nodes.values()
    print({what: counted(nodes, what) for what in ("committed", "aborted", "busy")})
    assert counted(nodes, "committed") > 100
    assert max(node.x for node in nodes) - min(node.x for node in nodes) < 200  # of 2000


def test_a_partition_longer_than_the_memory_breaks_only_what_is_counted():
    broken = 0
    for seed in range(30):
        print(f"seed {seed}")
        world = World(seed, remember_s=3.0, delay_s=0.3)
        world.run(6.0, is_proposing=True)
        world.network.is_cut = True
        world.run(14.0, is_proposing=False)
        world.network.mend()
        world.run(60.0, is_proposing=False)
        nodes = world.nodes.values()
        found = len(one_sided(nodes))
        assert found <= min(counted(nodes, "unresolved"), counted(nodes, "given_up"))
        broken += found
        world.assert_all_waits_end()
    assert broken > 0  # or this test shows nothing


def take_hostile_step(nodes, network, now, rng):
    """Anything may happen next: a message, in any order; an old one once more; or a turn."""
    chance = rng.random()
    node = rng.choice(list(nodes.values()))
    if chance < 0.7 and network.fresh:
        receiver, message = network.fresh.pop(rng.randrange(len(network.fresh)))
        nodes[receiver].receive(now, message)
    elif chance < 0.8 and network.sent:
        receiver, message = rng.choice(network.sent)
        nodes[receiver].receive(now, message)
    elif chance < 0.9:
        node.train()
        node.tick(now)
    else:
        peer = rng.choice([name for name in nodes if name != node.name])
        node.propose(rng.randbytes(8), peer, now)


@given(st.integers(0, 2**32), st.sampled_from([0.01, 0.1, 0.5]))
@examples(40)
def test_both_ends_apply_or_neither_whatever_arrives_when_and_how_often(seed, pause_s):
    rng, network, now = random.Random(seed), HostileNetwork(), 0.0
    nodes = {name: Node(name, network, rng, remember_s=1e4) for name in ("a", "b", "c")}
    for _ in range(300):
        now += rng.random() * pause_s
        take_hostile_step(nodes, network, now, rng)
    for _ in range(3):  # and then all of it once more
        now += BUDGET_S
        for node in nodes.values():
            node.tick(now)
        for receiver, message in list(network.sent):
            nodes[receiver].receive(now, message)
    event(f"committed on both sides: {counted(nodes.values(), 'committed') // 2}")
    assert one_sided(nodes.values()) == set()
    assert sum(node.x for node in nodes.values()) == sum(n.trained for n in nodes.values())
    assert counted(nodes.values(), "unresolved") == 0
    assert not any(node.deals.undelivered(now) for node in nodes.values())


def test_the_example_of_the_module_is_true():
    assert doctest.testmod(deals_module).failed == 0
