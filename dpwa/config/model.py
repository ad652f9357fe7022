"""The configuration as typed values: what may be set, its limits and its defaults.

The description of each field is the one source of the JSON Schema and of the comments that
`dpwa config init` writes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from dpwa.config.clashes import clashes
from dpwa.config.combinations import combinations
from dpwa.config.joining import AdvertisedEndpoint, JoinAddress, ListenEndpoint, Seed, seed_of
from dpwa.config.limits import Limits
from dpwa.config.methods import methods_in_use
from dpwa.config.names import AlgorithmName, InterpolationName, ModuleName, TopologyName
from dpwa.config.nodes import Codec, LinkConfig, NodeConfig, is_label
from dpwa.config.options import (
    ChangedOptions,
    CheckpointOptions,
    MetricsOptions,
    TopKOptions,
    options_of,
)
from dpwa.config.problems import joined_all, listing, suggestion
from dpwa.config.public_keys import Allow
from dpwa.errors import UnknownNameError
from dpwa.types import Fraction, JsonObject, StrictModel

MAX_TIMEOUT_MS = 3_600_000
MAX_SEED = 2**63 - 1

CLASH = "dpwa_clash"
_YAML: Any = {"sort_keys": False, "default_flow_style": None, "width": 1000, "allow_unicode": True}


class Config(StrictModel):
    """All settings of a training run; the same for every node of it."""

    nodes: tuple[NodeConfig, ...] = Field(
        json_schema_extra={"minItems": 1},  # unless there is `join`, see `combinations`
        description="the nodes of the run, one entry each: name, host, port and, if needed, group "
        "(nodes that belong together), bind (address to listen on when it is not the host) and "
        "codec (of what is fetched from it); endpoint: ipc:///path replaces host and port",
    )
    fetch_probability: Fraction = Field(
        default=1.0, description="chance that an update_send fetches from a peer, 0 to 1"
    )
    timeout_ms: int = Field(
        default=2500,
        ge=1,
        le=MAX_TIMEOUT_MS,
        description="longest time to wait for a peer, in milliseconds",
    )
    algorithm: AlgorithmName = Field(
        default="gossip",
        description="training algorithm: gossip, lsgd, symmetric, push_sum, noloco, local, "
        "elastic or one of a plugin",
    )
    topology: TopologyName = Field(
        default="random",
        description="which peers a node fetches from: random, full, ring, grid, torus, "
        "exponential, one_peer_exponential, star, small_world, file or one of a plugin",
    )
    interpolation: InterpolationName = Field(
        default="constant",
        description="rule for the factor, how much of a peer's parameters a merge takes: constant, "
        "clock, loss, leader or a rule of a plugin",
    )
    divergence_threshold: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="below this loss the factor shrinks in proportion to the loss; 0 = off",
    )
    merge: Literal["interpolate", "delta"] = Field(
        default="interpolate",
        description="delta keeps the whole local step taken while the fetch was under way and is "
        "best for new runs; interpolate is the rule of dpwa in 2017",
    )
    buffers: Literal["average", "keep"] = Field(
        default="average",
        description="floating-point buffers such as batch-norm statistics: average merges them "
        "like the parameters, keep leaves every node its own",
    )
    transport: Literal["auto", "tcp", "shm"] = Field(
        default="auto",
        description="how snapshots come: auto maps the memory of peers on the same host and "
        "streams from others; tcp always streams; shm merges from peers on the same host only",
    )
    slots: int = Field(
        default=3, ge=2, le=16, description="snapshots of the model kept in memory at once"
    )
    codec: Codec = Field(
        default="none",
        description="how streamed parameters are made smaller: none, fp16, bf16, int8, topk or a "
        "codec of a plugin",
    )
    topk: TopKOptions = Field(
        default=TopKOptions(),
        description="options of the codec topk: keep (share of the values that a fetch brings) and "
        "resync_every (so many fetches from a whole snapshot to the next)",
    )
    links: tuple[LinkConfig, ...] = Field(
        default=(),
        description="what is special between two nodes, such as {between: [w1, w2], codec: int8}",
    )
    fraction: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="share of the parameters that each fetch brings, a different part every time",
    )
    guard: Literal["finite", "off"] = Field(
        default="finite",
        description="finite refuses snapshots with values that are not finite; off merges them",
    )
    robust: Literal["none", "clip"] = Field(
        default="none",
        description="clip limits how far a merge may move a node, by a radius that it learns, so "
        "that a peer that sends nonsense cannot ruin it",
    )
    repeat: Literal["skip", "merge"] | None = Field(
        default=None,
        description="whether a snapshot of a peer that was merged before is merged again while the "
        "peer has published no other; skip for gossip, and as the algorithm is made else",
    )
    consensus_control: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="more gossip within one step while the distance to a peer is above so many "
        "times the running norm of a step; 0 = off",
    )
    quarantine_s: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="for how many seconds a peer is left alone at first when merging it has made "
        "the loss jump several times; 0 = off",
    )
    loss_window: int = Field(
        default=50, ge=1, le=100_000, description="updates whose mean loss makes a node the leader"
    )
    leader_silence_s: float = Field(
        default=10.0,
        gt=0.0,
        allow_inf_nan=False,
        description="seconds after which a node that nobody hears of is no leader any more",
    )
    lr_spread: Literal["none", "linear", "power"] = Field(
        default="none",
        description="how lr_scale, the learning rate of each node, is spread around that of the "
        "run: none, linear (0.5 to 1.5 times) or power (0.5 to 2 times)",
    )
    collective_timeout_s: float = Field(
        default=30.0,
        gt=0.0,
        allow_inf_nan=False,
        description="longest time that a collective, such as all_reduce, waits for a node",
    )
    join: tuple[JoinAddress, ...] | None = Field(
        default=None,
        description="lets nodes come and go: addresses of nodes to ask, one living is enough, "
        "such as [tcp://10.0.0.1:7000] or, with keys, [w1@tcp://10.0.0.1:7000]; those of `nodes` "
        "are asked too; [] begins a cluster; null = the nodes are those of `nodes`",
    )
    join_timeout_s: float = Field(
        default=300.0,
        gt=0.0,
        allow_inf_nan=False,
        description="with join: how long a node waits at its start until one of the addresses "
        "answers; then it gives up, with exit code 3",
    )
    alone: bool = Field(
        default=False,
        description="with join: on begins alone if none of the addresses answers soon, and keeps "
        "asking; off waits for an answer",
    )
    state_dir: str = Field(
        default="",
        description="with join: folder where a node remembers members for its next start, relative "
        "to the folder of this file; empty = that of the checkpoints, if there is one",
    )
    listen: ListenEndpoint | None = Field(
        default=None,
        description="where a node listens that is not among `nodes`, such as tcp://*:0 (any "
        "address, any free port); null = any free port of the address from which `join` is reached",
    )
    advertise: AdvertisedEndpoint | None = Field(
        default=None,
        description="where others reach a node that is not among `nodes`, if it differs from "
        "`listen`, such as tcp://203.0.113.7:7001 behind a forwarded port; without keys it must be "
        "the address that the node sends from",
    )
    initial_state: Literal["peers", "own", "newest"] | None = Field(
        default=None,
        description="what a node starts from: peers (their state, if they have been training), own "
        "(its newest checkpoint, if there is one) or newest (whichever is further); null = peers "
        "with join, else newest, of peers that are well ahead only",
    )
    initial_state_timeout_s: float = Field(
        default=60.0,
        gt=0.0,
        allow_inf_nan=False,
        description="longest time that a node waits at its start for the state of its peers",
    )
    state: Literal["all", "trainable"] = Field(
        default="all",
        description="what joiners take over and checkpoints hold: all of the model, or only what "
        "is trainable (such as LoRA), on frozen parameters that all nodes have alike",
    )
    state_donors: int = Field(
        default=2, ge=1, le=16, description="from how many peers at once a node fetches its state"
    )
    state_serving: int = Field(
        default=2, ge=1, le=64, description="how many nodes at once may fetch the state of a node"
    )
    checkpoint: CheckpointOptions = Field(
        default=CheckpointOptions(),
        description="the state of each node on disk: dir (folder; empty = none), every_steps (so "
        "many updates from one to the next) and keep (how many are kept)",
    )
    run_log: str = Field(
        default="",
        description="folder where each node writes down what happens to it, relative to the folder "
        "of this file; empty = none",
    )
    metrics: MetricsOptions = Field(
        default=MetricsOptions(),
        description="serves /metrics to Prometheus: port (of the first of `nodes`, the others have "
        "the next ones; 0 = any free port; null = none) and host (where to listen)",
    )
    max_upload_mbps: float | None = Field(
        default=None,
        gt=0.0,
        allow_inf_nan=False,
        description="the most payload that a node sends to those that it serves, in megabits per "
        "second; null = no limit",
    )
    connections: int = Field(
        default=64,
        ge=4,
        le=10_000,
        description="connections to peers that a node has at once at most; of more peers, the one "
        "that was used least recently makes room",
    )
    limits: Limits = Field(
        default=Limits(),
        description="how much of a node others may use: sessions_per_peer (fetches at once), "
        "serving_share and serving_burst_ms (of a core, for requests), handshake_timeout_s",
    )
    security: Literal["none", "curve"] = Field(
        default="none",
        description="curve encrypts everything between nodes, and lets nobody in whose key is not "
        "known; none trusts whoever can connect",
    )
    keys: str = Field(
        default="keys",
        min_length=1,
        description="folder of the keys for `security: curve`, as `dpwa keys` makes it; relative "
        "to the folder of this file",
    )
    allow: Allow = Field(
        default={},
        validate_default=True,
        description="public keys of nodes by name, beside those of the folder `keys`",
    )
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = Field(
        default=None, description="seed of the random choices; null = different in every run"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning",
        description="least severe messages to log: debug, info, warning or error; where it is not "
        "set, what the program's own logging says",
    )
    plugins: tuple[ModuleName, ...] = Field(
        default=(),
        description="Python modules that register algorithms, topologies, interpolation rules or "
        "codecs of your own",
    )
    options: SkipJsonSchema[ChangedOptions] = Field(
        default=(), description="options of methods that differ from their defaults"
    )

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Config:
        nodes = [node.to_mapping() for node in self.nodes]
        links = [link.model_dump() for link in self.links]
        found = [*clashes(nodes, links), *combinations(vars(self), nodes, links)]
        if found:
            text = "; ".join(f"{joined_all(path)}: {message}" for path, message in found)
            raise PydanticCustomError(CLASH, "{text}", {"text": text})
        return self

    def node(self, name: str) -> NodeConfig:
        """Return the node of this name.

        Raises:
            UnknownNameError: no node has this name; the message lists those that exist.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        known = [node.name for node in self.nodes]
        hint = suggestion(name, known)
        raise UnknownNameError(f"no node is named {name!r}{hint} (known: {listing(known)})")

    @property
    def is_open(self) -> bool:
        """Whether nodes come and go, so that `nodes` is only where to look for them."""
        return self.join is not None

    def begins(self, name: str) -> bool:
        """Tell whether a node may begin a cluster when nobody answers; else it waits.

        With `join: []` those do that are among `nodes`, or all if none is.
        """
        is_told_to = not self.join and (not self.nodes or any(n.name == name for n in self.nodes))
        return self.alone or is_told_to

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """Where a node asks to join, each address once."""
        listed = [Seed(node.connect_endpoint, node.name) for node in self.nodes]
        told = [seed_of(address) for address in self.join or ()]
        found = {seed.endpoint: seed for seed in [*told, *listed]}
        return tuple(found.values()) if self.is_open else ()

    def require(self, name: str) -> None:
        """Check that a node of this name may take part.

        Raises:
            UnknownNameError: it is not listed, and nobody else may join; or it is no name.
        """
        if not self.is_open:
            self.node(name)
        elif not is_label(name):
            expected = "1 to 64 letters, digits, dots, underscores or hyphens"
            raise UnknownNameError(f"a node's name has {expected} (got {name!r})")

    def group_of(self, name: str) -> str:
        """Return the group of a node; empty for none."""
        return next((node.group or "" for node in self.nodes if node.name == name), "")

    def peers_of(self, name: str) -> tuple[NodeConfig, ...]:
        """Return all nodes but the one of this name; none when nodes come and go.

        Raises:
            UnknownNameError: no node has this name.
        """
        if self.is_open:
            return ()
        own = self.node(name)
        return tuple(node for node in self.nodes if node is not own)

    def codec_for(self, server: str, reader: str) -> str:
        """Return the codec of what node `reader` fetches from node `server`.

        That of the link between them, else that of the node `server`, else that of the run. Peers
        that joined at run time have no settings of their own.
        """
        for link in self.links:
            if {server, reader} == set(link.between):
                return link.codec
        own = next((node.codec for node in self.nodes if node.name == server), None)
        return own or self.codec

    def options_of(self, name: str) -> StrictModel:
        """Return the options of a method (a rule, an algorithm, ...), its defaults where unset.

        Raises:
            UnknownNameError: no such method is registered.
            UserError: it has options without defaults, and they are not set.
        """
        return options_of(name, dict(self.options))

    def to_mapping(self) -> JsonObject:
        """Return the modern form as plain values, defaults filled in; `load_config` takes it back.

        Of the methods' options it holds those of the selected ones and all that were changed.
        """
        mapping: JsonObject = self.model_dump(mode="json", exclude={"options"})
        mapping["nodes"] = [node.to_mapping() for node in self.nodes]
        used = methods_in_use(vars(self))
        for name in dict.fromkeys([self.interpolation, *used, *dict(self.options)]):
            mapping[name] = self.options_of(name).model_dump(mode="json")
        return mapping

    def to_yaml(self) -> str:
        """Return the modern form as YAML, defaults filled in.

        Loading it gives an equal object, as long as the plugins can still be imported.
        """
        # None: innermost collections on one line, so that a node is one line.
        return str(yaml.safe_dump(self.to_mapping(), **_YAML))
