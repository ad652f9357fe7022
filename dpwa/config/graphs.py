"""Reads the edges of a topology from a file, one edge per line.

    w1 w2        both nodes pull from each other
    w3 -> w1     w3 pulls from w1

The text after a `#` is a comment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from dpwa.config.document import read_text
from dpwa.config.problems import Place, Problems, shown, suggestion
from dpwa.errors import ConfigError, UserError
from dpwa.policy.topology import EdgeList, FileOptions, Topology, edges_topology, topology
from dpwa.types import StrictModel

_NAME = r"[A-Za-z0-9._-]+"
_EDGE = re.compile(rf"({_NAME}?)(\s*->\s*|\s+)({_NAME})")


def read_edges(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> EdgeList:
    source = os.fspath(path)
    return parse_edges(read_text(source), names, source)


def parse_edges(text: str, names: Sequence[str] | None = None, source: str = "<edges>") -> EdgeList:
    """Return the edges in the lines of a file. `source` names the file. Edges may repeat.

    `names` has all nodes in the order of their positions. Without `names`, the nodes are those of
    the edges, in the order in which they appear. Raises `ConfigError` with all mistakes.
    """
    problems = Problems()
    known = None if names is None else dict.fromkeys(names)  # a set that keeps its order
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.partition("#")[0].rstrip()
        if content:
            start = len(content) - len(content.lstrip())
            edges += _edges_of(content.lstrip(), Place(source, number, start + 1), known, problems)
    if problems.lines():
        raise ConfigError(problems.lines())
    if not edges:
        raise ConfigError(
            [f"{source}: expected edges, such as w1 w2 (the file has no edges) [DPWA-E003]"]
        )
    return EdgeList.from_pairs(names or tuple(dict.fromkeys(_flat(edges))), edges)


def topology_of(name: str, options: StrictModel, names: Sequence[str]) -> Topology:
    if isinstance(options, FileOptions):
        return edges_topology(read_edges(options.path, names))
    return topology(name)


def found_from(folder: Path | None, options: StrictModel) -> StrictModel:
    """Return a topology's options, with the path of any edge file resolved against `folder`."""
    if not isinstance(options, FileOptions):
        return options
    return options.model_copy(update={"path": absolute(folder, options.path)})


def absolute(folder: Path | None, path: str) -> str:
    """Return a path as an absolute path. Without a folder, it starts at the working directory."""
    return str((folder or Path()).joinpath(path).absolute())


def require_connected(topology: Topology, options: StrictModel, names: Sequence[str]) -> None:
    """Raise `UserError` unless the edges of a topology lead from every node to every other node.

    Edges of all rounds count. Also raise `UserError` if the topology refuses this number of nodes.
    """
    from dpwa.policy.mixing import period_adjacency, unreachable

    pair = unreachable(period_adjacency(topology, options, len(names)))
    if pair is not None:
        raise UserError(f"topology {topology.name}: {disconnection(pair, names)} [DPWA-E008]")


def disconnection(pair: tuple[int, int], names: Sequence[str]) -> str:
    """Return the message that the second node's parameters never reach the first node of a pair."""
    deaf, unheard = (names[index] for index in pair)
    return (
        f"expected a path from every node to every other node "
        f"(the parameters of {unheard} never reach {deaf})"
    )


def _edges_of(
    content: str, place: Place, known: Collection[str] | None, problems: Problems
) -> list[tuple[str, str]]:
    """Return the one or two edges of a line, or no edge if the line is a mistake."""
    parts = _EDGE.fullmatch(content)
    if parts is None:
        expected = "expected two names of nodes, such as w1 w2 or w1 -> w2"
        problems.add(place, (), f"{expected} (got {shown(content)}) [DPWA-E222]")
        return []
    puller, arrow, source = parts.groups()
    unknown = [name for name in (puller, source) if known is not None and name not in known]
    for name in unknown:
        hint = suggestion(name, known or ())
        problems.add(place, (name,), f"expected the name of a node{hint} [DPWA-E223]")
    if puller == source:
        problems.add(place, (), f"expected two different nodes (got {puller} twice) [DPWA-E221]")
    if unknown or puller == source:
        return []
    return [(puller, source)] if arrow.strip() else [(puller, source), (source, puller)]


def _flat(edges: Sequence[tuple[str, str]]) -> list[str]:
    return [name for edge in edges for name in edge]
