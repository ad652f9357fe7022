"""Rails: the nodes that have the shards of one rank, one of each member, gossip with each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpwa.algorithms import Terms, algorithm
from dpwa.config import Config, load_config
from dpwa.errors import UserError
from dpwa.node.assembly import neighbours_of


def rail_of_members(config: Config, rank: int, size: int, seed: int) -> Config:
    """Return the configuration of the nodes of one rank: they listen `rank` ports further on.

    Args:
        config: its nodes are members.
        rank: of this process among the ranks of a member.
        size: how many there are.
        seed: of all ranks of the member, if the configuration has none: they draw alike.

    Raises:
        UserError: it has something that members with shards cannot do.
    """
    _require_room(config, size)
    return _of_rank(config, rank, [_node_of_rank(node, rank) for node in _nodes(config)], seed)


def rail_of_ranks(config: Config, rank: int, members: Sequence[Sequence[str]], seed: int) -> Config:
    """Return the configuration of the nodes of one rank, under the names of their members.

    Args:
        config: its nodes are the ranks of all members, as a launcher has found them.
        rank: of this process among the ranks of its member.
        members: the names of the ranks of each; a member has the name of its first rank.
        seed: as above.

    Raises:
        UserError: there is one member only, or they differ in size; or as above.
    """
    if len({len(ranks) for ranks in members}) > 1:
        raise UserError(
            "groups of ranks of different sizes hold the model; expected as many ranks in each"
        )
    if len(members) == 1:
        raise UserError(
            "all processes of this run hold one sharded model, and there is nobody to gossip with: "
            "start each group of ranks as a run of its own, with DPWA_CONFIG and DPWA_NAME set"
        )
    nodes = {node["name"]: node for node in _nodes(config)}
    own = [{**nodes[ranks[rank]], "name": ranks[0]} for ranks in members]
    return _of_rank(config, rank, own, seed)


def _nodes(config: Config) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = config.to_mapping()["nodes"]
    return nodes


def _of_rank(config: Config, rank: int, nodes: list[dict[str, Any]], seed: int) -> Config:
    _require_possible(config)
    mapping = config.to_mapping()
    checkpoint = dict(mapping["checkpoint"])
    if checkpoint.get("dir"):
        checkpoint["dir"] = str(Path(checkpoint["dir"]) / f"rank{rank}")
    metrics = dict(mapping["metrics"])
    if metrics.get("port"):
        metrics["port"] += rank * len(nodes)
    changed = {
        "nodes": nodes,
        "metrics": metrics,
        "checkpoint": checkpoint,
        "state_donors": 1,
        "seed": seed if config.seed is None else config.seed,
    }
    return load_config({**mapping, **changed}, environ={})


def _node_of_rank(node: dict[str, Any], rank: int) -> dict[str, Any]:
    moved = dict(node)
    if node.get("endpoint"):
        moved["endpoint"] = f"{node['endpoint']}.{rank}" if rank else node["endpoint"]
    else:
        moved["port"] = node["port"] + rank
    return moved


def _require_possible(config: Config) -> None:
    kind, first = algorithm(config.algorithm), config.nodes[0].name
    problems = {
        "join: list the nodes": config.is_open,
        "fraction below 1: each rank fetches all of its shards": config.fraction < 1.0,
        f"algorithm {config.algorithm}: merges are agreed on with the peer": kind.terms
        is not Terms.PULL,
        # Each rank would go by news of its own.
        f"algorithm {config.algorithm}: it follows a leader": kind.follows_leaders,
        f"topology {config.topology}: neighbours change with the round": neighbours_of(
            config, first
        ).are_tagged,
    }
    for what, is_so in problems.items():
        if is_so:
            raise UserError(f"a model that is sharded over ranks cannot be trained with {what}")


def _require_room(config: Config, size: int) -> None:
    """Refuse nodes whose ports, one for each rank, are not their own."""
    taken: dict[tuple[str, int], str] = {}
    for node in config.nodes:
        for port in () if node.port is None else range(node.port, node.port + size):
            other = taken.setdefault((node.host, port), node.name)
            if other != node.name:
                raise UserError(
                    f"too few ports between nodes {other!r} and {node.name!r} on {node.host}: each "
                    f"of the {size} ranks that the model is sharded over listens on one, from that "
                    "of the node on"
                )
