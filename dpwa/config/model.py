"""The settings of a configuration, with their types, limits and defaults.

The JSON Schema, `dpwa config init` and docs/settings.md have the same descriptions as the fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from dpwa.algorithms import algorithm_names
from dpwa.config.clashes import clashes
from dpwa.config.endpoints import (
    MAX_IPC_PATH_BYTES,
    MAX_PORT,
    Seed,
    is_bind_address,
    is_endpoint,
    is_join_address,
    is_label,
    is_listen_endpoint,
    is_wildcard,
    seed_of,
    split_tcp,
    tcp_endpoint,
)
from dpwa.config.methods import (
    ChangedOptions,
    default_options,
    method,
    method_names,
    methods_in_use,
)
from dpwa.config.problems import IN_PLACE_OF_TOPK, joined, listing, suggestion
from dpwa.config.public_keys import AllowedKeys, key_bytes
from dpwa.data.codecs import codec_names
from dpwa.errors import UnknownNameError, UserError, without_codes
from dpwa.policy.interpolation import interpolation_names
from dpwa.policy.topology import topology_names
from dpwa.types import Fraction, JsonObject, StrictModel, Unlike, refusal

MAX_TIMEOUT_MS = 3_600_000
MAX_SEED = 2**63 - 1

# Types of errors that `load_config` handles in a special way.
CLASH = "dpwa_clash"
UNKNOWN_NAME = "dpwa_unknown_name"

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_YAML: Any = {"sort_keys": False, "default_flow_style": None, "width": 1000, "allow_unicode": True}


def is_module_name(value: str) -> bool:
    return _MODULE.fullmatch(value) is not None


def _checked(is_right: Callable[[str], bool], expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if not is_right(value):
            raise refusal(expected)
        return value

    return AfterValidator(check)


def _one_of(names: Callable[[], tuple[str, ...]]) -> AfterValidator:
    def check(value: str) -> str:
        known = names()
        if value not in known:
            raise refusal(f"one of {', '.join(known)}", known, kind=UNKNOWN_NAME)
        return value

    return AfterValidator(check)


def _check_codec(value: str) -> str:
    if value == "topk" and value not in codec_names():
        raise refusal(IN_PLACE_OF_TOPK, kind=UNKNOWN_NAME)
    return value


def _check_distinct(value: dict[str, str]) -> AllowedKeys:
    if len(set(value.values())) < len(value):
        raise refusal("a different key for every name")
    return AllowedKeys(value)


_LABEL = "1 to 64 letters, digits, dots, underscores or hyphens"
_HOST = "a host name or IP address without scheme, port or brackets"
_REACHABLE = "an address that peers can reach (to listen on all addresses, set bind)"
_ENDPOINT = f"ipc:// and an absolute path of at most {MAX_IPC_PATH_BYTES} bytes, or tcp://host:port"
_LISTEN = "tcp://host:port, where the host may be * and the port 0, or ipc:///path"
_JOIN = "tcp://host:port, or NAME@tcp://host:port"
_PLUGIN = "the name of a Python module, such as my_rules or package.rules"
_KEY = "a public key of 40 characters, as `dpwa keys new` prints it"

Label = Annotated[str, _checked(is_label, _LABEL)]
Bind = Annotated[str, _checked(is_bind_address, _HOST)]
Host = Annotated[Bind, _checked(lambda host: not is_wildcard(host), _REACHABLE)]
Codec = Annotated[str, AfterValidator(_check_codec), _one_of(codec_names)]
PublicKey = Annotated[str, _checked(lambda text: key_bytes(text) is not None, _KEY)]
# The schema has no null, so that a message about a wrong port mentions numbers only.
Port = Annotated[
    Annotated[int, Field(ge=1, le=MAX_PORT)] | None,
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_PORT}),
]


class NodeConfig(StrictModel):
    """One node: its name, and the address by which its peers reach it.

    The address is `host` and `port`, or `endpoint`. An endpoint `tcp://host:port` is turned into
    host and port. So a node with `endpoint` has an `ipc` endpoint, and every other node has a port.
    """

    name: Annotated[Label, Unlike.WARNS] = Field(
        description="unique name of the node, with 1 to 64 of the characters A-Z a-z 0-9 . _ -"
    )
    host: Host = Field(
        default="localhost", description="host name or IP address that the peers connect to"
    )
    endpoint: Annotated[str, _checked(is_endpoint, _ENDPOINT)] | None = Field(
        default=None,
        description="address ipc:///path/to/socket, which replaces host and port for nodes on "
        "one machine",
    )
    port: Port = Field(
        default=None,
        validate_default=True,
        description="TCP port. No two nodes may have the same host and port",
    )
    group: Annotated[Label | None, Unlike.WARNS] = Field(
        default=None, description="name of the node's group. By default, the node has no group"
    )
    bind: Bind | None = Field(
        default=None,
        description="address to listen on, if this is not the host. * means all addresses, and "
        "0.0.0.0 all IPv4 addresses",
    )
    codec: Codec | None = Field(
        default=None,
        description="codec for fetches from this node. The default is the codec of the run",
    )

    @model_validator(mode="before")
    @classmethod
    def _split_tcp_endpoint(cls, values: object) -> object:
        if not isinstance(values, dict) or {"host", "port"} & set(values):
            return values
        endpoint = values.get("endpoint")
        address = split_tcp(endpoint) if isinstance(endpoint, str) else None
        if address is None:
            return values
        others = {key: value for key, value in values.items() if key != "endpoint"}
        return {**others, "host": address[0], "port": address[1]}

    @field_validator("endpoint")
    @classmethod
    def _endpoint_stands_alone(cls, value: str | None, known: ValidationInfo) -> str | None:
        if value is not None and known.data.get("host", "localhost") != "localhost":
            raise refusal("either host and port or an endpoint")
        return value

    @field_validator("port")
    @classmethod
    def _port_or_endpoint(cls, value: int | None, known: ValidationInfo) -> int | None:
        if "endpoint" in known.data and (value is None) == (known.data["endpoint"] is None):
            raise refusal(
                f"a whole number from 1 to {MAX_PORT}, or an endpoint"
                if value is None
                else "either a port or an endpoint"
            )
        return value

    @field_validator("bind")
    @classmethod
    def _bind_needs_a_port(cls, value: str | None, known: ValidationInfo) -> str | None:
        if value is not None and known.data.get("endpoint"):
            raise refusal("either bind or an endpoint")
        return value

    @property
    def connect_endpoint(self) -> str:
        """The ZeroMQ endpoint that peers connect to."""
        return self.endpoint or tcp_endpoint(self.host, self.port or 0)

    @property
    def listen_endpoint(self) -> str:
        """The ZeroMQ endpoint to listen on. Its host may be a name, which is not resolved."""
        return self.endpoint or tcp_endpoint(self.bind or self.host, self.port or 0)

    def to_mapping(self) -> JsonObject:
        """Return the entry of this node in a configuration, as plain values."""
        unused = {"host"} if self.endpoint else set()
        return self.model_dump(mode="json", exclude_none=True, exclude=unused)


class LinkConfig(StrictModel):
    """Settings for the link between two nodes, in both directions."""

    between: tuple[Label, ...] = Field(
        min_length=2, max_length=2, description="the names of the two nodes"
    )
    codec: Codec = Field(description="codec for fetches between the two nodes")


class CheckpointOptions(StrictModel):
    """The folder, interval and number of a node's checkpoints."""

    dir: str = Field(
        default="",
        description="folder of the checkpoints, relative to the folder of this file. Without a "
        "folder, there are no checkpoints",
    )
    every_steps: int = Field(
        default=1000, ge=1, description="number of updates between two checkpoints"
    )
    keep: int = Field(
        default=3, ge=1, le=1000, description="number of checkpoints to keep for each node"
    )


class MetricsOptions(StrictModel):
    """The address at which a node serves its metrics to Prometheus."""

    port: int | None = Field(
        default=None,
        ge=0,
        le=MAX_PORT,
        description="port of the first node in `nodes`. The other nodes use the next ports. 0 = "
        "any free port, null = no metrics",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="name or address to listen on")


class Limits(StrictModel):
    """Limits for the resources of a node that its peers may use."""

    sessions_per_peer: int = Field(
        default=2,
        ge=1,
        le=64,
        description="maximum number of fetches that the node serves to one peer at once",
    )
    serving_share: float = Field(
        default=0.1,
        gt=0.0,
        le=1.0,
        description="share of one core that the requests of peers may use while the node "
        "trains. Further requests wait",
    )
    serving_burst_ms: float = Field(
        default=50.0,
        ge=0.0,
        le=60_000.0,
        description="CPU time in ms that requests may use at once, before `serving_share` limits "
        "the requests",
    )
    handshake_timeout_s: float = Field(
        default=5.0, ge=0.1, le=600.0, description="maximum duration of a handshake, in seconds"
    )


class Config(StrictModel):
    """All settings of a training run. Every node of the run has the same configuration."""

    nodes: Annotated[tuple[NodeConfig, ...], Unlike.WARNS] = Field(
        json_schema_extra={"minItems": 1},  # unless `join` is set, see `clashes`
        description="the nodes of the run. Each entry has the name, host and port of a node. "
        "Optional keys are group (the name of the node's group), bind (the address to listen on, "
        "if this is not the host) and codec (for fetches from this node). The key endpoint, with "
        "ipc:///path, replaces host and port",
    )
    fetch_probability: Fraction = Field(
        default=1.0, description="probability from 0 to 1 that `update_send` fetches from a peer"
    )
    timeout_ms: int = Field(
        default=2500,
        ge=1,
        le=MAX_TIMEOUT_MS,
        description="maximum time to wait for a peer, in milliseconds",
    )
    algorithm: Annotated[str, _one_of(algorithm_names), Unlike.REFUSES] = Field(
        default="gossip",
        description="training algorithm: gossip, together (better if all nodes are equally "
        "fast), lsgd, symmetric, push_sum, outer, noloco, local, elastic, or an "
        "algorithm from a plugin",
    )
    topology: Annotated[str, _one_of(topology_names), Unlike.WARNS] = Field(
        default="random",
        description="the peers that a node can fetch from: random, full, ring, grid, torus, "
        "exponential, one_peer_exponential, star, small_world, file, or a "
        "topology from a plugin",
    )
    interpolation: Annotated[str, _one_of(interpolation_names), Unlike.WARNS] = Field(
        default="constant",
        description="rule that computes the factor, which is the weight of the peer's parameters "
        "in a merge: constant, clock, loss, leader, or a rule from a plugin",
    )
    divergence_threshold: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="loss below which the merge factor shrinks in proportion to the loss. 0 = off",
    )
    merge: Annotated[Literal["interpolate", "delta"], Unlike.WARNS] = Field(
        default="delta",
        description="rule of a merge. delta keeps the training step that the node took during the "
        "fetch. interpolate shrinks this step, as dpwa did in 2017. Only configurations in the "
        "list form of 2017 have interpolate as their default",
    )
    buffers: Annotated[Literal["average", "keep"], Unlike.WARNS] = Field(
        default="average",
        description="floating-point buffers such as batch-norm statistics. With average, nodes "
        "merge these buffers like the parameters. With keep, each node keeps its own buffers",
    )
    transport: Literal["auto", "tcp", "shm"] = Field(
        default="auto",
        description="way to fetch snapshots. auto reads the shared memory of peers on the same "
        "host, and streams snapshots over TCP from other hosts. tcp streams from all peers. shm "
        "reads only shared memory, so nodes fetch only from peers on the same host",
    )
    slots: int = Field(
        default=3,
        ge=2,
        le=16,
        description="maximum number of snapshots of its model that a node keeps in memory",
    )
    codec: Annotated[Codec, Unlike.WARNS_IF_AVERAGED] = Field(
        default="none",
        description="codec that compresses streamed parameters: none, fp16, bf16, int8 or a codec "
        "from a plugin. With fp16 or bf16, `algorithm: together` compresses gradients, too",
    )
    links: tuple[LinkConfig, ...] = Field(
        default=(),
        description="settings for the link between two nodes, such as {between: [w1, w2], "
        "codec: int8}",
    )
    fraction: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="share of the parameters in each fetch. Each fetch gets a different part",
    )
    guard: Literal["finite", "off"] = Field(
        default="finite",
        description="with finite, nodes refuse snapshots with NaN or infinite values. With off, "
        "nodes merge such snapshots",
    )
    robust: Literal["none", "clip"] = Field(
        default="none",
        description="with clip, a merge can change a node's parameters only by a limited "
        "distance. The limit follows from the recent distances to peers, so that a peer with wrong "
        "values does little harm. With none, there is no limit",
    )
    repeat: Annotated[Literal["skip", "merge"] | None, Unlike.WARNS] = Field(
        default=None,
        description="skip: a node merges each snapshot of a peer at most once. merge: a node "
        "may merge the same snapshot again. The default depends on the algorithm, and is skip for "
        "gossip",
    )
    quarantine_s: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="seconds for which a node merges nothing from a peer, if the node's loss rose "
        "sharply after several merges with this peer. This is the peer's first quarantine, and "
        "further quarantines are longer. 0 = off",
    )
    loss_window: Annotated[int, Unlike.WARNS] = Field(
        default=50,
        ge=1,
        le=100_000,
        description="number of recent updates whose mean loss determines the leader",
    )
    leader_silence_s: Annotated[float, Unlike.WARNS] = Field(
        default=10.0,
        gt=0.0,
        allow_inf_nan=False,
        description="seconds for which a node remains the leader without a report of its loss. "
        "After that, this node cannot be the leader until its next report",
    )
    lr_spread: Annotated[Literal["none", "linear", "power"], Unlike.WARNS] = Field(
        default="none",
        description="gives each node its own lr_scale, a factor for its learning rate: linear "
        "(0.5 to 1.5) or power (0.5 to 2). With none, all factors are 1",
    )
    statistics: Annotated[tuple[str, ...], Unlike.WARNS] = Field(
        default=(),
        description="names of frozen parameters that nodes average like buffers. In Keras, these "
        'are the statistics of batch norm: ["*/moving_mean", "*/moving_variance"]',
    )
    collective_timeout_s: float = Field(
        default=30.0,
        gt=0.0,
        allow_inf_nan=False,
        description="maximum time in seconds that a collective, such as all_reduce, waits for "
        "a node",
    )
    join: tuple[Annotated[str, _checked(is_join_address, _JOIN)], ...] | None = Field(
        default=None,
        description="lets nodes join and leave during the run. Give the addresses of some nodes, "
        "such as [tcp://10.0.0.1:7000] or, with keys, [w1@tcp://10.0.0.1:7000]. A new node asks "
        "these addresses and the addresses in `nodes`. One of them must belong to a running node. "
        "[] starts a cluster. null = only the nodes in `nodes` take part",
    )
    join_timeout_s: float = Field(
        default=300.0,
        gt=0.0,
        allow_inf_nan=False,
        description="seconds that a starting node waits until one of the addresses in `join` "
        "answers. After that, the node gives up with exit code 3",
    )
    alone: bool = Field(
        default=False,
        description="with on, a node starts alone if no address in `join` answers soon, and "
        "continues to ask. With off, the node waits for an answer",
    )
    state_dir: str = Field(
        default="",
        description="with `join`, the folder in which a node stores the list of members for its "
        "next start. The path is relative to the folder of this file. The default is the folder "
        "of the checkpoints, if there are checkpoints",
    )
    listen: Annotated[str, _checked(is_listen_endpoint, _LISTEN)] | None = Field(
        default=None,
        description="address on which a node that is not in `nodes` listens, such as tcp://*:0 "
        "(all addresses, any free port). null = any free port of the address from which "
        "the node reaches `join`",
    )
    advertise: Annotated[str, _checked(is_endpoint, "tcp://host:port or ipc:///path")] | None = (
        Field(
            default=None,
            description="address by which peers reach a node that is not in `nodes`, if it "
            "differs from `listen`, such as tcp://203.0.113.7:7001 behind a "
            "forwarded port. Without keys, the node must also send from this "
            "address",
        )
    )
    initial_state: Literal["peers", "own", "newest"] | None = Field(
        default=None,
        description="state that a node starts from. peers: the state of peers that have "
        "trained. own: the node's newest checkpoint. newest: the peers' state or the checkpoint, "
        "whichever has more training. With `join`, null means peers. Without `join`, null means "
        "newest, but only peers count that answer at once and have a clock above 10. With "
        "`robust: clip` and without `join`, null means own",
    )
    initial_state_timeout_s: float = Field(
        default=60.0,
        gt=0.0,
        allow_inf_nan=False,
        description="maximum time in seconds that a starting node waits for the state of its peers",
    )
    state: Literal["all", "trainable"] = Field(
        default="all",
        description="part of the model in checkpoints, and in the state for late nodes. all is the "
        "whole model. trainable is only the trainable parameters, such as those of LoRA. With "
        "trainable, the frozen parameters must be equal on all nodes",
    )
    state_donors: int = Field(
        default=2,
        ge=1,
        le=16,
        description="number of peers from which a node fetches the state in parallel, if these "
        "peers have equal states, as with `together`. Otherwise, a node fetches the whole state "
        "from one peer",
    )
    state_serving: int = Field(
        default=2,
        ge=1,
        le=64,
        description="maximum number of nodes that a node sends its state to at the same time",
    )
    checkpoint: CheckpointOptions = Field(
        default=CheckpointOptions(),
        description="checkpoints of each node. dir is their folder, and without dir there are no "
        "checkpoints. every_steps is the number of updates between two checkpoints. keep is the "
        "number of checkpoints to keep",
    )
    run_log: str = Field(
        default="",
        description="folder in which each node writes its run log, relative to the folder of "
        "this file. Without a folder, there is no run log",
    )
    metrics: MetricsOptions = Field(
        default=MetricsOptions(),
        description="address at which each node serves /metrics to Prometheus. port is the port "
        "of the first node in `nodes`, and the other nodes use the next ports. port: 0 means any "
        "free port, and port: null means no metrics. host is the address to listen on",
    )
    max_upload_mbps: float | None = Field(
        default=None,
        gt=0.0,
        allow_inf_nan=False,
        description="maximum payload that a node sends to peers, in megabits per second. null "
        "= no limit",
    )
    needs_finish: bool = Field(
        default=True,
        description="with on, a node that ends without a call of `finish` has failed, even with "
        "exit code 0. off is for scripts that never call `finish`",
    )
    if_refused: Literal["warn", "raise"] = Field(
        default="warn",
        description="reaction of a node that every peer refuses, for example because models, "
        "algorithms or settings differ. With `warn`, the node trains alone, and warns every "
        "minute. With "
        "`raise`, `update_send` raises a `MismatchError` after a few seconds",
    )
    connections: int = Field(
        default=64,
        ge=4,
        le=10_000,
        description="maximum number of connections of a node. With more peers, the node closes "
        "the least recently used connection",
    )
    limits: Limits = Field(
        default=Limits(),
        description="resources of a node that its peers may use: sessions_per_peer (fetches at "
        "once), serving_share and serving_burst_ms (CPU time for requests), handshake_timeout_s",
    )
    security: Literal["none", "curve"] = Field(
        default="none",
        description="curve encrypts all traffic between nodes, and admits only nodes with a "
        "known key. none trusts any node that can connect",
    )
    keys: str = Field(
        default="keys",
        min_length=1,
        description="folder of the keys for `security: curve`, which `dpwa keys` creates, "
        "relative to the folder of this file",
    )
    allow: Annotated[dict[Label, PublicKey], AfterValidator(_check_distinct)] = Field(
        default={},
        validate_default=True,
        description="public keys of nodes by name, in addition to the keys in the folder `keys`",
    )
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = Field(
        default=None,
        description="seed of the node's random choices. null = a different seed in each run",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning",
        description="lowest level of messages to log: debug, info, warning or error. If this "
        "is not set, the logging of your program decides",
    )
    plugins: tuple[Annotated[str, _checked(is_module_name, _PLUGIN)], ...] = Field(
        default=(),
        description="Python modules that register your own algorithms, topologies, interpolation "
        "rules or codecs",
    )
    options: SkipJsonSchema[ChangedOptions] = Field(
        default=(),
        description="options of methods (algorithms, topologies, rules and `robust: clip`) that "
        "differ from their defaults. Methods that are not selected are included",
    )

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Config:
        found = list(clashes(vars(self)))
        if found:
            told = "; ".join(f"{joined(loc)}: {without_codes(text)}" for loc, text in found)
            raise PydanticCustomError(CLASH, "{text}", {"text": told})
        return self

    def node(self, name: str) -> NodeConfig:
        """Return the node with this name.

        Raises:
            UnknownNameError: no node has this name. The message lists the known names.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        known = [node.name for node in self.nodes]
        hint = suggestion(name, known)
        raise UnknownNameError(
            f"no node is named {name!r}{hint} (known: {listing(known)}) [DPWA-E014]"
        )

    @property
    def is_open(self) -> bool:
        """Whether nodes can join and leave. Then `nodes` only has addresses to ask."""
        return self.join is not None

    def begins(self, name: str) -> bool:
        """Return whether a node may start a new cluster if no seed answers. Other nodes wait.

        With `join: []`, the nodes in `nodes` may do so, or every node if `nodes` is empty.
        """
        is_told_to = not self.join and (not self.nodes or any(n.name == name for n in self.nodes))
        return self.alone or is_told_to

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """The addresses that a node asks when it joins, each address once."""
        listed = [Seed(node.connect_endpoint, node.name) for node in self.nodes]
        told = [seed_of(address) for address in self.join or ()]
        found = {seed.endpoint: seed for seed in [*told, *listed]}
        return tuple(found.values()) if self.is_open else ()

    def require(self, name: str) -> None:
        """Check that a node with this name may take part.

        Raises:
            UnknownNameError: without `join`, the name is not in `nodes`. With it, it is invalid.
        """
        if not self.is_open:
            self.node(name)
        elif not is_label(name):
            raise UnknownNameError(f"a node's name must have {_LABEL} (got {name!r}) [DPWA-E016]")

    def group_of(self, name: str) -> str:
        """Return the group of a node, or empty text if the node has no group."""
        return next((node.group or "" for node in self.nodes if node.name == name), "")

    def peers_of(self, name: str) -> tuple[NodeConfig, ...]:
        """Return all nodes except the node with this name, or no nodes if nodes can join.

        Raises:
            UnknownNameError: no node has this name.
        """
        if self.is_open:
            return ()
        own = self.node(name)
        return tuple(node for node in self.nodes if node is not own)

    def codecs_for(self, reader: str) -> Callable[[str], str]:
        """Return a function that maps a node's name to the codec for `reader`'s fetches from it.

        This is the codec of the link between the nodes, else of the node, else of the run. Peers
        that joined at run time use the codec of the run.
        """
        codecs = {node.name: node.codec for node in self.nodes if node.codec is not None}
        for link in self.links:
            if reader in link.between:
                codecs.update(dict.fromkeys(set(link.between) - {reader}, link.codec))
        return lambda server: codecs.get(server, self.codec)

    def options_of(self, name: str) -> StrictModel:
        """Return the options of a method (a rule, an algorithm, ...), including defaults.

        Raises:
            UnknownNameError: no such method is registered.
            UserError: the method has an option without a default, and it is not set.
        """
        found = method(name)
        if found is None:
            known = method_names()
            what = "interpolation rule, algorithm, topology or kind of robust merging"
            raise UnknownNameError(
                f"no {what} is named {name!r}{suggestion(name, known)} (known: {', '.join(known)})"
                " [DPWA-E015]"
            )
        options = dict(self.options).get(name) or default_options(found.options)
        if options is None:
            raise UserError(
                f"`{found.kind}: {name}` has an option without a default, but the configuration "
                f"does not set this option. Set the option under `{name}` [DPWA-E018]"
            )
        return options

    def to_mapping(self) -> JsonObject:
        """Return all settings with their defaults as plain values, which `load_config` accepts.

        The options of a method are left out if it is not selected and they are unchanged.
        """
        mapping: JsonObject = self.model_dump(mode="json", exclude={"options"})
        mapping["nodes"] = [node.to_mapping() for node in self.nodes]
        used = methods_in_use(vars(self))
        for name in dict.fromkeys([self.interpolation, *used, *dict(self.options)]):
            mapping[name] = self.options_of(name).model_dump(mode="json")
        return mapping

    def to_yaml(self) -> str:
        """Return all settings with their defaults as YAML.

        Loading this YAML gives an equal object, if the plugins can still be imported.
        """
        # `default_flow_style: None` puts innermost collections, such as a node, on one line.
        return str(yaml.safe_dump(self.to_mapping(), **_YAML))
