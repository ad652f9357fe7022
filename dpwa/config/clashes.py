"""Finds settings, nodes and links that are valid on their own, but not in combination."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dpwa.algorithms import Algorithm, Terms, algorithm, algorithm_names
from dpwa.config.endpoints import MAX_PORT, ipc_path, same_host_key, split_tcp
from dpwa.config.problems import Loc, listing, suggestion
from dpwa.policy.interpolation import interpolation_names

Clash = tuple[Loc, str]  # the path of the mistake, and the message about it
Plain = Mapping[str, object]
Kind = type[Algorithm]


class _Need(NamedTuple):
    """A value that a setting must have with some algorithms."""

    setting: str
    value: object
    of: Callable[[Kind], bool]
    reason: str  # {} stands for the name of the algorithm
    code: str = " [DPWA-E217]"


def _keeps_sums(kind: Kind) -> bool:
    return kind.terms is not Terms.PULL


def _averages(kind: Kind) -> bool:
    return kind.averages_gradients


def _has_no_rule(kind: Kind) -> bool:
    return not kind.uses_rule


_NEEDS = (
    _Need("codec", "none", _keeps_sums, "algorithm: {} must keep its sums exact"),
    _Need("robust", "none", _keeps_sums, "algorithm: {} must keep its sums exact"),
    _Need("robust", "none", _averages, "gradients are not clipped with algorithm: {}"),
    _Need("lr_spread", "none", _averages, "all nodes take equal steps with algorithm: {}"),
    _Need(
        "quarantine_s",
        0,
        lambda kind: kind.repeats or _averages(kind),
        "the loss cannot identify a bad peer with algorithm: {}",
    ),
    _Need(
        "fraction",
        1,
        lambda kind: kind.needs_whole or _keeps_sums(kind) or _averages(kind),
        "algorithm: {} needs whole snapshots",
        "",
    ),
    *(
        _Need(key, value, _has_no_rule, "rules have no effect with algorithm: {}", " [DPWA-E220]")
        for key, value in (("interpolation", "constant"), ("divergence_threshold", 0))
    ),
    _Need("merge", "delta", _has_no_rule, "merge has no effect with algorithm: {}", " [DPWA-E220]"),
    _Need("repeat", None, _keeps_sums, "repeat has no effect with algorithm: {}", " [DPWA-E220]"),
    _Need(
        "topology",
        "random",
        lambda kind: kind.name == "lsgd",
        "topology has no effect with algorithm: {}, which fetches from leaders",
        " [DPWA-E220]",
    ),
)


def clashes(settings: Plain) -> Iterator[Clash]:
    """Yield nodes with equal names or addresses, wrong links, and settings that clash.

    Settings are plain values as in the source. Values that are wrong alone are reported elsewhere.
    """
    nodes, links = mappings(settings, "nodes"), mappings(settings, "links")
    yield from _nodes_alike(nodes)
    names = [name for node in nodes if isinstance(name := node.get("name"), str)]
    yield from _links_amiss(links, names)
    yield from _changing_nodes(settings)
    yield from _metrics_ports(settings, nodes)
    chosen = settings.get("algorithm", "gossip")
    known = chosen if isinstance(chosen, str) and chosen in algorithm_names() else "gossip"
    for need in _NEEDS:
        if need.of(algorithm(known)):
            places = _places(need.setting, settings, nodes, links)
            yield from _unmet(need, known, places)
    part = settings.get("fraction")
    if settings.get("robust") == "clip" and _is_other(part, 1):
        yield ("fraction",), f"expected 1, because robust: clip needs whole snapshots (got {part})"


def mappings(settings: Plain, key: str) -> list[Plain]:
    """Return the items of a list as mappings. An item that is no mapping becomes an empty one."""
    items = settings.get(key)
    kept = items if isinstance(items, (list, tuple)) else ()
    return [each if isinstance(each, dict) else getattr(each, "__dict__", {}) for each in kept]


def _places(
    setting: str, settings: Plain, nodes: Sequence[Plain], links: Sequence[Plain]
) -> Iterator[tuple[Loc, Plain]]:
    """Yield path and values of each mapping (top level, node or link) that can have `setting`."""
    yield (), settings
    if setting == "codec":
        for key, items in (("nodes", nodes), ("links", links)):
            for index, item in enumerate(items):
                yield (key, index), item


def _unmet(need: _Need, name: str, places: Iterable[tuple[Loc, Plain]]) -> Iterator[Clash]:
    expected = "no value" if need.value is None else need.value
    for place, item in places:
        value = item.get(need.setting, need.value)
        is_known = need.setting != "interpolation" or value in interpolation_names()
        if is_known and _is_other(value, need.value):
            reason = need.reason.format(name)
            text = f"expected {expected}, because {reason} (got {value}){need.code}"
            yield (*place, need.setting), text


def _is_other(value: object, needed: object) -> bool:
    """Return whether `value` is valid with other algorithms, but is not the `needed` value."""
    if isinstance(needed, int):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return value != needed and 0 <= value <= (needed or math.inf)
    return isinstance(value, str) and value != needed


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
            yield ("nodes", index, key), _taken("a unique address", text, "nodes", first)


def _address(node: Plain) -> tuple[str, object, str]:
    """Return the key that sets a node's address, the address as a comparable value, and as text."""
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
            yield path, _taken("each pair of nodes once", " and ".join(ends), "links", first)


def _taken(expected: str, got: str, items: str, first: int) -> str:
    return f"expected {expected} (got {got}, already used by {items}[{first}])"


def _metrics_ports(settings: Plain, nodes: Sequence[Plain]) -> Iterator[Clash]:
    options = settings.get("metrics")
    port = options.get("port") if isinstance(options, dict) else getattr(options, "port", None)
    most = MAX_PORT + 1 - len(nodes)
    if isinstance(port, int) and most < port <= MAX_PORT:
        expected = f"expected a port up to {most}, because {len(nodes)} nodes need one port each"
        yield ("metrics", "port"), f"{expected} (got {port})"


def _changing_nodes(settings: Plain) -> Iterator[Clash]:
    """Yield the settings that do not work with `join`, or the settings that need `join`."""
    if settings.get("join") is None:
        if settings.get("nodes") in ([], ()):
            yield ("nodes",), "expected a list with at least 1 item (got a list)"
        for key in ("listen", "advertise"):
            if settings.get(key) is not None:
                yield (key,), f"expected `join` to be set, too (got {settings[key]}) [DPWA-E218]"
        if settings.get("alone") is True:
            yield ("alone",), "expected `join` to be set, too (got on) [DPWA-E218]"
        if settings.get("state_dir"):
            got = settings["state_dir"]
            yield ("state_dir",), f"expected `join` to be set, too (got {got}) [DPWA-E218]"
        return
    if settings.get("topology") == "file":
        expected = "expected a topology for any number of nodes, because `join` is set"
        yield ("topology",), f"{expected} (got file) [DPWA-E219]"
    if settings.get("lr_spread") in ("linear", "power"):
        expected = "expected none, because with `join` a node does not know all nodes"
        yield ("lr_spread",), f"{expected} (got {settings['lr_spread']}) [DPWA-E217]"
