"""Reads hostfiles in the format of MPI and DeepSpeed, and assigns names and ports to nodes.

    # two machines
    10.0.0.1 slots=4
    gpu02    slots=2 group=b    # by default one slot, and no group

The nodes are called w1, w2, ... in the order of the lines. On each host, the first node listens at
the first port, and each other node at the next port.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpwa.config import NodeConfig, peer_config
from dpwa.config.endpoints import MAX_PORT, is_label
from dpwa.errors import UserError
from dpwa.launch.ports import is_own_address
from dpwa.transport.addresses import is_name

MAX_SLOTS = 1000
_OPTIONS = re.compile(r"(?: slots=([1-9]\d{0,3}))?(?: group=(\S+))?")


@dataclass(frozen=True)
class HostLine:
    """A host in a hostfile: its name or address, as other hosts use it, and its number of nodes."""

    host: str
    slots: int
    group: str | None = None  # the group of its nodes


def read_hostfile(path: Path) -> list[HostLine]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read hostfile {path}: {error.strerror} [DPWA-E061]") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: expected text in UTF-8 [DPWA-E062]") from None
    found: dict[str, HostLine] = {}
    first_at: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        entry = _entry(words, where)
        if entry.host in found:
            raise UserError(
                f"{where}: host {entry.host} is already on line {first_at[entry.host]} [DPWA-E063]"
            )
        found[entry.host] = entry
        first_at[entry.host] = number
    if not found:
        raise UserError(
            f"{path}: expected a host on each line, such as `10.0.0.1 slots=4` [DPWA-E064]"
        )
    return list(found.values())


def nodes_of(hosts: Iterable[HostLine], first_port: int, here: str) -> list[NodeConfig]:
    """Return the nodes of all hosts. Every host computes the same names and addresses.

    A machine may resolve its own name to 127.0.1.1. So nodes with a host name listen on all
    addresses.
    """
    nodes: list[NodeConfig] = []
    for line in hosts:
        if first_port + line.slots - 1 > MAX_PORT:
            raise UserError(
                f"no port is left for {line.slots} nodes on {line.host}. Use a lower --port "
                "[DPWA-E067]"
            )
        bind = "*" if line.host == here and is_name(line.host) else None
        for port in range(first_port, first_port + line.slots):
            name = f"w{len(nodes) + 1}"
            nodes.append(
                NodeConfig(name=name, host=line.host, port=port, bind=bind, group=line.group)
            )
    return nodes


def own_line(hosts: Sequence[HostLine], chosen: str | None) -> HostLine:
    """Return this machine's line in the hostfile, or the line of the host `chosen`, if set.

    Otherwise, it is the line with the name or an address of this machine.
    """
    listed = ", ".join(line.host for line in hosts)
    if chosen is not None:
        own = [line for line in hosts if line.host == chosen]
        if not own:
            raise UserError(f"--host: expected one of {listed} (got {chosen}) [DPWA-E068]")
        return own[0]
    name = socket.gethostname()
    own = [line for line in hosts if line.host in (name, name.partition(".")[0])]
    own = own or [line for line in hosts if is_own_address(line.host)]
    if len(own) != 1:
        which = ", ".join(line.host for line in own) if own else f"none of {listed}"
        raise UserError(
            "expected exactly one host in the hostfile that is this machine. The name and "
            f"addresses of this machine match {which}. Pass the host of this machine as --host "
            "[DPWA-E069]"
        )
    return own[0]


def _entry(words: Sequence[str], where: str) -> HostLine:
    host, *rest = words
    try:
        peer_config("w1", host, MAX_PORT)
    except UserError:
        raise UserError(
            f"{where}: expected a host name or an IP address (got {host}) [DPWA-E065]"
        ) from None
    what = " ".join(sorted(rest, reverse=True))  # in the order of `_OPTIONS`
    found = _OPTIONS.fullmatch(f" {what}" if rest else "")
    slots, group = (None, None) if found is None else found.groups()
    if found is None or int(slots or 1) > MAX_SLOTS or not is_label(group or "a"):
        raise UserError(
            f"{where}: expected slots=N and group=NAME after the host, with N from 1 to 1000 (got "
            f"{' '.join(rest)}) [DPWA-E066]"
        )
    return HostLine(host, int(slots or 1), group)
