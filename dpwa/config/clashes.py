"""Mistakes that only show when settings, nodes and links are looked at together."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from dpwa.algorithms import Terms, algorithm, algorithm_names
from dpwa.config.endpoints import MAX_PORT, ipc_path, same_host_key, split_tcp
from dpwa.config.problems import listing, suggestion
from dpwa.policy.interpolation import interpolation_names

# Where the mistake is, as steps from the root, and the sentence about it.
Clash = tuple[tuple[str | int, ...], str]
Plain = Mapping[str, object]


def clashes(settings: Plain, nodes: Sequence[Plain], links: Sequence[Plain]) -> Iterator[Clash]:
    """Find nodes that are alike, links that make no sense, and settings that exclude each other.

    All are plain values as written; wrong ones are reported elsewhere.
    """
    yield from _nodes_alike(nodes)
    names = [name for node in nodes if isinstance(name := node.get("name"), str)]
    yield from _links_amiss(links, names)
    chosen = settings.get("algorithm", "gossip")
    known = chosen if isinstance(chosen, str) and chosen in algorithm_names() else "gossip"
    kind = algorithm(known)
    is_transaction = kind.terms is not Terms.PULL
    if is_transaction:
        yield from _inexact(known, settings, nodes, links)
    if is_transaction or not kind.uses_rule:
        yield from _extra_gossip(settings)
    if not kind.uses_rule:
        yield from _useless_rule(known, settings)
    if kind.averages_gradients:
        yield from _unequal(known, settings)
    yield from _changing_nodes(settings)
    yield from _metrics_ports(settings, nodes)
    if kind.repeats or kind.averages_gradients:
        yield from _blameless(known, settings)
    if is_transaction or kind.needs_whole or kind.averages_gradients:
        yield from _partial(f"algorithm: {known} needs", settings)
    elif settings.get("robust") == "clip":
        yield from _partial("robust: clip measures", settings)


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
    """Return the key of a node's address, what two nodes of one address share, and its text."""
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
            yield path, f"expected two different nodes (got {ends[0]} twice) [DPWA-E221]"
        elif (first := pairs.setdefault(frozenset(ends), index)) != index:
            yield path, _taken("each pair once", " and ".join(ends), "links", first)


def _taken(expected: str, got: str, items: str, first: int) -> str:
    return f"expected {expected} (got {got}, already taken by {items}[{first}])"


def _unequal(name: str, settings: Plain) -> Iterator[Clash]:
    """Find what nodes that take their steps together cannot have."""
    expected = f"expected none, as nothing clips the gradients that algorithm: {name} averages"
    if settings.get("robust") == "clip":
        yield ("robust",), f"{expected} (got clip) [DPWA-E217]"
    spread = settings.get("lr_spread")
    if isinstance(spread, str) and spread != "none":
        expected = f"expected none, as nodes take equal steps with algorithm: {name}"
        yield ("lr_spread",), f"{expected} (got {spread}) [DPWA-E217]"


def _inexact(
    name: str, settings: Plain, nodes: Sequence[Plain], links: Sequence[Plain]
) -> Iterator[Clash]:
    """Find what would change the sums that both ends of a transaction keep together."""
    reason = f"as algorithm: {name} keeps sums exact"
    codecs: list[tuple[tuple[str | int, ...], object]] = [(("codec",), settings.get("codec"))]
    for key, items in (("nodes", nodes), ("links", links)):
        codecs += [((key, index, "codec"), item.get("codec")) for index, item in enumerate(items)]
    for path, codec in codecs:
        if isinstance(codec, str) and codec != "none":
            yield path, f"expected none, {reason} (got {codec}) [DPWA-E217]"
    if settings.get("robust") == "clip":
        yield ("robust",), f"expected none, {reason} (got clip) [DPWA-E217]"


def _extra_gossip(settings: Plain) -> Iterator[Clash]:
    control = settings.get("consensus_control")
    if isinstance(control, (int, float)) and control > 0.0:
        expected = "expected 0, as only algorithm: gossip can mix more within a step"
        yield ("consensus_control",), f"{expected} (got {control})"


def _useless_rule(name: str, settings: Plain) -> Iterator[Clash]:
    rule = settings.get("interpolation")
    if rule != "constant" and rule in interpolation_names():
        expected = f"expected constant, as rules have no effect with algorithm: {name}"
        yield ("interpolation",), f"{expected} (got {rule}) [DPWA-E220]"


def _blameless(name: str, settings: Plain) -> Iterator[Clash]:
    """Find a quarantine where a jump of the loss says nothing about the peer."""
    seconds = settings.get("quarantine_s")
    if isinstance(seconds, (int, float)) and seconds > 0.0:
        expected = f"expected 0, as the loss tells nothing of a peer with algorithm: {name}"
        yield ("quarantine_s",), f"{expected} (got {seconds}) [DPWA-E217]"


def _partial(who: str, settings: Plain) -> Iterator[Clash]:
    fraction = settings.get("fraction")
    if isinstance(fraction, (int, float)) and 0.0 < fraction < 1.0:
        yield ("fraction",), f"expected 1, as {who} whole snapshots (got {fraction})"


def _metrics_ports(settings: Plain, nodes: Sequence[Plain]) -> Iterator[Clash]:
    options = settings.get("metrics")
    port = options.get("port") if isinstance(options, dict) else getattr(options, "port", None)
    most = MAX_PORT + 1 - len(nodes)
    if isinstance(port, int) and most < port <= MAX_PORT:
        expected = f"expected a port up to {most}, as each of the {len(nodes)} nodes has its own"
        yield ("metrics", "port"), f"{expected} (got {port})"


def _changing_nodes(settings: Plain) -> Iterator[Clash]:
    """Find what needs the list of all nodes, where nodes come and go."""
    if settings.get("join") is None:
        if settings.get("nodes") in ([], ()):
            yield ("nodes",), "expected a list with at least 1 item (got a list)"
        for key in ("listen", "advertise"):
            if settings.get(key) is not None:
                yield (key,), f"expected `join` beside it (got {settings[key]}) [DPWA-E218]"
        if settings.get("alone") is True:
            yield ("alone",), "expected `join` beside it (got on) [DPWA-E218]"
        if settings.get("state_dir"):
            got = settings["state_dir"]
            yield ("state_dir",), f"expected `join` beside it (got {got}) [DPWA-E218]"
        return
    if settings.get("topology") == "file":
        expected = "expected one that fits any number of nodes, beside `join`"
        yield ("topology",), f"{expected} (got file) [DPWA-E219]"
    if settings.get("lr_spread") in ("linear", "power"):
        expected = "expected none, as with `join` nobody knows all nodes"
        yield ("lr_spread",), f"{expected} (got {settings['lr_spread']}) [DPWA-E217]"
