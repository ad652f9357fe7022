"""Where a node listens, and where it says that it can be reached."""

from __future__ import annotations

from dataclasses import dataclass

from dpwa.config import Config
from dpwa.config.endpoints import split_tcp, tcp_endpoint
from dpwa.transport.addresses import local_address, resolved

ANY_PORT = 0
_WILDCARDS = ("0.0.0.0", "::", "*")  # noqa: S104 - to be recognised


@dataclass(frozen=True)
class OwnAddress:
    """The addresses of a node.

    Attributes:
        listen: endpoint to bind; its port may be 0.
        host: by which others reach it, where it listens on any address.
        advertised: endpoint that others connect to; `None`: that on which it listens.
    """

    listen: str
    host: str
    advertised: str | None

    def endpoint(self, bound: str) -> str:
        """Return what others connect to, now that the socket is bound to an endpoint."""
        if self.advertised is not None:
            return self.advertised
        host, _, port = bound.removeprefix("tcp://").rpartition(":")
        if not bound.startswith("tcp://") or host.strip("[]") not in _WILDCARDS:
            return bound
        return tcp_endpoint(self.host, int(port))


def own_address(config: Config, name: str) -> OwnAddress:
    """Return the addresses of a node; one that is not listed takes any free port.

    Raises:
        UnknownNameError: it is not listed, and the configuration lets nobody join.
        AddressError: a host name has no address.
    """
    listed = next((node for node in config.nodes if node.name == name), None)
    if listed is not None or not config.is_open:
        node = config.node(name)
        return OwnAddress(resolved(node.listen_endpoint), node.host, node.connect_endpoint)
    host = local_address(_first_host(config))
    listen = config.listen or tcp_endpoint(host, ANY_PORT)
    return OwnAddress(resolved(listen), host, config.advertise)


def _first_host(config: Config) -> str:
    """Return a host toward which to look; this machine if there is none."""
    found = (split_tcp(seed.endpoint) for seed in config.seeds)
    return next((address[0] for address in found if address), "localhost")
