"""Rails: the nodes that have the shards of one rank, one of each member, gossip with each other."""

from __future__ import annotations

from typing import Any

from dpwa.algorithms import Terms, algorithm
from dpwa.config import Config, load_config
from dpwa.errors import UserError
from dpwa.node.assembly import neighbours_of


def rail(config: Config, rank: int, size: int) -> Config:
    """Return the configuration of the nodes of one rank: they listen `rank` ports further on.

    Args:
        config: of the members.
        rank: of this process among the ranks of a member.
        size: how many there are.

    Raises:
        UserError: it has something that members with shards cannot do.
    """
    _require_possible(config)
    _require_room(config, size)
    mapping: dict[str, Any] = config.to_mapping()
    mapping["nodes"] = [_node_of_rank(node, rank) for node in mapping["nodes"]]
    mapping["initial_state"] = "own"  # until all ranks are there
    mapping["state_donors"] = 1
    return load_config(mapping, environ={})


def _node_of_rank(node: dict[str, Any], rank: int) -> dict[str, Any]:
    moved = dict(node)
    if node.get("endpoint"):
        moved["endpoint"] = f"{node['endpoint']}.{rank}" if rank else node["endpoint"]
    else:
        moved["port"] = node["port"] + rank
    return moved


def _require_possible(config: Config) -> None:
    kind = algorithm(config.algorithm)
    problems = {
        "join": "list the nodes" if config.is_open else "",
        "checkpoint": "use torch.distributed.checkpoint" if config.checkpoint.dir else "",
        "algorithm": f"merges of {config.algorithm!r} are agreed on with the peer"
        if kind.terms is not Terms.PULL
        else "",
        "topology": f"neighbours in {config.topology!r} change with the round"
        if neighbours_of(config, config.nodes[0].name).are_tagged
        else "",
    }
    for setting, what in problems.items():
        if what:
            raise UserError(
                f"a model that is sharded over ranks cannot be trained with {setting}: {what}"
            )


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
