"""Host names and ports as ZeroMQ endpoints."""

from __future__ import annotations

import ipaddress
import socket

from dpwa.errors import AddressError


def connect_endpoint(host: str, port: int) -> str:
    """Return the endpoint to connect to: `tcp://host:port`, IPv6 addresses in brackets."""
    return f"tcp://{_bracketed(host)}:{port}"


def listen_endpoint(host: str, port: int) -> str:
    """Return the endpoint to listen on; a host name becomes the address it stands for.

    Raises:
        AddressError: the name has no address.
    """
    if host == "*":
        return f"tcp://*:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AddressError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    # IPv4 first: it is what peers try for a name such as localhost.
    _, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return f"tcp://{_bracketed(str(address[0]))}:{port}"


def is_ipv6(endpoint: str) -> bool:
    """Tell whether an endpoint needs an IPv6 socket."""
    return "[" in endpoint


def _bracketed(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host
