import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.config.graphs import parse_edges, read_edges, require_connected
from dpwa.errors import ConfigError, UserError
from dpwa.policy.topology import EdgeList, edges_topology, topology

NAMES = ("w1", "w2", "w3", "w4")


def pulls_by_name(edges):
    return {
        name: [edges.names[other] for other in pulls]
        for name, pulls in zip(edges.names, edges.pulls, strict=True)
    }


def problems(text, names=NAMES):
    with pytest.raises(ConfigError) as caught:
        parse_edges(text, names, "edges.txt")
    return list(caught.value.problems)


def test_edges_go_both_ways_or_one_way():
    edges = parse_edges("# a comment\n\n  w1 w2\nw3 -> w1 # another\nw4->w3\n", NAMES)
    assert pulls_by_name(edges) == {"w1": ["w2"], "w2": ["w1"], "w3": ["w1"], "w4": ["w3"]}


def test_an_edge_may_be_there_several_times():
    edges = parse_edges("w1 w2\nw2 w1\nw1 -> w2", NAMES)
    assert pulls_by_name(edges) == {"w1": ["w2"], "w2": ["w1"], "w3": [], "w4": []}


def test_without_names_the_nodes_are_those_of_the_edges_in_their_order():
    assert parse_edges("b -> a\nc b").names == ("b", "a", "c")


def test_names_may_have_hyphens_and_dots():
    edges = parse_edges("a-1->b.c\nb.c x_-")
    assert pulls_by_name(edges) == {"a-1": ["b.c"], "b.c": ["x_-"], "x_-": ["b.c"]}


def test_all_mistakes_are_told_with_their_places():
    text = "w1 w2\n  w1 w22\nw1\nw1 w2 w3\nw2 <- w1\nw3 -> w3\nw1, w2"
    expected = "expected two names of nodes, such as w1 w2 or w1 -> w2"
    assert problems(text) == [
        "edges.txt:2:3: w22: expected the name of a node. Did you mean w2?",
        f"edges.txt:3:1: {expected} (got w1)",
        f"edges.txt:4:1: {expected} (got w1 w2 w3)",
        f"edges.txt:5:1: {expected} (got w2 <- w1)",
        "edges.txt:6:1: expected two different nodes (got w3 twice)",
        f'edges.txt:7:1: {expected} (got "w1, w2")',
    ]


def test_a_file_without_edges_is_a_mistake():
    assert problems("# nothing\n") == [
        "edges.txt: expected edges, such as w1 w2 (the file has no edges)"
    ]


def test_escape_sequences_never_reach_the_terminal():
    assert "\x1b" not in "".join(problems("\x1b[31m w1\nw1 \x07"))


@given(st.text("ab->#\n ,\x1b", max_size=30))
def test_any_text_gives_two_nodes_or_says_what_is_wrong(text):
    told = ()
    try:
        edges = parse_edges(text)
    except ConfigError as error:
        told = error.problems
    else:
        assert all(re.fullmatch(r"[ab-]+", name) and name in text for name in edges.names)
    assert all(re.match(r"<edges>:(\d+:\d+:)? ", line) and line.isprintable() for line in told)


@given(st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), min_size=1))
def test_what_was_written_is_what_is_read(pairs):
    pairs = {pair for pair in pairs if pair[0] != pair[1]} or {("w1", "w2")}
    text = "\n".join(f"{puller} -> {source}" for puller, source in pairs)
    assert parse_edges(text, NAMES) == EdgeList.from_pairs(NAMES, pairs)


def test_files_are_read(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("w1 w2\nw2 -> w9")
    with pytest.raises(ConfigError, match=r"edges\.txt:2:1: w9: expected the name of a node"):
        read_edges(path, ("w1", "w2"))
    assert read_edges(path).names == ("w1", "w2", "w9")


def test_a_file_that_cannot_be_read_is_the_users_error(tmp_path):
    with pytest.raises(ConfigError, match="expected a readable file"):
        read_edges(tmp_path / "none.txt", NAMES)


def test_a_topology_that_leaves_nodes_behind_is_refused_with_a_pair():
    edges = edges_topology(parse_edges("w1 w2\nw3 -> w1\nw4 w3", NAMES))
    options = edges.options(path="-")
    with pytest.raises(UserError, match=r"the parameters of w3 never reach w1"):
        require_connected(edges, options, NAMES)
    ring = topology("one_peer_exponential")
    require_connected(ring, ring.options(), NAMES)  # connected over all rounds of a period
