"""Where a node listens, and where it says that it can be reached."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from dpwa.config import Config
from dpwa.config.endpoints import is_wildcard, split_tcp, tcp_endpoint
from dpwa.errors import AddressError
from dpwa.transport.addresses import has_address, local_address, resolved

ANY_PORT = 0
ELSEWHERE = "192.0.2.1"  # of no machine (RFC 5737): the way there is the way out


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
        if not bound.startswith("tcp://") or not is_wildcard(host.strip("[]")):
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
    hosts = [address[0] for seed in config.seeds if (address := split_tcp(seed.endpoint))]
    if config.listen is None:
        host = local_address(_nearest(hosts) if hosts else "localhost")
        return OwnAddress(resolved(tcp_endpoint(host, ANY_PORT)), host, config.advertise)
    return OwnAddress(resolved(config.listen), _reachable_host(config, hosts), config.advertise)


def _nearest(hosts: list[str]) -> str:
    """Return the first of these hosts that has an address by now, or else one that is far away."""
    return next((host for host in hosts if has_address(host)), ELSEWHERE)


def _reachable_host(config: Config, hosts: list[str]) -> str:
    """Return the address that others may reach this node by, if it listens on all of them.

    Raises:
        AddressError: it would be that of the machine to itself, though others may be anywhere.
    """
    for toward in (*hosts, ELSEWHERE):
        host = local_address(toward)
        if not _is_loopback(host):
            return host
    listened = split_tcp(config.listen or "")
    is_anywhere = listened is None or is_wildcard(listened[0])
    if not hosts and is_anywhere and config.advertise is None:
        raise AddressError(
            f"listens on {config.listen}, and no address is known that others could use: set "
            "`advertise` too, or the address itself in `listen`"
        )
    return host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
