"""The address at which a node listens, and the address to which other nodes connect."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dpwa.config import Config
from dpwa.config.endpoints import is_wildcard, split_tcp, tcp_endpoint
from dpwa.errors import AddressError
from dpwa.transport.addresses import (
    has_address,
    is_elsewhere,
    is_of_this_machine,
    local_address,
    resolved,
)

log = logging.getLogger("dpwa.node")

ANY_PORT = 0
ELSEWHERE = "192.0.2.1"  # no machine has it (RFC 5737), so its route is the route to the internet


@dataclass(frozen=True)
class OwnAddress:
    """The addresses of a node."""

    listen: str  # endpoint to bind; its port may be 0
    host: str  # address for other nodes, if this node listens on all addresses
    advertised: str | None  # endpoint that others connect to; `None`: the bound endpoint

    @classmethod
    def from_config(cls, config: Config, name: str) -> OwnAddress:
        """Return the addresses of a node. A node that is not listed uses any free port.

        Raises `UnknownNameError` if the node is not listed and nodes cannot join, and
        `AddressError` for a host name without an address.
        """
        listed = next((node for node in config.nodes if node.name == name), None)
        if listed is not None or not config.is_open:
            node = config.node(name)
            return cls(resolved(node.listen_endpoint), node.host, node.connect_endpoint)
        hosts = [address[0] for seed in config.seeds if (address := split_tcp(seed.endpoint))]
        if config.listen is None:
            host = local_address(_nearest(hosts) if hosts else "localhost")
            return cls(resolved(tcp_endpoint(host, ANY_PORT)), host, config.advertise)
        must_be_found = config.advertise is None and _is_on_all_addresses(config.listen)
        host = _reachable_host(config.listen, hosts) if must_be_found else ""
        return cls(resolved(config.listen), host, config.advertise)

    def endpoint(self, bound: str) -> str:
        """Return the endpoint to which others connect, after the socket was bound."""
        if self.advertised is not None:
            return self.advertised
        if not _is_on_all_addresses(bound):
            return bound
        return tcp_endpoint(self.host, int(bound.rpartition(":")[2]))


def _is_on_all_addresses(endpoint: str) -> bool:
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return endpoint.startswith("tcp://") and is_wildcard(host)


def _nearest(hosts: list[str]) -> str:
    """Return the first host whose name resolves to an address, or `ELSEWHERE` if none does."""
    return next((host for host in hosts if has_address(host)), ELSEWHERE)


def _reachable_host(listen: str, hosts: list[str]) -> str:
    """Return an address of this machine for other nodes. `AddressError` if it has loopback only."""
    for toward in (*hosts, ELSEWHERE):
        host = local_address(toward)
        if not is_of_this_machine(tcp_endpoint(host, 1)):
            return host
    if not hosts:
        raise AddressError(
            f"this node listens on {listen}, but knows no address that other nodes can reach. Set "
            "`advertise` or `listen` to an address of this machine in the network [DPWA-E053]"
        )
    return host


def warn_if_open(config: Config, name: str, endpoint: str) -> None:
    """Warn, once for a node, that every process that can reach the node has full access."""
    if config.security == "none" and not is_of_this_machine(endpoint):
        log.warning(
            "%s: any process that can connect to %s can read and change the training. Set "
            "`security: curve`, unless you trust the whole network [DPWA-W024]",
            name,
            endpoint,
        )


def warn_if_hidden(config: Config, name: str, endpoint: str) -> None:
    """Warn if this node listens on loopback by default, but other nodes are on other machines."""
    node = next((node for node in config.nodes if node.name == name), None)
    if node is None or node.endpoint or node.bind or not is_of_this_machine(endpoint):
        return
    others = (peer.host for peer in config.peers_of(name) if not peer.endpoint)
    far = next((host for host in others if host != node.host and is_elsewhere(host)), None)
    if far is not None:
        log.warning(
            "%s: this node listens on %s, so nodes on other machines, such as %s, cannot "
            "connect. The reason is that %s is a name of this machine itself (see /etc/hosts). Set "
            '`bind: "*"` for this node '
            "[DPWA-W076]",
            name,
            endpoint,
            far,
            node.host,
        )
