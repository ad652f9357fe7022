"""Names and addresses of nodes as text. Addresses are `tcp://host:port` or `ipc:///path`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

MAX_PORT = 65535
MAX_IPC_PATH_BYTES = 100  # sockaddr_un holds 108; the rest is for a lock file's suffix

_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_IPC = "ipc://"
_TCP = re.compile(
    r"tcp://(\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[A-Za-z0-9._-]{1,253})):(?P<port>[0-9]{1,5})"
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_label(value: str) -> bool:
    return _LABEL.fullmatch(value) is not None


def tcp_endpoint(host: str, port: int) -> str:
    """Return the endpoint of a host and port. An IPv6 address gets brackets."""
    return f"tcp://[{host}]:{port}" if is_ipv6_address(host) else f"tcp://{host}:{port}"


def split_tcp(endpoint: str) -> tuple[str, int] | None:
    """Return host (IPv6 without brackets) and port of a TCP endpoint, or `None` for other text."""
    found = _TCP.fullmatch(endpoint)
    if found is None or not 1 <= int(found["port"]) <= MAX_PORT:
        return None
    if found["ipv6"] and not is_ipv6_address(found["ipv6"]):
        return None
    return found["ipv6"] or found["host"], int(found["port"])


def ipc_path(endpoint: str) -> str | None:
    """Return the absolute path of a usable `ipc` endpoint, or `None` for any other text.

    The path of a usable endpoint names a file, and has at most `MAX_IPC_PATH_BYTES` bytes.
    """
    path = endpoint.removeprefix(_IPC)
    usable = path.startswith("/") and not path.endswith("/") and path.isprintable()
    if not endpoint.startswith(_IPC) or not usable:
        return None
    return path if len(path.encode()) <= MAX_IPC_PATH_BYTES else None


def is_endpoint(value: str) -> bool:
    return split_tcp(value) is not None or ipc_path(value) is not None


def is_listen_endpoint(value: str) -> bool:
    """Return whether a node can listen at `value`. Port 0 is any free port, `*` all addresses."""
    probe = value.replace("tcp://*:", "tcp://any:")
    if probe.startswith("tcp://") and probe.endswith(":0"):
        probe = probe[:-1] + "1"
    return is_endpoint(probe)


@lru_cache(maxsize=4096)  # each of N local nodes checks the addresses of all N nodes
def is_ipv6_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    try:
        return host == "*" or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_bind_address(host: str) -> bool:
    """Return whether `host` is a host name, IP address or `*`, without scheme, port or brackets."""
    return host == "*" or _HOST.fullmatch(host) is not None or is_ipv6_address(host)


def same_host_key(host: str) -> str:
    """Return the same text for all spellings of one host. Loopback addresses are one host."""
    try:
        host = str(ipaddress.ip_address(host))
    except ValueError:
        host = host.casefold()
    return "localhost" if host in _LOOPBACK else host


@dataclass(frozen=True)
class Seed:
    """The address, and the name if known, of a node that joining nodes ask to admit them."""

    endpoint: str
    name: str = ""


def seed_of(address: str) -> Seed:
    """Return the seed for `tcp://host:port` or `ipc:///path`, with or without `NAME@` before it."""
    name, at, endpoint = address.partition("@")
    return Seed(endpoint, name) if at and "://" not in name else Seed(address)


def is_join_address(value: str) -> bool:
    seed = seed_of(value)
    return is_endpoint(seed.endpoint) and (not seed.name or is_label(seed.name))
