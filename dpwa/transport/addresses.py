"""Host names and addresses in endpoints, and the ports of this machine."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from pathlib import Path

from dpwa.config.endpoints import split_tcp, tcp_endpoint
from dpwa.errors import AddressError

FIRST_PORT = 20_470  # the first port that nodes use, if all nodes must know their ports
_PORTS_TRIED = 1000
_LISTENS = "0A"  # the listening state of TCP in /proc/net
_SHOWN_CHARACTERS = 60  # of a command line
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def resolved(endpoint: str) -> str:
    """Return an endpoint to listen on, in which a host name is replaced by its address. Raises
    `AddressError` if there is none.
    """
    any_port = endpoint.startswith("tcp://") and endpoint.endswith(":0")
    address = split_tcp(endpoint[:-1] + "1" if any_port else endpoint)
    if address is None:
        return endpoint
    host, port = address[0], 0 if any_port else address[1]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid name, such as `a..b`
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise AddressError(f"cannot listen on {endpoint}: {reason} [DPWA-E051]") from None
    # IPv4 first, because peers try IPv4 for a name such as localhost.
    _, _, _, _, first = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return tcp_endpoint(str(first[0]), port)


def listening(host: str, port: int, backlog: int = 1) -> socket.socket:
    """Return a socket that listens on a host name (IPv4 first), an address, or `*` (with IPv6)."""
    if host == "*" and socket.has_dualstack_ipv6():
        host = "::"
    found = socket.getaddrinfo(
        None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = min(found, key=lambda it: it[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(backlog)  # because without it, SO_REUSEADDR hides that a port is in use
    except OSError:
        listener.close()
        raise
    return listener


def holder(port: int) -> str:
    """Describe the process that uses a TCP port, such as ` by process 7 (python x)`, or ""."""
    held = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if int(local.rpartition(":")[2], 16) == port:
                    held[f"socket:[{inode}]"] = state == _LISTENS
    for link in Path("/proc").glob("[0-9]*/fd/*") if held else ():
        with suppress(OSError):
            target = str(link.readlink())
            if target in held and (held[target] or not any(held.values())):
                number = link.parts[2]
                words = Path("/proc", number, "cmdline").read_text(errors="replace").split("\0")
                what = "" if held[target] else "a connection of "
                shown = " ".join(" ".join(words).split())[:_SHOWN_CHARACTERS]
                return f" by {what}process {number} ({shown})"
    return " by a process of another user" if held else ""


def free_range(host: str, count: int) -> str:
    """Return, as text, a range of `count` free TCP ports outside the ephemeral port range."""
    first, host = FIRST_PORT, "*" if is_name(host) else host  # a look-up may take long
    for port in range(FIRST_PORT, FIRST_PORT + _PORTS_TRIED):
        try:
            listening(host, port).close()
        except OSError:
            first = port + 1
        if port - first + 1 == count:
            return f"{first} to {port}" if port > first else f"{port}"
    return "none"


def all_resolved(endpoint: str) -> tuple[str, ...]:
    """Return the endpoints of a host name, IPv4 first, or raise `AddressError`. May take long."""
    address = split_tcp(endpoint)
    if address is None or not is_name(address[0]):
        return (endpoint,)
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise AddressError(f"{host} has no address: {reason} [DPWA-E093]") from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    hosts = dict.fromkeys(str(entry[4][0]) for entry in found)
    return tuple(tcp_endpoint(host, port) for host in hosts)


def is_name(host: str) -> bool:
    """Tell whether a host is a name that must be looked up."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True
    return False


def has_address(host: str) -> bool:
    """Tell whether a host is an address, or a name that has an address now."""
    try:
        return bool(all_resolved(tcp_endpoint(host, 1)))
    except AddressError:
        return False


def local_address(toward: str) -> str:
    """Return the address of this machine on the route to a host, or `127.0.0.1`. Sends nothing."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(toward, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return "127.0.0.1"


def is_of_this_machine(endpoint: str) -> bool:
    """Tell whether only processes on this machine can connect to a resolved endpoint."""
    address = split_tcp(endpoint)
    if address is None:
        return not endpoint.startswith("tcp://")
    try:
        return ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_elsewhere(host: str) -> bool:
    """Return whether a host is a different machine. A name counts as one, without a look-up."""
    address = _ip_address("127.0.0.1" if host == "localhost" else host)
    return address is None or not (address.is_loopback or _is_own(address))


def is_at(endpoint: str, source: str) -> bool:
    """Return whether an endpoint belongs to the sender `source`, so dpwa may connect back to it.

    A process of this machine may name any address of this machine. It may name a socket in the file
    system only over such a socket. Names are not looked up, because a look-up reveals as much as a
    connection.
    """
    address, sender = split_tcp(endpoint), _ip_address(source)
    if address is None:
        return endpoint.startswith("ipc://") and is_local(source)
    named = _ip_address("127.0.0.1" if address[0] == "localhost" else address[0])
    if named is None or not source:
        return False
    return named == sender or ((sender is None or _is_own(sender)) and _is_own(named))


def is_local(source: str) -> bool:
    """Return whether a request came over a Unix domain socket."""
    return bool(source) and _ip_address(source) is None


def _ip_address(text: str) -> IpAddress | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _is_own(address: IpAddress) -> bool:
    """Return whether an address belongs to this machine, so that a socket can be bound to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
