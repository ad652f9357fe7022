"""Addresses in a cluster that grows by itself: where to ask, and where to be found.

With `join`, a node needs no entry among `nodes`: it takes any free port, and the others hear of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from dpwa.config.endpoints import ipc_path, split_tcp
from dpwa.config.nodes import Label, is_label
from dpwa.types import refusal

__all__ = [
    "AdvertisedEndpoint",
    "JoinAddress",
    "ListenEndpoint",
    "Seed",
    "is_join_address",
    "seed_of",
]


@dataclass(frozen=True)
class Seed:
    """Where a node asks to join.

    Attributes:
        endpoint: ZeroMQ endpoint.
        name: of the node that is there; empty if that is not known.
    """

    endpoint: str
    name: Label = ""


def seed_of(address: str) -> Seed:
    """Read `tcp://host:port`, `ipc:///path` or either with `NAME@` before it."""
    name, at, endpoint = address.partition("@")
    return Seed(endpoint, name) if at and "://" not in name else Seed(address)


def is_join_address(value: str) -> bool:
    """Tell whether `seed_of` can read it."""
    seed = seed_of(value)
    return _is_endpoint(seed.endpoint) and (not seed.name or is_label(seed.name))


def _check_join(value: str) -> str:
    if not is_join_address(value):
        raise refusal("tcp://host:port, or NAME@tcp://host:port")
    return value


def _check_listen(value: str) -> str:
    # Port 0 takes any that is free, and * is every address of this machine.
    probe = value.replace("tcp://*:", "tcp://any:")
    if probe.startswith("tcp://") and probe.endswith(":0"):
        probe = probe[:-1] + "1"
    if not _is_endpoint(probe):
        raise refusal("tcp://host:port, where the host may be * and the port 0, or ipc:///path")
    return value


def _check_advertised(value: str) -> str:
    if not _is_endpoint(value):
        raise refusal("tcp://host:port or ipc:///path")
    return value


def _is_endpoint(value: str) -> bool:
    return split_tcp(value) is not None or ipc_path(value) is not None


JoinAddress = Annotated[str, AfterValidator(_check_join)]
ListenEndpoint = Annotated[str, AfterValidator(_check_listen)]
AdvertisedEndpoint = Annotated[str, AfterValidator(_check_advertised)]
