"""Finds free ports on this machine, and checks the addresses of nodes."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dpwa.errors import AddressError, UserError
from dpwa.transport.addresses import FIRST_PORT, free_range, holder, listening

__all__ = ["FIRST_PORT", "free_ports", "held_ports", "is_own_address", "require_free_addresses"]

if TYPE_CHECKING:
    from dpwa.config import NodeConfig

EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
DEFAULT_EPHEMERAL_RANGE = (32_768, 60_999)
LOWEST_PORT = 20_000  # lower ports are used by well-known services
RANDOM_TRIES = 100
_IN_USE = "the port is already in use"
UNKNOWN_HOST = "the host name is unknown"


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return distinct TCP ports on which no process listens now.

    All ports are held until the last one is found. If possible, they are random ports outside the
    range of outgoing connections, so that no connection or other run takes a port before its node
    listens.
    """
    with held_ports(count, host) as ports:
        return ports


@contextmanager
def held_ports(count: int, host: str = "127.0.0.1") -> Iterator[list[int]]:
    """Yield free TCP ports, as in `free_ports`, and keep the ports reserved in the block."""
    with ExitStack() as held:
        try:
            ports = [_hold_port(host, held) for _ in range(count)]
        except OSError as error:
            reason = f"cannot find {count} free ports on {host}: {error.strerror} [DPWA-E225]"
            raise UserError(reason) from None
        yield ports


def is_own_address(host: str) -> bool:
    try:
        listening(host, 0).close()
    except (OSError, UnicodeError):
        return False
    return True


def require_free_addresses(nodes: Iterable[NodeConfig]) -> None:
    """Check that every node can listen at its configured address.

    Raises:
        AddressError: some nodes cannot. The message has a line for each, and a line of free ports.
    """
    listed = [(node, _listen_problem(node)) for node in nodes]
    problems = [problem for _, problem in listed if problem]
    taken = next((node for node, problem in listed if problem and _IN_USE in problem), None)
    if taken is not None:
        free = free_range(taken.bind or taken.host, len(listed))
        problems.append(f"free ports are {free}. `dpwa launch -n {len(listed)}` finds free ports")
    if problems:
        told = "\n".join(problems)
        raise AddressError(f"{told} [DPWA-E224]")


def _listen_problem(node: NodeConfig) -> str | None:
    if node.port is None:
        return _claim_problem(node)
    host = node.bind or node.host
    try:
        listening(host, node.port).close()
    except OSError as error:
        reason = _reason(error, node.port)
    except UnicodeError:  # a name that cannot be resolved at all, such as `a..b`
        reason = UNKNOWN_HOST
    else:
        return None
    return f"node {node.name} cannot listen on {host}:{node.port}: {reason}"


def _claim_problem(node: NodeConfig) -> str | None:
    from dpwa.transport.ipc import claimed

    try:
        with claimed(node.listen_endpoint):
            return None
    except AddressError as error:
        return f"node {node.name} {error.text}"


def _reason(error: OSError, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return UNKNOWN_HOST
    if error.errno == errno.EADDRINUSE:
        return f"{_IN_USE}{holder(port)}"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have the address (start the node on its own machine)"
    return error.strerror or str(error)


def _hold_port(host: str, held: ExitStack) -> int:
    for candidate in _candidates():
        with suppress(OSError):
            return _bound_port(held.enter_context(listening(host, candidate)))
    return _bound_port(held.enter_context(listening(host, 0)))


def _candidates() -> Iterator[int]:
    low, high = _ephemeral_range()
    quiet = [*range(LOWEST_PORT, low), *range(high + 1, 65_536)]
    return iter(random.sample(quiet, min(RANDOM_TRIES, len(quiet))))


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = EPHEMERAL_RANGE_FILE.read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return DEFAULT_EPHEMERAL_RANGE


def _bound_port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])
