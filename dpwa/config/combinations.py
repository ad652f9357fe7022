"""Settings that are fine one by one, and cannot work together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpwa.algorithms import Terms, algorithm, algorithm_names
from dpwa.config.clashes import Clash, Plain
from dpwa.config.endpoints import MAX_PORT
from dpwa.policy.interpolation import interpolation_names


def combinations(
    settings: Plain, nodes: Sequence[Plain], links: Sequence[Plain]
) -> Iterator[Clash]:
    """Find settings that the algorithm, or another setting, makes impossible or useless.

    All are plain values as written; those that are left out or wrong in themselves are passed over.
    """
    name = settings.get("algorithm", "gossip")
    known = name if isinstance(name, str) and name in algorithm_names() else "gossip"
    kind = algorithm(known)
    is_transaction = kind.terms is not Terms.PULL
    if is_transaction:
        yield from _inexact(known, settings, nodes, links)
    if is_transaction or not kind.uses_rule:
        yield from _extra_gossip(settings)
    if not kind.uses_rule:
        yield from _useless_rule(known, settings)
    yield from _changing_nodes(settings)
    yield from _metrics_ports(settings, nodes)
    if is_transaction or kind.keeps or kind.needs_whole:
        yield from _partial(f"algorithm: {known} needs", settings)
    elif settings.get("robust") == "clip":
        yield from _partial("robust: clip measures", settings)


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
            yield path, f"expected none, {reason} (got {codec})"
    if settings.get("robust") == "clip":
        yield ("robust",), f"expected none, {reason} (got clip)"


def _extra_gossip(settings: Plain) -> Iterator[Clash]:
    control = settings.get("consensus_control")
    if isinstance(control, (int, float)) and control > 0.0:
        expected = "expected 0, as only algorithm: gossip can mix more within a step"
        yield ("consensus_control",), f"{expected} (got {control})"


def _useless_rule(name: str, settings: Plain) -> Iterator[Clash]:
    rule = settings.get("interpolation")
    if rule != "constant" and rule in interpolation_names():
        expected = f"expected constant, as rules have no effect with algorithm: {name}"
        yield ("interpolation",), f"{expected} (got {rule})"


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
                yield (key,), f"expected `join` beside it (got {settings[key]})"
        if settings.get("alone") is True:
            yield ("alone",), "expected `join` beside it (got on)"
        if settings.get("state_dir"):
            yield ("state_dir",), f"expected `join` beside it (got {settings['state_dir']})"
        return
    if settings.get("topology") == "file":
        yield ("topology",), "expected one that fits any number of nodes, beside `join` (got file)"
    if settings.get("lr_spread") in ("linear", "power"):
        got = f"(got {settings['lr_spread']})"
        yield ("lr_spread",), f"expected none, as with `join` nobody knows all nodes {got}"
