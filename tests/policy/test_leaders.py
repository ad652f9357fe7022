"""What nodes know of each other by gossip: newest news wins, ages out, and spreads in O(log N)."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpwa.policy.leaders import LossReport, LossReports

SEED = 17
FORGET_S = 100.0
NAMES = ("a", "b", "c", "d")


def said(node, loss=1.0, group="g", incarnation=1, version=1, age_s=0.0):
    return LossReport(node, group, loss, incarnation, version, age_s)


def reports_of(own="me", group="g", incarnation=1, **options):
    return LossReports(own, group, incarnation, FORGET_S, **options)


def after_hearing(*reports, now=0.0, **options):
    heard = reports_of(**options)
    heard.receive_reports(reports, now)
    return heard


def names_of(reports):
    return [report.node for report in reports]


def leader_of(reports, now=0.0, group=None):
    leader = reports.leader(now, group)
    return None if leader is None else leader.node


# Who leads


def test_the_lowest_loss_leads_among_all_and_in_each_group():
    heard = after_hearing(said("a", 3.0), said("b", 2.0), said("c", 1.0, group="h"))
    assert leader_of(heard) == "c"
    assert leader_of(heard, group="g") == "b"
    assert leader_of(heard, group="h") == "c"
    assert leader_of(heard, group="nobody's") is None


def test_a_node_may_lead_itself():
    heard = after_hearing(said("a", 2.0))
    heard.report_own_loss(1.0, 1, now=0.0)
    assert leader_of(heard) == "me"


@pytest.mark.parametrize("loss", [None, math.nan, math.inf, -math.inf])
def test_a_node_without_a_finite_loss_never_leads(loss):
    heard = after_hearing(said("a", loss))
    heard.report_own_loss(loss, 1, now=0.0)
    assert heard.leader(now=0.0) is None
    assert [report.loss for report in heard.known(now=0.0)] == [None, None]
    heard.receive_reports([said("b", 1e300)], now=0.0)
    assert leader_of(heard) == "b"


@given(st.permutations(NAMES), st.sampled_from([1.0, 0.0, -0.0]))
def test_ties_are_broken_alike_by_all(order, loss):
    for own in NAMES:
        node = reports_of(own=own)
        node.report_own_loss(loss, 1, now=0.0)
        node.receive_reports([said(name, -loss if loss == 0 else loss) for name in order], now=0.0)
        assert leader_of(node) == "a"


# What is newer wins


def with_its_loss(statement):
    """One version has one loss, whoever passes it on."""
    return statement._replace(loss=100.0 * statement.incarnation - statement.version)


statements = st.builds(
    said,
    node=st.sampled_from(NAMES),
    incarnation=st.integers(0, 3),
    version=st.integers(0, 5),
).map(with_its_loss)


def newest_of(statements):
    newest = {}
    for report in statements:
        stamp = (report.incarnation, report.version)
        newest[report.node] = max(newest.get(report.node, stamp), stamp)
    return newest


def stamps_of(reports, now):
    return {r.node: (r.incarnation, r.version) for r in reports.known(now)}


@given(st.data(), st.lists(statements, min_size=1))
def test_any_order_repetition_and_delay_of_messages_ends_with_the_newest(data, told):
    repeated = told + data.draw(st.lists(st.sampled_from(told)))
    deliveries = data.draw(st.permutations(repeated))
    heard, now = reports_of(), 0.0
    for report in deliveries:
        now += data.draw(st.floats(0, 0.1))
        age_s = data.draw(st.floats(0, now))  # all were said at 0, but the wire is not counted
        heard.receive_reports([report._replace(age_s=age_s)], now)
    assert stamps_of(heard, now) == newest_of(told)
    assert all(r.loss == with_its_loss(r).loss for r in heard.known(now))


@settings(max_examples=25)
@given(st.data())
def test_nodes_that_lost_messages_agree_as_soon_as_messages_flow(data):
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    nodes = {name: reports_of(own=name) for name in NAMES}
    versions = dict.fromkeys(NAMES, 0)
    for now in range(10):
        for name in data.draw(st.lists(st.sampled_from(NAMES), unique=True)):
            versions[name] += 1
            nodes[name].report_own_loss(rng.random(), versions[name], float(now))
        arrived = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))
        for asking, asked in data.draw(st.lists(arrived, max_size=3)):
            nodes[asking].receive_reports(nodes[asked].select_reports(float(now), rng), float(now))
    for _ in NAMES:  # a ring is enough
        for asking, asked in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True):
            nodes[asking].receive_reports(nodes[asked].select_reports(10.0, rng), 10.0)
    truth = {name: (1, version) for name, version in versions.items() if version}
    assert all(stamps_of(node, 10.0) == truth for node in nodes.values())
    assert len({leader_of(node, 10.0) for node in nodes.values()}) == 1


def test_a_node_knows_best_of_itself():
    heard = reports_of(own="me")
    heard.receive_reports([said("me", 0.1, incarnation=9, version=9)], now=0.0)
    assert heard.known(now=0.0) == ()
    heard.report_own_loss(2.0, 3, now=0.0)
    heard.receive_reports([said("me", 0.1, incarnation=9, version=9)], now=0.0)
    assert heard.known(now=0.0) == (said("me", 2.0, version=3),)


def test_a_restarted_node_is_believed_though_it_begins_at_version_1():
    heard = after_hearing(said("a", 1.0, incarnation=1, version=900))
    heard.receive_reports([said("a", 5.0, incarnation=2, version=1)], now=1.0)
    heard.receive_reports([said("a", 1.0, incarnation=1, version=901)], now=1.0)
    assert stamps_of(heard, 1.0) == {"a": (2, 1)}


def test_a_node_whose_clock_was_set_back_is_believed_when_the_old_news_has_aged_out():
    heard = after_hearing(said("a", incarnation=2))
    heard.receive_reports([said("a", incarnation=1)], now=FORGET_S - 1)
    assert stamps_of(heard, FORGET_S - 1) == {"a": (2, 1)}
    heard.receive_reports([said("a", incarnation=1)], now=FORGET_S)
    assert stamps_of(heard, FORGET_S) == {"a": (1, 1)}


# Ageing


@given(st.floats(0, FORGET_S - 1), st.floats(0, FORGET_S - 1))
def test_news_ages_while_it_is_held_and_ends_at_its_time(age_s, held_s):
    heard = after_hearing(said("a", age_s=age_s))
    if age_s + held_s < FORGET_S - 1e-9:
        assert heard.known(held_s)[0].age_s == pytest.approx(age_s + held_s)
        assert leader_of(heard, held_s) == "a"
    end = FORGET_S - age_s + 1e-9
    assert heard.leader(end) is None
    assert heard.known(end) == heard.select_reports(end, random.Random(SEED)) == ()


@pytest.mark.parametrize("age_s", [FORGET_S, 1e9, math.inf, -1.0, math.nan])
def test_news_that_is_too_old_or_of_no_sensible_age_is_ignored(age_s):
    assert after_hearing(said("a", age_s=age_s)).known(now=0.0) == ()


def test_the_same_version_said_again_is_younger_and_never_older():
    heard = after_hearing(said("a", age_s=50.0))
    heard.receive_reports([said("a", age_s=10.0)], now=0.0)
    heard.receive_reports([said("a", age_s=70.0)], now=0.0)
    assert heard.known(now=0.0)[0].age_s == 10.0


def test_a_node_that_tells_nothing_leads_no_longer_not_even_itself_until_it_tells_again():
    node = reports_of()
    node.report_own_loss(1.0, 1, now=0.0)
    assert leader_of(node, FORGET_S - 1) == "me"
    assert node.leader(now=FORGET_S) is None
    assert node.select_reports(FORGET_S, random.Random(SEED)) == ()
    node.report_own_loss(1.0, 1, now=FORGET_S)
    assert leader_of(node, FORGET_S) == "me"


def test_reports_of_a_silent_leader_do_not_keep_each_other_alive():
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    crowd = Crowd(16)
    crowd.gossip_until(crowd.all_know_the_leader, rng, model="pull")
    died_at, silent, runner_up = crowd.now, crowd.best(), crowd.best(without=crowd.best())
    while crowd.now < died_at + FORGET_S:
        crowd.tell(without=silent)
        crowd.gossip(rng, "pull")
    for name, node in crowd.nodes.items():
        if name != silent:
            assert leader_of(node, crowd.now) == runner_up
            assert silent not in names_of(node.known(crowd.now))


def test_what_is_passed_to_and_fro_ages_though_nobody_counts_its_time_on_the_way():
    one, two = reports_of("one"), reports_of("two")
    now, way_s, rng = 0.0, FORGET_S / 100, random.Random(SEED)
    for node in (one, two):
        node.report_own_loss(2.0, 1, now)
        node.receive_reports([said("dead", loss=1.0, version=9)], now)
    while now < FORGET_S:
        for here, there in ((one, two), (two, one)):
            sent = here.select_reports(now, rng)
            now += way_s
            there.receive_reports(sent, now)
            there.report_own_loss(2.0, 1, now)
    assert leader_of(one, now) != "dead"
    assert leader_of(two, now) != "dead"


def test_a_node_that_says_the_same_for_ever_is_remembered_through_others():
    relay, far = reports_of("relay"), reports_of("far")
    for step in range(100):
        now = step * FORGET_S / 10
        relay.receive_reports([said("finished", loss=1.0, version=9)], now)
        far.receive_reports(relay.select_reports(now, random.Random(SEED)), now)
        assert leader_of(far, now) == "finished"


# Forgetting


def test_old_news_does_not_bring_back_a_node_that_has_ended():
    heard = after_hearing(said("a", incarnation=5, version=10))
    heard.forget_node("a", now=1.0)
    assert heard.known(now=1.0) == ()
    for version in (9, 10, 12):  # others may have heard more than this node had
        heard.receive_reports([said("a", incarnation=5, version=version)], now=2.0)
    heard.receive_reports([said("a", incarnation=4, version=99)], now=2.0)
    assert heard.known(now=2.0) == ()


def test_a_later_process_of_a_node_that_has_ended_is_listened_to_at_once():
    heard = after_hearing(said("a", incarnation=5, version=10))
    heard.forget_node("a", now=1.0)
    heard.forget_node("a", now=1.0)  # it said goodbye, and is removed as well
    heard.receive_reports([said("a", incarnation=6, version=1)], now=2.0)
    assert stamps_of(heard, 2.0) == {"a": (6, 1)}


def test_a_node_that_was_removed_and_lives_is_heard_of_again_in_time():
    heard = after_hearing(said("a", version=10))
    heard.forget_node("a", now=1.0)
    heard.receive_reports([said("a", version=11)], now=FORGET_S)
    assert heard.known(now=FORGET_S) == ()
    heard.receive_reports([said("a", version=12)], now=1.0 + FORGET_S)
    assert stamps_of(heard, 1.0 + FORGET_S) == {"a": (1, 12)}


def test_news_of_a_node_that_ended_before_it_was_known_waits():
    heard = reports_of()
    heard.forget_node("a", now=0.0)
    heard.receive_reports([said("a", incarnation=7)], now=1.0)
    assert heard.known(now=1.0) == ()
    heard.receive_reports([said("a", incarnation=7)], now=FORGET_S)
    assert names_of(heard.known(now=FORGET_S)) == ["a"]


def test_a_node_that_ended_long_ago_is_not_known_when_it_is_forgotten_again():
    heard = after_hearing(said("a", incarnation=5))
    heard.forget_node("a", now=0.0)
    heard.forget_node("a", now=FORGET_S)
    heard.receive_reports([said("a", incarnation=6)], now=FORGET_S)
    assert heard.known(now=FORGET_S) == ()


def test_tombstones_are_no_more_than_the_nodes_that_are_remembered():
    heard = reports_of(most=2)
    for name in "abc":
        heard.forget_node(name, now=0.0)
    heard.receive_reports([said("a"), said("b"), said("c")], now=1.0)
    assert names_of(heard.known(now=1.0)) == ["a"]


# What is remembered and passed on


def test_the_oldest_goes_when_the_table_is_full_but_never_this_node():
    heard = reports_of(most=2)
    heard.report_own_loss(9.0, 1, now=0.0)
    heard.receive_reports(
        [said("a", age_s=3.0), said("b", age_s=9.0), said("c", age_s=1.0)], now=50.0
    )
    assert names_of(heard.known(now=50.0)) == ["a", "c", "me"]
    heard.receive_reports([said("d", age_s=2.0)], now=50.0)
    assert names_of(heard.known(now=50.0)) == ["c", "d", "me"]


@given(st.integers(0, 80), st.integers(0, 40), st.integers(0, 2**32))
def test_news_has_each_node_once_this_one_first_and_as_many_as_there_is_room_for(
    others, most, seed
):
    rng = random.Random(seed)
    node = reports_of(group="g0")
    node.report_own_loss(rng.random(), 1, now=0.0)
    losses = [None, *(rng.random() for _ in range(others))]
    node.receive_reports(
        [said(f"w{i}", losses[i], group=f"g{i % 3}") for i in range(others)], now=0.0
    )
    news = node.select_reports(1.0, rng, most)
    assert len(news) == len(set(names_of(news))) == min(most, others + 1)
    assert names_of(news[:1]) == ["me"][:most]
    assert set(news) <= set(node.known(1.0))
    if most >= 7:
        assert {leader_of(node, 1.0, g) for g in (None, "g0", "g1", "g2")} <= {
            *names_of(news),
            None,
        }


def test_news_begins_with_the_best():
    own_group = [said(f"g{i}", 10.0 + i) for i in range(30)]
    other = [said(f"h{i}", 1.0 + i, group="h") for i in range(30)]
    third = [said(f"i{i}", 50.0 + i, group="i") for i in range(30)]
    node = after_hearing(*third, *other, *own_group)
    node.report_own_loss(99.0, 1, now=0.0)
    news = node.select_reports(0.0, random.Random(SEED))
    assert names_of(news[:6]) == ["me", "g0", "g1", "h0", "h1", "i0"]


def test_everybody_else_is_passed_on_by_chance():
    node = after_hearing(*(said(f"w{i:02}", float(i)) for i in range(20)))
    rng, counts = random.Random(SEED), dict.fromkeys((f"w{i:02}" for i in range(20)), 0)
    for _ in range(2_000):
        for report in node.select_reports(0.0, rng, most=8):
            counts[report.node] += 1
    assert counts["w00"] == counts["w01"] == 2_000
    error = math.sqrt(2_000 * (6 / 18) * (12 / 18))  # 6 of 18 are drawn
    assert all(abs(counts[f"w{i:02}"] - 2_000 / 3) < 5 * error for i in range(2, 20))


def test_all_groups_have_their_turn_when_there_is_no_room_for_all():
    node = after_hearing(*(said(f"w{i}", float(i), group=f"g{i}") for i in range(20)))
    rng, passed_on = random.Random(SEED), set()
    for _ in range(200):  # each has its turn with a chance of 1/9 or more: one is missed in 1e9
        passed_on.update(names_of(node.select_reports(0.0, rng, most=4)))
    assert passed_on == {f"w{i}" for i in range(20)}


# How many updates all have made


def test_nodes_not_heard_of_count_as_the_mean_of_the_known_ones():
    heard = reports_of()
    assert heard.total_updates(now=0.0, nodes=8) == 0.0
    heard.report_own_loss(None, 10, now=0.0)
    assert heard.total_updates(now=0.0, nodes=8) == 80.0
    heard.receive_reports([said("a", version=40)], now=0.0)
    assert heard.total_updates(now=0.0, nodes=2) == 50.0
    assert heard.total_updates(now=0.0, nodes=8) == 200.0
    assert heard.total_updates(now=0.0, nodes=1) == 50.0


def test_the_own_updates_always_count_and_those_of_a_silent_node_become_a_guess():
    heard = after_hearing(said("a", version=40))
    heard.report_own_loss(1.0, 10, now=0.0)
    assert heard.total_updates(now=FORGET_S, nodes=2) == 20.0


# The epidemic


class Crowd:
    """Nodes on one clock, with a second between rounds and losses 0, 1, ... in a random order."""

    def __init__(self, size, groups=1, seed=SEED):
        names = [f"w{i:04}" for i in range(size)]
        self.now = 0.0
        self.rounds = 0
        self.group_of = {name: f"g{i % groups}" for i, name in enumerate(names)}
        self.loss_of = dict(zip(random.Random(seed).sample(names, size), range(size), strict=True))
        self.nodes = {name: LossReports(name, g, 1, FORGET_S) for name, g in self.group_of.items()}
        self.tell()

    def tell(self, without=None):
        for name, node in self.nodes.items():
            if name != without:
                node.report_own_loss(float(self.loss_of[name]), self.rounds, self.now)

    def best(self, group=None, without=None):
        among = (n for n in self.nodes if group in (None, self.group_of[n]) and n != without)
        return min(among, key=self.loss_of.__getitem__)

    def gossip(self, rng, model, most=32):
        """One round: each node contacts one other drawn at random, all as they were before it."""
        names = list(self.nodes)
        before = {
            name: node.select_reports(self.now, rng, most) for name, node in self.nodes.items()
        }
        for caller, node in self.nodes.items():
            called = rng.choice(names)
            while called == caller:
                called = rng.choice(names)
            if "pull" in model:
                node.receive_reports(before[called], self.now)
            if "push" in model:
                self.nodes[called].receive_reports(before[caller], self.now)
        self.now += 1.0
        self.rounds += 1

    def gossip_until(self, done, rng, model, most=32):
        while not done():
            self.gossip(rng, model, most)
        return self.rounds

    def all_know_the_leader(self):
        best = self.best()
        return all(leader_of(node, self.now) == best for node in self.nodes.values())

    def group_knows_its_leader(self, group):
        best = self.best(group)
        members = [name for name, g in self.group_of.items() if g == group]
        return all(leader_of(self.nodes[name], self.now, group) == best for name in members)


def rounds_of_pulling(nodes):
    """Mean and standard deviation of the rounds until all know, of the exact Markov chain.

    Of k who know, each of the other N - k draws one with probability k / (N-1), so that a binomial
    number of them learns: E T_k = 1 + sum_j p_j E T_(k+j), and the same for the second moment.
    """
    log_factorial = np.cumsum(np.log(np.maximum(1, np.arange(nodes))))
    mean, square = np.zeros(nodes + 1), np.zeros(nodes + 1)
    mean[nodes - 1] = square[nodes - 1] = 1.0  # the last one draws somebody who knows
    for k in range(nodes - 2, 0, -1):
        p, others = k / (nodes - 1), nodes - k
        learn = np.arange(others + 1)
        ways = log_factorial[others] - log_factorial[learn] - log_factorial[others - learn]
        chance = np.exp(ways + learn * math.log(p) + (others - learn) * math.log1p(-p))
        later, stay, some = mean[k + 1 :], chance[0], chance[1:]
        mean[k] = (1 + some @ later) / (1 - stay)
        more = some @ later + stay * mean[k]
        square[k] = (1 + 2 * more + some @ square[k + 1 :]) / (1 - stay)
    return mean[1], math.sqrt(square[1] - mean[1] ** 2)


@pytest.mark.parametrize(("nodes", "figure"), [(16, 6.1), (64, 9.0), (256, 11.5), (1024, 13.8)])
def test_the_figures_of_the_docstring_are_those_of_the_exact_chain(nodes, figure):
    assert rounds_of_pulling(nodes)[0] == pytest.approx(figure, abs=0.05)


def rounds_until_all_know(nodes, trials, model, most=8):
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    crowds = [Crowd(nodes, seed=SEED + trial) for trial in range(trials)]
    return [crowd.gossip_until(crowd.all_know_the_leader, rng, model, most) for crowd in crowds]


@pytest.mark.parametrize(
    ("nodes", "trials", "most"),
    [(16, 100, 32), (64, 15, 8), (256, 2, 8), pytest.param(1024, 5, 32, marks=pytest.mark.slow)],
)
def test_when_all_pull_the_leader_is_known_as_fast_as_the_exact_chain_says(nodes, trials, most):
    rounds = rounds_until_all_know(nodes, trials, "pull", most)
    mean, deviation = rounds_of_pulling(nodes)
    assert np.mean(rounds) == pytest.approx(mean, abs=5 * deviation / math.sqrt(trials))


@pytest.mark.parametrize(("nodes", "trials"), [(16, 60), (64, 12), (256, 2)])
def test_when_both_ends_tell_twice_log2_n_rounds_are_always_enough(nodes, trials):
    # The mean is log3 N + O(log log N), with a standard deviation of 0.6: this is 6 of them more.
    rounds = rounds_until_all_know(nodes, trials, "push-pull")
    assert max(rounds) <= 2 * math.log2(nodes)
    assert np.mean(rounds) < rounds_of_pulling(nodes)[0]


def test_the_leader_of_a_group_is_known_to_it_as_fast_as_that_of_all():
    print(f"seed {SEED}")
    rng, trials, groups, rounds = random.Random(SEED), 12, 4, []
    for trial in range(trials):
        crowd = Crowd(64, groups, seed=SEED + trial)
        waiting = {f"g{i}" for i in range(groups)}
        while waiting:
            crowd.gossip(rng, "pull", most=10)
            known = {group for group in waiting if crowd.group_knows_its_leader(group)}
            rounds += [crowd.rounds] * len(known)
            waiting -= known
    # A quarter of the nodes know it no later than all would; the groups of one trial are not
    # independent, so only the trials count for the error.
    mean, deviation = rounds_of_pulling(64)
    assert len(rounds) == trials * groups
    assert np.mean(rounds) <= mean + 5 * deviation / math.sqrt(trials)


# Beginners, who tell no loss


def test_a_beginner_is_one_by_what_others_say_of_themselves():
    heard = after_hearing(said("a", version=10**9), said("ghost", version=2**53))
    assert not heard.is_beginner(3.0, 0.0)
    heard.receive_reports([said("a", version=500), said("b", version=2**53)], 0.0, sender="a")
    assert heard.is_beginner(3.0, 0.0)
    assert not heard.is_beginner(400.0, 0.0)
    assert not heard.is_beginner(3.0, FORGET_S)


def test_beginners_do_not_make_each_other_old():
    heard = after_hearing(said("v", version=5000), said("k", version=6))
    for name, version in (("v", 5000), ("k", 6)):
        heard.receive_reports([said(name, version=version)], 0.0, sender=name)
    assert heard.is_beginner(5.0, 0.0)


def test_one_that_is_far_ahead_of_all_others_makes_nobody_a_beginner():
    heard = after_hearing()
    for name, version in (("liar", 2**53), ("a", 30), ("b", 28)):
        heard.receive_reports([said(name, version=version)], 0.0, sender=name)
    assert not heard.is_beginner(20.0, 0.0)
    assert heard.is_beginner(3.0, 0.0)
    heard.receive_reports([said("b", version=2**52, loss=None)], 0.0, sender="b")  # without a loss
    assert not heard.is_beginner(20.0, 0.0)
    heard.forget_node("a", 0.0)
    assert heard.is_beginner(20.0, 0.0)  # with one other there is nobody to contradict it
