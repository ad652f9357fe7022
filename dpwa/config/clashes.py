"""Mistakes that only show when nodes and links are looked at together."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from dpwa.config.endpoints import ipc_path, same_host_key, split_tcp
from dpwa.config.problems import listing, suggestion

# Where the mistake is, as steps from the root, and the sentence about it.
Clash = tuple[tuple[str | int, ...], str]
Plain = Mapping[str, object]


def clashes(nodes: Sequence[Plain], links: Sequence[Plain]) -> Iterator[Clash]:
    """Find nodes that cannot be told apart, and links that make no sense.

    Nodes and links are plain values as written. Those of a wrong type are skipped: they are
    reported elsewhere.
    """
    yield from _nodes_alike(nodes)
    names = [name for node in nodes if isinstance(name := node.get("name"), str)]
    yield from _links_amiss(links, names)


def _nodes_alike(nodes: Sequence[Plain]) -> Iterator[Clash]:
    names: dict[str, int] = {}
    addresses: dict[object, int] = {}
    for index, node in enumerate(nodes):
        name = node.get("name")
        if isinstance(name, str) and names.setdefault(name, index) != index:
            yield ("nodes", index, "name"), _taken("a unique name", name, "nodes", names[name])
        key, address, text = _address(node)
        if address is not None and addresses.setdefault(address, index) != index:
            first = addresses[address]
            yield ("nodes", index, key), _taken("an address of its own", text, "nodes", first)


def _address(node: Plain) -> tuple[str, object, str]:
    """Return the key that gives a node its address, what two of one address share, and its text."""
    endpoint = node.get("endpoint")
    if isinstance(endpoint, str):
        path, tcp = ipc_path(endpoint), split_tcp(endpoint)
        if path is not None:
            return "endpoint", posixpath.normpath(path), endpoint
        return "endpoint", (same_host_key(tcp[0]), tcp[1]) if tcp else None, endpoint
    host, port = node.get("host", "localhost"), node.get("port")
    known = isinstance(host, str) and isinstance(port, (int, float))
    return "port", (same_host_key(str(host)), port) if known else None, f"{host}:{port}"


def _links_amiss(links: Sequence[Plain], names: Sequence[str]) -> Iterator[Clash]:
    pairs: dict[frozenset[object], int] = {}
    for index, link in enumerate(links):
        ends = link.get("between")
        if not isinstance(ends, (list, tuple)) or len(ends) != 2:
            continue
        path = ("links", index, "between")
        for end, name in enumerate(ends):
            if isinstance(name, str) and name not in names:
                expected = f"expected one of {listing(names)}" if names else "expected a node"
                yield (*path, end), f"{expected} (got {name}){suggestion(name, names)}"
        if not all(isinstance(name, str) for name in ends):
            continue
        if ends[0] == ends[1]:
            yield path, f"expected two different nodes (got {ends[0]} twice)"
        elif (first := pairs.setdefault(frozenset(ends), index)) != index:
            yield path, _taken("each pair once", " and ".join(ends), "links", first)


def _taken(expected: str, got: str, items: str, first: int) -> str:
    return f"expected {expected} (got {got}, already taken by {items}[{first}])"
