"""Nodes and the links between them, as typed values."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from dpwa.config.endpoints import (
    MAX_IPC_PATH_BYTES,
    MAX_PORT,
    ipc_path,
    is_ipv6_address,
    is_wildcard,
    split_tcp,
    tcp_endpoint,
)
from dpwa.config.problems import UNKNOWN_CODEC
from dpwa.data.codecs import codec_names
from dpwa.types import JsonObject, StrictModel, refusal

_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")


def is_label(value: str) -> bool:
    """Tell whether text could name a node."""
    return _LABEL.fullmatch(value) is not None


def _check_label(value: str) -> str:
    if not is_label(value):
        raise refusal("1 to 64 letters, digits, dots, underscores or hyphens")
    return value


def _check_host(value: str) -> str:
    if is_wildcard(value):
        raise refusal("an address that peers can reach; to listen on all of them, set bind")
    return _check_bind(value)


def _check_bind(value: str) -> str:
    if value == "*":
        return value
    if not _HOST.fullmatch(value) and not is_ipv6_address(value):
        raise refusal("a host name or IP address without scheme, port or brackets")
    return value


def _check_endpoint(value: str) -> str:
    if ipc_path(value) is None and split_tcp(value) is None:
        raise refusal(
            f"ipc:// and an absolute path of at most {MAX_IPC_PATH_BYTES} bytes, or tcp://host:port"
        )
    return value


def _check_codec(value: str) -> str:
    known = codec_names()
    if value not in known:
        raise refusal(f"one of {', '.join(known)}", known, kind=UNKNOWN_CODEC)
    return value


Label = Annotated[str, AfterValidator(_check_label)]
Host = Annotated[str, AfterValidator(_check_host)]
Codec = Annotated[str, AfterValidator(_check_codec)]
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

    name: Label = Field(description="what the node is called; unique, 1 to 64 of A-Z a-z 0-9 . _ -")
    host: Host = Field(
        default="localhost", description="host name or IP address that the peers connect to"
    )
    endpoint: Annotated[str, AfterValidator(_check_endpoint)] | None = Field(
        default=None,
        description="in place of host and port: ipc:///path/to/socket, for nodes of one machine",
    )
    port: Port = Field(
        default=None,
        validate_default=True,
        description="TCP port; host and port together are unique",
    )
    group: Label | None = Field(
        default=None, description="group of nodes that this one belongs to; none if left out"
    )
    bind: Annotated[str, AfterValidator(_check_bind)] | None = Field(
        default=None,
        description="address to listen on when it differs from host, such as 0.0.0.0 or *",
    )
    codec: Codec | None = Field(
        default=None,
        description="codec of what is fetched from this node; that of the run if left out",
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
    codec: Codec = Field(description="codec of what one of them fetches from the other")
