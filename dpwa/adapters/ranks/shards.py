"""Shards: the ranks of one `fully_shard` model, which gossip together as one member.

Each rank has its own node. The node gossips its shards with the nodes of the same rank of other
members. In each round, rank 0 picks the peer, and all ranks fetch from it. They merge only if all
ranks have the same version of the peer's parameters, so a merge never affects only a part of a
member. If a rank dies, the other ranks fail in their next collective, like the model itself, and
the member is lost.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar, cast

import msgpack
import torch
import torch.distributed as dist
from torch import nn

from dpwa import fault_points
from dpwa.adapters.plain_tensors import is_sharded, reshard
from dpwa.adapters.ranks.alone import Build, Making
from dpwa.adapters.ranks.group import (
    Failure,
    RankGroup,
    form_of,
    require_alike,
    result_of,
)
from dpwa.algorithms import Ask, Terms, algorithm
from dpwa.config import Config, load_config
from dpwa.connection import DpwaConnection
from dpwa.errors import DpwaError, MismatchError, ParametersError, UserError
from dpwa.node.arrival import Arrival
from dpwa.node.assembly import neighbours_in
from dpwa.node.finish import Averaged
from dpwa.policy.finishing import FinishReport
from dpwa.transport.link import LinkState
from dpwa.types import Loss
from dpwa.wire import limits


def rank_config_of_members(config: Config, rank: int, size: int, seed: int) -> Config:
    """Return the configuration for one rank, from a `config` whose nodes are whole members.

    The port of a node is `rank` higher than the member's port in `config`. All ranks of the member
    use the same `seed`, or the seed of the configuration, so that they pick the same peers. Raises
    `UserError` if the configuration has features that sharded models do not support.
    """
    _require_room(config, size)
    return _of_rank(config, rank, [_node_of_rank(node, rank) for node in _nodes(config)], seed)


def rank_config_of_ranks(
    config: Config, rank: int, members: Sequence[Sequence[str]], seed: int
) -> Config:
    """Return the configuration for one rank, from a `config` whose nodes are ranks.

    The nodes of `config` are the ranks of all members, in the form in which a launcher gives them.
    A member gets the name of its first rank. Raises `UserError` if there is only one member, if
    members differ in size, or if the configuration has unsupported features.
    """
    if len({len(ranks) for ranks in members}) > 1:
        raise UserError(
            "the members of this run hold the model on different numbers of ranks. Start all "
            "members with the same number of ranks [DPWA-E130]"
        )
    if len(members) == 1:
        raise UserError(
            "all processes of this run hold one sharded model, so there are no peers to gossip "
            "with. Start each group of ranks as a separate run, with DPWA_CONFIG and DPWA_NAME set "
            "[DPWA-E131]"
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
        "join. List all nodes in `nodes`": config.is_open,
        "fraction below 1, because each rank fetches all of its shards": config.fraction < 1.0,
        f"algorithm {config.algorithm}, whose two nodes must agree on each merge": kind.terms
        is not Terms.PULL,
        # Each rank would follow the leader that it knows.
        f"algorithm {config.algorithm}, which follows a leader": kind.follows_leaders,
        f"topology {config.topology}, whose neighbours change with the round": neighbours_in(
            config, first
        ).are_tagged,
    }
    for what, is_so in problems.items():
        if is_so:
            raise UserError(
                f"a model that is sharded over ranks cannot be trained with {what} [DPWA-E132]"
            )


def _require_room(config: Config, size: int) -> None:
    """Raise `UserError` if two nodes on one host need the same port for any of their ranks."""
    taken: dict[tuple[str, int], str] = {}
    for node in config.nodes:
        for port in () if node.port is None else range(node.port, node.port + size):
            other = taken.setdefault((node.host, port), node.name)
            if other != node.name:
                raise UserError(
                    f"the ports of nodes {other!r} and {node.name!r} on {node.host} are too close. "
                    f"Each of the {size} ranks of the sharded model needs its own port, counted "
                    f"from the node's port. Use ports that differ by at least {size} [DPWA-E133]"
                )


R = TypeVar("R")

EXACT_BYTES = 6  # the bytes of a digest that a float64 represents exactly
NOBODY = -1.0


class Step(IntEnum):
    """A command or result that rank 0 sends to the other ranks at the end of the training."""

    PUBLISH = 0
    READ = 1  # with a peer and a weight
    GO_ON = 2  # with a flag: whether other nodes still train
    LENGTH = 3
    RESULT = 4
    FAILURE = 5


@dataclass
class Shards(RankGroup):
    """The process group of a sharded model, on each rank. A `ShardGroup` of `gossip_rounds`."""

    net: nn.Module
    copies: int  # the number of ranks that have the same shards
    # whether a peer has asked some rank for a copy of the state
    wants_state: bool = field(default=False, init=False)
    may_save: bool = field(default=False, init=False)  # whether all ranks can write a checkpoint

    def __post_init__(self) -> None:
        super().__post_init__()
        self._names: tuple[str, ...] = ()
        self._unreached: set[str] = set()  # peers that some rank could not reach in the last round

    # Making an adapter

    def make(self, given: Making, build: Build, begin: Callable[[], None]) -> None:
        with self.patience(given.name):
            said = self.each((given.name, secrets.randbits(32)))
        members, seed = self._members([name for name, _ in said]), said[0][1]
        given = replace(given, name=(members or [[given.name]])[0][0])
        given, failure = self.with_mean_of_leader_losses(given), None
        try:
            config = load_config(given.config)
            config.require(given.name)
            given = replace(given, config=self._rank_config(config, members, seed))
            connection = DpwaConnection(given.name, given.config)
            self._state, _ = build(given, connection)
        except Exception as error:  # noqa: BLE001 - every error must be sent to the other ranks
            failure = error
        forms = self.gather(form_of(given, failure, self.rank))
        if failure is not None:
            raise failure
        require_alike(forms)
        self._names = (given.name, *connection.peers)
        self._node, self._states = connection.node, connection.states
        self._node.rounds.shard_group = self
        self._states.keep_together(self)
        with self.entered():
            begin()

    def _members(self, names: list[str]) -> list[list[str]]:
        """Return the launcher's names for the ranks of each member. This member is first.

        The result is empty if all ranks of this member have the same name.
        """
        if len(set(names)) < self.size:
            return []
        world: Any = dist.group.WORLD
        others = dict.fromkeys(RankGroup(world, self.device).each(names))
        return [names, *(list(ranks) for ranks in others if list(ranks) != names)]

    def _rank_config(self, config: Config, members: list[list[str]], seed: int) -> Config:
        if members:
            order = [node.name for node in config.nodes]
            members = sorted(members, key=lambda ranks: order.index(ranks[0]))
            return rank_config_of_ranks(config, self.rank, members, seed)
        return rank_config_of_members(config, self.rank, self.size, seed)

    # A call

    def problem(self) -> Exception | None:
        try:
            self._node.check_open()
            reshard(self.net)
            self._state.refresh()
        except DpwaError as error:
            return error
        return None

    def mean(self, loss: Loss, problem: Exception | None, with_leader_loss: bool) -> float | None:
        try:  # here the ranks exchange numbers, so an error of one rank reaches all
            self._node.rounds.look_for_refusals()
        except MismatchError as error:
            problem = problem or error
        return super().mean(loss, problem, with_leader_loss)

    def run(self, call: Callable[[], R]) -> R:
        """Call a function on each rank. The function itself makes the ranks agree if necessary."""
        with self.entered():
            result = call()
        fault_points.reached("shards.called")
        return result

    def whole_norm(self) -> Callable[[float], float]:
        return self.norm

    def rest(self, own: dict[str, str]) -> dict[str, str]:
        return {name: told for each in self.each(own) for name, told in each.items()}

    def norm(self, own: float) -> float:
        return math.hypot(*(row[0] for row in self.numbers([own]))) / math.sqrt(self.copies)

    # The end of the training

    def run_finish(
        self, averaged: Averaged, run: Callable[[Averaged], FinishReport]
    ) -> FinishReport:
        """Run `finish` on rank 0, and its steps on all ranks. All ranks return the same report."""
        take: dict[int, Callable[..., Any]] = {
            Step.PUBLISH: lambda: self._digest(averaged.publish_model()),
            Step.READ: averaged.merge_peer,
            Step.GO_ON: averaged.go_on,
            Step.LENGTH: averaged.length,
        }
        if not self.is_first:
            self._node.rounds.end_training(None)
            while True:
                step, *told = self.say(None)
                if step == Step.RESULT:
                    report = cast("FinishReport", result_of(*told))
                    self._node.finish.follow(report)
                    return report
                if step == Step.FAILURE:
                    Failure(*told).throw()
                take[step](*told)

        def with_all(step: int) -> Callable[..., Any]:
            def taken(*given: object) -> Any:
                self.say((step, *given))
                return take[step](*given)

            return taken

        try:
            publish, read, go_on, length = map(with_all, take)
            report = run(Averaged(publish, read, go_on, length, averaged.rest))
        except Exception as error:
            self.say((Step.FAILURE, *Failure.from_error(error, self.rank)))
            raise
        self.say((Step.RESULT, report))
        return report

    def _digest(self, own: bytes | None) -> bytes | None:
        """Return a digest of all ranks' shards, or `None` on all ranks if a rank has no digest."""
        digests = self.each(own)
        if None in digests:
            return None
        return hashlib.blake2b(b"".join(digests), digest_size=limits.MAX_DIGEST_BYTES).digest()

    # Agreement between the nodes

    def agreed(self, ask: Ask | None, draw: Callable[[Collection[str]], str | None]) -> Ask | None:
        """Return rank 0's fetch request if all ranks have one. See `dpwa.node.gossip_rounds`."""
        drawn = ask
        if self.is_first and ask is not None and ask.peer is None:
            drawn = replace(ask, peer=draw(self._unreached))
        peer = NOBODY
        if drawn is not None and drawn.peer is not None:
            peer = float(self._names.index(drawn.peer))
        links, states = self._node.links, self._states
        reached = [float(links.get(name) is not LinkState.DOWN) for name in self._names]
        told = float(ask is not None), float(states.is_wanted), float(states.may_save), peer
        rows = self.numbers([*told, *reached])
        self.wants_state = any(row[1] for row in rows)
        self.may_save = all(row[2] for row in rows)
        everywhere = [all(seen) for seen in zip(*(row[4:] for row in rows), strict=True)]
        self._unreached = {n for n, is_up in zip(self._names, everywhere, strict=True) if not is_up}
        chosen = rows[0][3]
        if ask is None or chosen == NOBODY or not all(row[0] for row in rows):
            return None
        return replace(ask, peer=self._names[int(chosen)])

    def same_for_all(
        self, arrival: Arrival | None, older: Callable[[Arrival, int], Arrival | None]
    ) -> Arrival | None:
        """Return a version of the snapshot that all ranks have. See `dpwa.node.gossip_rounds`.

        If the peer publishes while the ranks check, the ranks with a newer version use an older
        one.
        """
        fault_points.reached("shards.arrived")
        own = [_number(_described(arrival)), NOBODY, 0.0]
        if arrival is not None:
            own[1:] = [_number(arrival.peer), float(arrival.version)]
        rows = self.numbers(own)
        versions = {row[2] for row in rows}
        if own[1] != NOBODY and all(row[1] == own[1] for row in rows) and len(versions) > 1:
            arrival = self._at(int(min(versions)), arrival, older)
            rows = self.numbers([_number(_described(arrival))])
        fault_points.reached("shards.agreed")
        if arrival is not None and any(row[0] != rows[0][0] for row in rows):
            arrival.release()
            return None
        return arrival

    def _at(
        self, version: int, arrival: Arrival | None, older: Callable[[Arrival, int], Arrival | None]
    ) -> Arrival | None:
        if arrival is None or arrival.version == version:
            return arrival
        arrival.release()
        return older(arrival, version)

    def all(self, own: bool) -> bool:
        return all(row[0] for row in self.numbers([float(own)]))

    def all_same(self, own: object) -> bool:
        """Return whether all ranks have equal plain data, or all have `None`."""
        number = _number(own)
        return all(row == [number] for row in self.numbers([number]))


def _number(value: object) -> float:
    digest = hashlib.blake2b(msgpack.packb(value), digest_size=EXACT_BYTES).digest()
    return float(int.from_bytes(digest, "big"))


def _described(arrival: Arrival | None) -> object:
    """Return the values of a received snapshot that must be equal on all ranks."""
    if arrival is None:
        return None
    whose = arrival.peer, arrival.version, arrival.progress.clock, arrival.progress.loss
    return (*whose, arrival.factor, arrival.takes_over, arrival.published is None)


def shards_of_module(net: nn.Module) -> Shards | None:
    """Return the ranks of a sharded module. `None` if the module is unsharded or on one rank.

    Raises `ParametersError` if the parameters are sharded over several device meshes, or over a
    mesh of several dimensions that has only some of the processes.
    """
    meshes: list[Any] = []
    placements: tuple[Any, ...] = ()
    for _, parameter in net.named_parameters():
        if is_sharded(parameter):
            sharded: Any = parameter
            placements = placements or sharded.placements
            if sharded.device_mesh not in meshes:
                meshes.append(sharded.device_mesh)
    if not meshes or meshes[0].size() == 1:
        return None
    if len(meshes) > 1:
        raise ParametersError(
            f"the parameters are sharded over {len(meshes)} device meshes. Shard the whole module "
            "over a single mesh [DPWA-E134]"
        )
    mesh = meshes[0]
    if mesh.ndim == 1:
        group: dist.ProcessGroup = mesh.get_group()
    elif mesh.size() == dist.get_world_size():
        group = dist.group.WORLD  # type: ignore[assignment]
    else:
        raise ParametersError(
            f"the parameters are sharded over a device mesh {tuple(mesh.shape)} that has only some "
            "of the processes. Use a mesh of one dimension, or a mesh of all processes [DPWA-E134]"
        )
    copies = math.prod(
        size
        for size, placement in zip(mesh.shape, placements, strict=True)
        if placement.is_replicate()
    )
    return Shards(group, torch.device(mesh.device_type), net, copies)
