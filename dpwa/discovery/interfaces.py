"""Find the address at which peers reach this machine, by environment variables or by a route.

Clusters have several networks. The variables that choose an interface are those of Gloo and NCCL,
because users have set them already.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from dpwa.errors import UserError
from dpwa.transport.addresses import local_address

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
OUTSIDE = ("192.0.2.1", "2001:db8::1")  # addresses that no machine has (RFC 5737, RFC 3849)
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux, see netdevice(7)
_REQUEST = struct.Struct("256s")


@dataclass(frozen=True)
class OwnHost:
    """An address of this machine, and a text that says why it was chosen."""

    host: str
    reason: str

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback


def named_host(environ: Mapping[str, str]) -> OwnHost | None:
    for variable in VARIABLES:
        chosen = environ.get(variable, "").strip()
        if chosen:
            names = _matching(chosen, variable)
            for name in names:
                address = _address_of(name)
                if address is not None:
                    return OwnHost(address, f"of {name}, because {variable}={chosen}")
            raise UserError(
                f"{variable}={chosen}: expected an interface with an IPv4 address (found no IPv4 "
                f"address on {', '.join(names)}) [DPWA-E049]"
            )
    return None


def own_host(environ: Mapping[str, str], toward: str) -> OwnHost:
    """Return this machine's address on the user's chosen interface, or on the route to `toward`."""
    return named_host(environ) or _on_route(toward)


def reachable_host(environ: Mapping[str, str]) -> OwnHost | None:
    """Return a non-loopback address: on the user's chosen interface, a route, or any interface."""
    routes = (own_host(environ, toward) for toward in OUTSIDE)
    cards = (_address_of(name) for _, name in socket.if_nameindex() if _is_linux())
    hosts = (*routes, *(OwnHost(host, "of an interface") for host in cards if host))
    return next((host for host in hosts if not host.is_loopback), None)


def _on_route(toward: str) -> OwnHost:
    host, route = local_address(toward), f"on the route to {toward}"
    cards = [name for _, name in socket.if_nameindex()] if _is_linux() else []
    card = next((name for name in cards if _address_of(name) == host), None)
    return OwnHost(host, route if card is None else f"of {card}, {route}")


def _matching(chosen: str, variable: str) -> list[str]:
    """Return the interfaces that match a list of names.

    Gloo uses exact names. NCCL uses prefixes, exact names after `=`, and exclusions after `^`.
    """
    cards = [name for _, name in socket.if_nameindex()]
    is_exact = variable == VARIABLES[0] or chosen.startswith("=")
    is_not = variable != VARIABLES[0] and chosen.startswith("^")
    names = [name.strip() for name in chosen.lstrip("=^").split(",") if name.strip()]

    def is_named(card: str) -> bool:
        return any(card == name if is_exact else card.startswith(name) for name in names)

    found = [card for card in cards if is_named(card) != is_not]
    if is_not:
        found.sort(key=lambda card: card == "lo")  # loopback only if there is no other interface
    if not found:
        raise UserError(
            f"{variable}={chosen}: expected one of the interfaces {', '.join(cards)} [DPWA-E048]"
        )
    return found


def _address_of(card: str) -> str | None:
    if not _is_linux():
        raise UserError(
            f"{VARIABLES[0]} and {VARIABLES[1]} are supported on Linux only [DPWA-E050]"
        )
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _GET_ADDRESS, _REQUEST.pack(card.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _is_linux() -> bool:
    return sys.platform.startswith("linux")
