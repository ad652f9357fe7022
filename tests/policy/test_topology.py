import math
import random
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dpwa.errors import UserError
from dpwa.policy import topology as topologies
from dpwa.policy.mixing import (
    adjacency,
    diameter,
    drawn_contraction,
    figures_of,
    is_doubly_stochastic,
    mixing_matrix,
    period_adjacency,
    period_matrix,
    pull_matrix,
    rounds_to_reduce,
    second_modulus,
    stationary_weights,
    unreachable,
)
from dpwa.policy.topology import (
    EdgeList,
    columns_of,
    edges_topology,
    neighbours_of,
    register_topology,
    small_world_graph,
    topology,
    topology_names,
)

BUILT_IN = ("random", "full", "ring", "grid", "torus", "exponential", "one_peer_exponential")
BUILT_IN += ("star", "small_world")
SYMMETRIC = ("random", "full", "ring", "grid", "torus", "star", "small_world")

few_nodes = st.integers(1, 40)
factors = st.floats(0.05, 0.95)


def named(name, **options):
    found = topology(name)
    return found, found.options(**options)


def matrix(name, nodes, factor=0.5, round_number=0, **options):
    return mixing_matrix(*named(name, **options), nodes, factor, round_number)


def pulls(name, nodes, **options):
    return period_adjacency(*named(name, **options), nodes)


def neighbours(name, index, nodes, round_number=0, **options):
    return neighbours_of(*named(name, **options), index, nodes, round_number)


def reference_diameter(graph):
    """Floyd and Warshall: the most hops between two nodes, infinite if there is no way."""
    hops = np.where(graph, 1.0, np.inf)
    np.fill_diagonal(hops, 0.0)
    for middle in range(len(graph)):
        hops = np.minimum(hops, hops[:, [middle]] + hops[[middle], :])
    return hops


class TestNeighbours:
    @given(st.sampled_from(BUILT_IN), few_nodes, st.integers(0, 50))
    def test_are_other_nodes_each_once_and_sorted(self, name, nodes, round_number):
        for index in range(nodes):
            found = topology(name).rule(topology(name).options(), index, nodes, round_number)
            assert list(found) == sorted(set(found))
            assert set(found) <= set(range(nodes)) - {index}

    @given(st.sampled_from(SYMMETRIC), few_nodes)
    def test_are_mutual(self, name, nodes):
        graph = pulls(name, nodes)
        assert (graph == graph.T).all()

    @given(st.sampled_from(BUILT_IN), few_nodes)
    def test_connect_everybody_over_a_period(self, name, nodes):
        assert unreachable(pulls(name, nodes)) is None

    @given(st.sampled_from(("grid", "torus")), few_nodes, st.integers(1, 45))
    def test_of_lattices_with_any_number_of_columns_are_mutual_and_connected(
        self, name, nodes, columns
    ):
        graph = pulls(name, nodes, columns=columns)
        assert (graph == graph.T).all()
        assert unreachable(graph) is None
        assert graph.sum(axis=1).max() <= 4

    @pytest.mark.parametrize(
        ("name", "index", "nodes", "options", "expected"),
        [
            ("random", 1, 4, {}, (0, 2, 3)),
            ("full", 1, 4, {}, (0, 2, 3)),
            ("ring", 0, 5, {}, (1, 4)),
            ("ring", 0, 2, {}, (1,)),
            ("ring", 0, 1, {}, ()),
            ("grid", 0, 6, {}, (1, 3)),
            ("grid", 4, 6, {}, (1, 3, 5)),
            ("grid", 4, 9, {}, (1, 3, 5, 7)),
            ("grid", 6, 7, {"columns": 3}, (3,)),  # alone in the last row
            ("grid", 5, 7, {"columns": 3}, (2, 4)),  # nobody below
            ("torus", 0, 9, {}, (1, 2, 3, 6)),
            ("torus", 0, 14, {}, (1, 3, 4, 12)),
            ("torus", 2, 14, {}, (1, 3, 6, 10)),  # its column is shorter by one
            ("torus", 12, 14, {}, (0, 8, 13)),
            ("exponential", 0, 8, {}, (1, 2, 4)),
            ("exponential", 6, 9, {}, (1, 5, 7, 8)),
            ("star", 0, 4, {}, (1, 2, 3)),
            ("star", 2, 4, {}, (0,)),
            ("star", 2, 4, {"center": 2}, (0, 1, 3)),
            ("small_world", 0, 8, {"rewired": 0.0}, (1, 2, 6, 7)),
        ],
    )
    def test_of_one_node(self, name, index, nodes, options, expected):
        assert neighbours(name, index, nodes, **options) == expected

    def test_of_the_one_peer_exponential_graph_take_turns(self):
        assert [neighbours("one_peer_exponential", 6, 9, t) for t in range(5)] == [
            (7,),
            (8,),
            (1,),
            (5,),
            (7,),
        ]

    def test_a_star_without_the_node_in_the_middle_is_the_users_error(self):
        with pytest.raises(UserError, match=r"center: expected a position from 0 to 3 \(got 4\)"):
            neighbours("star", 0, 4, center=4)


@pytest.mark.parametrize(
    ("nodes", "columns"), [(1, 1), (2, 2), (3, 2), (4, 2), (6, 3), (7, 3), (8, 4), (12, 4), (14, 4)]
)
def test_lattices_are_as_square_as_possible(nodes, columns):
    assert columns_of(None, nodes) == columns


class TestSmallWorld:
    def test_the_same_seed_gives_the_same_graph_and_another_one_does_not(self):
        small_world_graph.cache_clear()
        first = pulls("small_world", 50, seed=3)
        small_world_graph.cache_clear()
        assert (pulls("small_world", 50, seed=3) == first).all()
        assert (pulls("small_world", 50, seed=4) != first).any()

    def test_never_changes_as_all_nodes_of_a_run_must_agree_on_it(self):
        assert small_world_graph(10, 4, 0.3, 0) == (
            (3, 5, 6, 7, 8, 9),
            (2, 3),
            (1, 4, 5),
            (0, 1, 4, 9),
            (2, 3, 5, 6),
            (0, 2, 4, 7, 9),
            (0, 4, 7, 9),
            (0, 5, 6, 8),
            (0, 7, 9),
            (0, 3, 5, 6, 8),
        )

    @given(few_nodes, st.sampled_from((2, 4, 6, 50)), st.floats(0, 1), st.integers(0, 2**63 - 1))
    def test_is_connected_and_mutual_for_all_options(self, nodes, degree, rewired, seed):
        graph = pulls("small_world", nodes, neighbours=degree, rewired=rewired, seed=seed)
        assert (graph == graph.T).all()
        assert unreachable(graph) is None

    @pytest.mark.parametrize("seed", range(20))
    def test_edges_of_the_ring_are_put_back_where_it_would_fall_apart(self, seed):
        # Without them, 3 of 10 such graphs do.
        assert unreachable(pulls("small_world", 30, neighbours=2, rewired=0.8, seed=seed)) is None

    def test_about_the_share_that_was_asked_for_is_rewired(self):
        edges, rewired = 2 * 400, 0.1  # each of 400 nodes owns two edges
        graph = pulls("small_world", 400, rewired=rewired)
        ring = pulls("small_world", 400, rewired=0.0)
        moved = int((ring & ~graph).sum()) // 2
        assert abs(moved - edges * rewired) < 5 * math.sqrt(edges * rewired * (1 - rewired))
        assert graph.sum() == ring.sum()

    @pytest.mark.parametrize("neighbours", [0, 1, 3])
    def test_the_number_of_neighbours_is_even(self, neighbours):
        with pytest.raises(ValidationError, match="an even number of at least 2"):
            topology("small_world").options(neighbours=neighbours)


class TestMixingMatrix:
    @given(st.sampled_from(BUILT_IN), few_nodes, st.floats(0, 1), st.integers(0, 9))
    def test_rows_are_weights_of_the_parameters(self, name, nodes, factor, round_number):
        found = matrix(name, nodes, factor, round_number)
        assert (found >= 0).all()
        assert np.abs(found.sum(axis=1) - 1).max() < 1e-12
        if nodes > 1:
            assert np.diag(found) == pytest.approx(np.full(nodes, 1 - factor))

    def test_each_neighbour_has_the_same_weight(self):
        assert matrix("ring", 4, 0.5)[0].tolist() == [0.5, 0.25, 0.0, 0.25]

    def test_is_what_pulling_from_a_random_neighbour_does_on_average(self):
        rng, factor, draws = random.Random(7), 0.3, 4000
        x = np.arange(6.0) ** 2
        total = np.zeros(6)
        for _ in range(draws):
            peers = [rng.choice(neighbours("grid", i, 6)) for i in range(6)]
            total += (1 - factor) * x + factor * x[peers]
        slack = 5 * factor * np.ptp(x) / 2 / math.sqrt(draws)  # a value's deviation <= range/2
        assert np.abs(total / draws - matrix("grid", 6, factor) @ x).max() < slack

    @given(few_nodes, factors)
    def test_regular_topologies_are_doubly_stochastic(self, nodes, factor):
        for name in ("random", "full", "ring", "exponential", "one_peer_exponential"):
            assert is_doubly_stochastic(matrix(name, nodes, factor, round_number=1))

    def test_a_star_is_not_and_its_middle_counts_for_half(self):
        star = matrix("star", 16)
        assert not is_doubly_stochastic(star)
        assert stationary_weights(star) == pytest.approx([1 / 2] + [1 / 30] * 15)

    @given(st.sampled_from(SYMMETRIC), st.integers(2, 30), factors)
    def test_weights_of_mutual_edges_are_the_degrees(self, name, nodes, factor):
        graph = pulls(name, nodes)
        found = stationary_weights(pull_matrix(graph, factor))
        assert found == pytest.approx(graph.sum(axis=1) / graph.sum(), rel=1e-6)

    @given(st.integers(2, 12), st.integers(0, 1000))
    def test_repeated_it_ends_in_the_stationary_weights(self, nodes, seed):
        rng = np.random.default_rng(seed)
        graph = rng.random((nodes, nodes)) < 0.3
        graph |= pulls("ring", nodes)  # so it is connected, and directed otherwise
        np.fill_diagonal(graph, False)
        found = pull_matrix(graph, 0.5)
        limit = np.linalg.matrix_power(found, 1 << 14)
        assert limit == pytest.approx(np.tile(stationary_weights(found), (nodes, 1)), abs=1e-9)


class TestSpectralGap:
    @given(st.integers(3, 40), factors)
    def test_of_a_ring(self, nodes, factor):
        angles = 2 * np.pi * np.arange(1, nodes) / nodes
        expected = np.abs(1 - factor + factor * np.cos(angles)).max()
        assert second_modulus(matrix("ring", nodes, factor)) == pytest.approx(expected, abs=1e-9)

    @given(st.integers(2, 40), factors)
    def test_of_the_complete_graph(self, nodes, factor):
        expected = abs(1 - factor * nodes / (nodes - 1))
        assert second_modulus(matrix("full", nodes, factor)) == pytest.approx(expected, abs=1e-9)

    @given(st.sampled_from(BUILT_IN), st.integers(2, 24), factors)
    def test_shortcuts_to_eigenvalues_agree_with_the_plain_way(self, name, nodes, factor):
        found = matrix(name, nodes, factor)
        plain = np.sort(np.abs(np.linalg.eigvals(found)))[-2]
        # A defective eigenvalue of the plain way is only exact to about the root of the precision.
        assert second_modulus(found) == pytest.approx(min(1.0, plain), abs=1e-6)

    def test_of_directed_edges_without_a_pattern(self):
        edges = EdgeList.from_pairs("abc", [("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")])
        chosen = edges_topology(edges)
        found = mixing_matrix(chosen, chosen.options(path="-"), 3, 0.5)
        eigenvalues = np.sort(np.abs(np.roots(np.poly(found))))
        assert second_modulus(found) == pytest.approx(eigenvalues[-2], abs=1e-9)

    def test_of_a_single_node_is_1_and_without_exchange_it_is_0(self):
        assert 1 - second_modulus(matrix("ring", 1)) == 1.0
        assert 1 - second_modulus(matrix("ring", 5, 0.0)) == 0.0

    @pytest.mark.parametrize(
        ("modulus", "period", "rounds"), [(0.1, 1, 3), (0.1, 4, 12), (0.5, 1, 10), (0, 4, 4)]
    )
    def test_gives_the_rounds_to_a_thousandth(self, modulus, period, rounds):
        assert rounds_to_reduce(modulus, period) == rounds

    def test_of_0_never_gets_there(self):
        assert rounds_to_reduce(1.0) is None


class TestOnePeerExponential:
    @pytest.mark.parametrize("nodes", range(2, 34))
    def test_gives_the_exact_mean_after_a_period_only_for_powers_of_two(self, nodes):
        product = period_matrix(*named("one_peer_exponential"), nodes, 0.5)
        is_power_of_two = nodes & (nodes - 1) == 0
        assert np.array_equal(product, np.full((nodes, nodes), 1 / nodes)) == is_power_of_two
        assert (second_modulus(product) < 1e-12) == is_power_of_two

    @given(st.integers(1, 40))
    def test_the_period_is_the_logarithm_and_its_rounds_make_the_exponential_graph(self, nodes):
        found, options = named("one_peer_exponential")
        assert found.period(options, nodes) == max(1, math.ceil(math.log2(nodes)))
        graph = period_adjacency(found, options, nodes)
        assert (graph == adjacency(*named("exponential"), nodes)).all()


class TestDrawnContraction:
    @given(st.integers(2, 40), factors)
    def test_of_the_complete_graph_is_the_known_law(self, n, f):
        law = 1 - 2 * f * (1 - f) * n / (n - 1) - f**2 * (2 / (n - 1) - n / (n - 1) ** 2)
        found = drawn_contraction(pulls("full", n), f, np.full(n, 1 / n))
        assert found == pytest.approx(law, abs=1e-9)

    @pytest.mark.parametrize(("name", "nodes"), [("star", 6), ("grid", 7), ("exponential", 9)])
    def test_is_what_the_worst_parameters_keep_on_average(self, name, nodes):
        graph, factor, draws = pulls(name, nodes), 0.5, 4000
        weights = stationary_weights(pull_matrix(graph, factor))
        rng = np.random.default_rng(11)
        sources = [np.flatnonzero(row) for row in graph]

        def disagreement(x):
            return weights @ (x - weights @ x) ** 2

        worst = 0.0
        for x in rng.standard_normal((8, nodes)):
            left = [
                disagreement((1 - factor) * x + factor * x[[rng.choice(s) for s in sources]])
                for _ in range(draws // 8)
            ]
            slack = 5 * np.std(left) / math.sqrt(len(left))
            bound = drawn_contraction(graph, factor, weights) * disagreement(x)
            assert np.mean(left) <= bound + slack
            worst = max(worst, np.mean(left) / bound)
        assert worst > 0.5  # not just any bound


class TestPaths:
    @given(st.integers(1, 12), st.floats(0, 0.6), st.integers(0, 10**6))
    @settings(max_examples=60)
    def test_agree_with_shortest_paths_worked_out_one_by_one(self, nodes, density, seed):
        graph = np.random.default_rng(seed).random((nodes, nodes)) < density
        np.fill_diagonal(graph, False)
        hops = reference_diameter(graph)
        if np.isfinite(hops).all():
            assert diameter(graph) == hops.max()
            assert unreachable(graph) is None
        else:
            assert diameter(graph) is None
            assert unreachable(graph) == tuple(np.argwhere(np.isinf(hops))[0])

    @pytest.mark.parametrize(
        ("name", "nodes", "expected"),
        [
            ("full", 9, 1),
            ("ring", 9, 4),
            ("ring", 1, 0),
            ("grid", 9, 4),
            ("torus", 9, 2),
            ("star", 9, 2),
            ("exponential", 16, 4),
        ],
    )
    def test_diameters(self, name, nodes, expected):
        assert diameter(pulls(name, nodes)) == expected

    def test_thousands_of_nodes_take_no_time(self):
        assert diameter(pulls("exponential", 1024)) == 10


class TestFigures:
    def test_of_a_ring(self):
        found = figures_of(*named("ring"), 16, 0.5)
        assert found.spectral_gap == pytest.approx(0.0380602, abs=1e-7)
        assert found.rounds == math.ceil(math.log(1000) / -math.log(1 - 0.0380602337443566))
        assert found.diameter == 8
        assert found.is_doubly_stochastic
        assert found.weights == pytest.approx(np.full(16, 1 / 16))

    @pytest.mark.parametrize(("nodes", "rounds"), [(8, 15), (64, 20), (300, 20)])
    def test_drawing_a_peer_at_random_takes_the_known_number_of_rounds(self, nodes, rounds):
        assert abs(figures_of(*named("random"), nodes, 0.5).drawn_rounds - rounds) <= 1

    def test_of_edges_that_do_not_connect_everybody_name_a_pair(self):
        edges = edges_topology(EdgeList.from_pairs("abc", [("a", "b"), ("b", "a"), ("c", "a")]))
        found = figures_of(edges, edges.options(path="-"), 3, 0.5)
        assert found.unreachable == (0, 2)
        assert found.diameter is None
        assert found.weights is None
        assert found.drawn_rounds is None

    def test_nothing_is_drawn_where_there_is_one_neighbour(self):
        assert figures_of(*named("one_peer_exponential"), 16, 0.5).drawn_rounds is None
        assert figures_of(*named("ring"), 2, 0.5).drawn_rounds is None


class TestEdges:
    def test_are_the_neighbours(self):
        edges = EdgeList.from_pairs(("w1", "w2", "w3"), [("w1", "w3"), ("w1", "w2"), ("w1", "w3")])
        assert edges.pulls == ((1, 2), (), ())
        chosen = edges_topology(edges)
        assert chosen.name == "file"
        assert neighbours_of(chosen, chosen.options(path="-"), 0, 3, 7) == (1, 2)

    def test_of_another_number_of_nodes_are_the_users_error(self):
        chosen = edges_topology(EdgeList.from_pairs("ab", [("a", "b")]))
        with pytest.raises(UserError, match="has 2 nodes, but this run has 3 nodes"):
            neighbours_of(chosen, chosen.options(path="-"), 0, 3, 0)

    def test_that_nobody_has_read_are_the_users_error(self):
        with pytest.raises(UserError, match=r"the file of edges some\.txt is not loaded"):
            neighbours("file", 0, 3, path="some.txt")


class TestRegistry:
    @pytest.fixture(autouse=True)
    def _own_registry(self, monkeypatch):
        monkeypatch.setattr(topologies, "_REGISTRY", deepcopy(topologies._REGISTRY))

    def test_a_topology_of_the_users_own_is_found_by_name_with_its_options(self):
        @register_topology("chain", topology("star").options)
        def chain(options, index, nodes, round_number):
            """The nodes before and after.

            More about it.
            """
            return [other for other in (index + 1, index - 1) if 0 <= other < nodes]

        assert topology_names()[-1] == "chain"
        assert topology("chain").summary == "The nodes before and after."
        assert [neighbours("chain", i, 3, center=1) for i in range(3)] == [(1,), (0, 2), (1,)]

    def test_rounds_of_a_period_are_applied_in_their_order(self):
        @register_topology("relay", period=lambda options, nodes: 2)
        def relay(options, index, nodes, round_number):
            return [index - 1] if index == 1 + round_number % 2 else []

        product = period_matrix(*named("relay"), 3, 0.5)
        assert product.tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]

    @pytest.mark.parametrize("wrong", [[0], [1, 1], [3], [-1]])
    def test_impossible_neighbours_are_the_users_error(self, wrong):
        register_topology("broken")(lambda options, index, nodes, round_number: wrong)
        with pytest.raises(UserError, match=r"'broken' returned .* for node 0 of 3 in round 5"):
            neighbours("broken", 0, 3, 5)

    def test_every_topology_of_dpwa_says_what_it_is(self):
        assert topology_names() == (*BUILT_IN, "file")
        assert all(topology(name).summary for name in topology_names())
