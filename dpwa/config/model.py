"""The configuration as typed values: what may be set, its limits and its defaults.

The fields' descriptions are also those of the JSON Schema and of `dpwa config init`.
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

# Types of errors that loading treats in its own way.
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
        raise refusal("a key of its own for every name")
    return AllowedKeys(value)


_LABEL = "1 to 64 letters, digits, dots, underscores or hyphens"
_HOST = "a host name or IP address without scheme, port or brackets"
_REACHABLE = "an address that peers can reach; to listen on all of them, set bind"
_ENDPOINT = f"ipc:// and an absolute path of at most {MAX_IPC_PATH_BYTES} bytes, or tcp://host:port"
_LISTEN = "tcp://host:port, where the host may be * and the port 0, or ipc:///path"
_JOIN = "tcp://host:port, or NAME@tcp://host:port"
_PLUGIN = "the name of a Python module, such as my_rules or package.rules"
_KEY = "a public key, 40 characters as `dpwa keys new` prints them"

Label = Annotated[str, _checked(is_label, _LABEL)]
Bind = Annotated[str, _checked(is_bind_address, _HOST)]
Host = Annotated[Bind, _checked(lambda host: not is_wildcard(host), _REACHABLE)]
Codec = Annotated[str, AfterValidator(_check_codec), _one_of(codec_names)]
PublicKey = Annotated[str, _checked(lambda text: key_bytes(text) is not None, _KEY)]
# The schema has no null, so that messages speak of numbers only: one who writes a port wants one.
Port = Annotated[
    Annotated[int, Field(ge=1, le=MAX_PORT)] | None,
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_PORT}),
]


class NodeConfig(StrictModel):
    """One node: its name and where its peers reach it, by `port` or by `endpoint`.

    An endpoint `tcp://host:port` is turned into host and port, so a node with `endpoint` is always
    one with an `ipc` endpoint, and one without it always has a port.
    """

    name: Annotated[Label, Unlike.WARNS] = Field(
        description="unique name of the node, 1 to 64 of A-Z a-z 0-9 . _ -"
    )
    host: Host = Field(
        default="localhost", description="host name or IP address that the peers connect to"
    )
    endpoint: Annotated[str, _checked(is_endpoint, _ENDPOINT)] | None = Field(
        default=None,
        description="replaces host and port: ipc:///path/to/socket, for nodes on one machine",
    )
    port: Port = Field(
        default=None,
        validate_default=True,
        description="TCP port; no two nodes have the same host and port",
    )
    group: Annotated[Label | None, Unlike.WARNS] = Field(
        default=None, description="name of the node's group; no group if left out"
    )
    bind: Bind | None = Field(
        default=None,
        description="address to listen on, if it is not the host; * is all addresses, 0.0.0.0 "
        "all IPv4 addresses",
    )
    codec: Codec | None = Field(
        default=None,
        description="codec for fetches from this node; the codec of the run if left out",
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
            raise refusal("no bind beside an endpoint")
        return value

    @property
    def connect_endpoint(self) -> str:
        """The ZeroMQ endpoint that peers connect to."""
        return self.endpoint or tcp_endpoint(self.host, self.port or 0)

    @property
    def listen_endpoint(self) -> str:
        """The ZeroMQ endpoint to listen on; its host may be a name, which is not looked up."""
        return self.endpoint or tcp_endpoint(self.bind or self.host, self.port or 0)

    def to_mapping(self) -> JsonObject:
        """Return what must be written to get this node, as plain values."""
        unused = {"host"} if self.endpoint else set()
        return self.model_dump(mode="json", exclude_none=True, exclude=unused)


class LinkConfig(StrictModel):
    """What is special between two nodes, in both directions."""

    between: tuple[Label, ...] = Field(
        min_length=2, max_length=2, description="the names of the two nodes"
    )
    codec: Codec = Field(description="codec for fetches between the two nodes")


class CheckpointOptions(StrictModel):
    """Where a node keeps its state on disk, and how often."""

    dir: str = Field(
        default="",
        description="folder of the checkpoints, relative to the folder of this file; empty = no "
        "checkpoints",
    )
    every_steps: int = Field(
        default=1000, ge=1, description="number of updates between two checkpoints"
    )
    keep: int = Field(
        default=3, ge=1, le=1000, description="number of checkpoints to keep for each node"
    )


class MetricsOptions(StrictModel):
    """Where a node serves its metrics to Prometheus."""

    port: int | None = Field(
        default=None,
        ge=0,
        le=MAX_PORT,
        description="port for the first of `nodes`; the others use the next ports; 0 = any "
        "free port; null = no metrics",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="name or address to listen on")


class Limits(StrictModel):
    """What others may use of a node."""

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
        "trains; further requests wait",
    )
    serving_burst_ms: float = Field(
        default=50.0,
        ge=0.0,
        le=60_000.0,
        description="CPU time in milliseconds that requests of peers may use at once",
    )
    handshake_timeout_s: float = Field(
        default=5.0, ge=0.1, le=600.0, description="maximum time of a handshake, in seconds"
    )


class Config(StrictModel):
    """All settings of a training run; the same for every node of it."""

    nodes: Annotated[tuple[NodeConfig, ...], Unlike.WARNS] = Field(
        json_schema_extra={"minItems": 1},  # unless there is `join`, see `clashes`
        description="the nodes of the run, with one entry each: name, host, port and, if "
        "needed, group (nodes of one group share a name), bind (address to listen "
        "on, if it is not the host) and codec (for fetches from this node). "
        "endpoint: ipc:///path replaces host and port",
    )
    fetch_probability: Fraction = Field(
        default=1.0, description="probability that an update_send fetches from a peer, 0 to 1"
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
        "fast), lsgd, symmetric, push_sum, noloco, local, elastic, or the "
        "algorithm of a plugin",
    )
    topology: Annotated[str, _one_of(topology_names), Unlike.WARNS] = Field(
        default="random",
        description="the peers that a node can fetch from: random, full, ring, grid, torus, "
        "exponential, one_peer_exponential, star, small_world, file, or the "
        "topology of a plugin",
    )
    interpolation: Annotated[str, _one_of(interpolation_names), Unlike.WARNS] = Field(
        default="constant",
        description="rule for the factor, the share of the peer's parameters in a merge: "
        "constant, clock, loss, leader, or the rule of a plugin",
    )
    divergence_threshold: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="below this loss, the factor shrinks in proportion to the loss; 0 = off",
    )
    merge: Annotated[Literal["interpolate", "delta"], Unlike.WARNS] = Field(
        default="delta",
        description="delta keeps the local step that the node took during the fetch. "
        "interpolate is the rule of dpwa in 2017. It is the default only in the "
        "list form of 2017",
    )
    buffers: Annotated[Literal["average", "keep"], Unlike.WARNS] = Field(
        default="average",
        description="floating-point buffers such as batch-norm statistics: average merges them "
        "like the parameters; with keep, each node keeps its own",
    )
    transport: Literal["auto", "tcp", "shm"] = Field(
        default="auto",
        description="how a node reads snapshots: auto reads from shared memory of peers on the "
        "same host, and streams from others. tcp always streams. shm merges only "
        "peers on the same host",
    )
    slots: int = Field(
        default=3, ge=2, le=16, description="maximum number of snapshots of the model in memory"
    )
    codec: Annotated[Codec, Unlike.WARNS_IF_AVERAGED] = Field(
        default="none",
        description="the codec that compresses streamed parameters: none, fp16, bf16, int8 or the "
        "codec of a plugin. With fp16 or bf16, `algorithm: together` also sends gradients in it",
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
        description="share of the parameters in each fetch; each fetch brings a different part",
    )
    guard: Literal["finite", "off"] = Field(
        default="finite",
        description="finite refuses snapshots with NaN or infinite values; off merges them",
    )
    robust: Literal["none", "clip"] = Field(
        default="none",
        description="clip limits the distance that a merge can move a node. The node learns this "
        "distance, so that a peer with wrong values does little harm",
    )
    repeat: Annotated[Literal["skip", "merge"] | None, Unlike.WARNS] = Field(
        default=None,
        description="whether a node merges the same snapshot of a peer again. null = skip for "
        "gossip, and the choice of the algorithm otherwise",
    )
    quarantine_s: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="seconds of a peer's first quarantine, after the loss jumped at several "
        "merges of the peer; 0 = off",
    )
    loss_window: Annotated[int, Unlike.WARNS] = Field(
        default=50,
        ge=1,
        le=100_000,
        description="number of updates in the mean loss by which the leader is found",
    )
    leader_silence_s: Annotated[float, Unlike.WARNS] = Field(
        default=10.0,
        gt=0.0,
        allow_inf_nan=False,
        description="seconds without an update about a node after which it is not the leader "
        "any more",
    )
    lr_spread: Annotated[Literal["none", "linear", "power"], Unlike.WARNS] = Field(
        default="none",
        description="how lr_scale, the factor of each node's learning rate, varies between "
        "nodes: none, linear (0.5 to 1.5) or power (0.5 to 2)",
    )
    statistics: Annotated[tuple[str, ...], Unlike.WARNS] = Field(
        default=(),
        description="names of frozen parameters that are averaged like buffers. Keras keeps the "
        'statistics of batch norm in such parameters: ["*/moving_mean", "*/moving_variance"]',
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
        description="lets nodes join and leave. Give addresses of nodes to ask, of which one "
        "must run, such as [tcp://10.0.0.1:7000] or, with keys, "
        "[w1@tcp://10.0.0.1:7000]. The node also asks the addresses in `nodes`. [] "
        "starts a cluster; null = only the nodes in `nodes` take part",
    )
    join_timeout_s: float = Field(
        default=300.0,
        gt=0.0,
        allow_inf_nan=False,
        description="with join: seconds that a starting node waits until one of the addresses "
        "answers. Then it gives up, with exit code 3",
    )
    alone: bool = Field(
        default=False,
        description="with join: on lets a node start alone if no address answers soon, and the "
        "node keeps asking; off waits for an answer",
    )
    state_dir: str = Field(
        default="",
        description="with join: folder in which a node stores the members for its next start, "
        "relative to the folder of this file; empty = the folder of the "
        "checkpoints, if it is set",
    )
    listen: Annotated[str, _checked(is_listen_endpoint, _LISTEN)] | None = Field(
        default=None,
        description="address to listen on for a node that is not in `nodes`, such as tcp://*:0 "
        "(all addresses, any free port). null = any free port of the address that "
        "reaches `join`",
    )
    advertise: Annotated[str, _checked(is_endpoint, "tcp://host:port or ipc:///path")] | None = (
        Field(
            default=None,
            description="address by which others reach a node that is not in `nodes`, if it "
            "differs from `listen`, such as tcp://203.0.113.7:7001 behind a "
            "forwarded port. Without keys it must be the address that the node "
            "sends from",
        )
    )
    initial_state: Literal["peers", "own", "newest"] | None = Field(
        default=None,
        description="state that a node starts from: peers (the state of peers, if they have "
        "trained), own (its newest checkpoint, if there is one) or newest (the one "
        "with more training). null = peers with join, else newest, but only from "
        "peers that are far ahead",
    )
    initial_state_timeout_s: float = Field(
        default=60.0,
        gt=0.0,
        allow_inf_nan=False,
        description="maximum time in seconds that a starting node waits for the state of its peers",
    )
    state: Literal["all", "trainable"] = Field(
        default="all",
        description="the part of the model that late nodes receive and checkpoints hold: all, "
        "or only trainable parameters (such as LoRA), if all nodes have the same "
        "frozen parameters",
    )
    state_donors: int = Field(
        default=2,
        ge=1,
        le=16,
        description="number of peers from which a node fetches its state in parallel, if they "
        "have equal copies, as with `together`. Otherwise a node fetches from one "
        "peer",
    )
    state_serving: int = Field(
        default=2,
        ge=1,
        le=64,
        description="maximum number of nodes that fetch the state of a node at once",
    )
    checkpoint: CheckpointOptions = Field(
        default=CheckpointOptions(),
        description="the state of each node on disk: dir (folder; empty = no checkpoints), "
        "every_steps (updates between two checkpoints) and keep (number of "
        "checkpoints to keep)",
    )
    run_log: str = Field(
        default="",
        description="folder in which each node writes its run log, relative to the folder of "
        "this file; empty = no run log",
    )
    metrics: MetricsOptions = Field(
        default=MetricsOptions(),
        description="serves /metrics to Prometheus: port (for the first of `nodes`; the others "
        "use the next ports; 0 = any free port; null = no metrics) and host "
        "(address to listen on)",
    )
    max_upload_mbps: float | None = Field(
        default=None,
        gt=0.0,
        allow_inf_nan=False,
        description="maximum payload that a node sends to peers, in megabits per second; null "
        "= no limit",
    )
    needs_finish: bool = Field(
        default=True,
        description="whether a node that ends its training without `finish` counts as failed, "
        "whatever its exit code; off is for scripts that never call `finish`",
    )
    if_refused: Literal["warn", "raise"] = Field(
        default="warn",
        description="reaction of a node to the refusal of every peer, such as for another model, "
        "algorithm or settings. With `warn`, the node trains alone and warns every minute. With "
        "`raise`, `update_send` raises a `MismatchError` a few seconds later",
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
        description="how much of a node its peers may use: sessions_per_peer (fetches at once), "
        "serving_share and serving_burst_ms (CPU time for requests), handshake_timeout_s",
    )
    security: Literal["none", "curve"] = Field(
        default="none",
        description="curve encrypts all traffic between nodes, and admits only nodes with a "
        "known key; none trusts any node that can connect",
    )
    keys: str = Field(
        default="keys",
        min_length=1,
        description="folder of the keys for `security: curve`, which `dpwa keys` creates; "
        "relative to the folder of this file",
    )
    allow: Annotated[dict[Label, PublicKey], AfterValidator(_check_distinct)] = Field(
        default={},
        validate_default=True,
        description="public keys of nodes by name, in addition to the keys in the folder `keys`",
    )
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = Field(
        default=None,
        description="seed of the node's random choices; null = a different seed in each run",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning",
        description="lowest level of messages to log: debug, info, warning or error. If it is "
        "not set, the program's own logging decides",
    )
    plugins: tuple[Annotated[str, _checked(is_module_name, _PLUGIN)], ...] = Field(
        default=(),
        description="Python modules that register algorithms, topologies, interpolation rules or "
        "codecs of your own",
    )
    options: SkipJsonSchema[ChangedOptions] = Field(
        default=(), description="options of methods that differ from their defaults"
    )

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Config:
        found = list(clashes(vars(self)))
        if found:
            told = "; ".join(f"{joined(loc)}: {without_codes(text)}" for loc, text in found)
            raise PydanticCustomError(CLASH, "{text}", {"text": told})
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
        raise UnknownNameError(
            f"no node is named {name!r}{hint} (known: {listing(known)}) [DPWA-E014]"
        )

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
            raise UnknownNameError(f"a node's name has {_LABEL} (got {name!r}) [DPWA-E016]")

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

    def codecs_for(self, reader: str) -> Callable[[str], str]:
        """Return a function from the name of a node to the codec of what `reader` fetches from it.

        That is the codec of the link between them, else that of the node, else that of the run.
        Peers that joined at run time have no settings of their own.
        """
        codecs = {node.name: node.codec for node in self.nodes if node.codec is not None}
        for link in self.links:
            if reader in link.between:
                codecs.update(dict.fromkeys(set(link.between) - {reader}, link.codec))
        return lambda server: codecs.get(server, self.codec)

    def options_of(self, name: str) -> StrictModel:
        """Return the options of a method (a rule, an algorithm, ...), its defaults where unset.

        Raises:
            UnknownNameError: no such method is registered.
            UserError: it has options without defaults, and they are not set.
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
            raise UserError(f"{found.kind} {name!r} needs options, and none are set [DPWA-E018]")
        return options

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
