"""Hosts on one machine: network namespaces, and a virtual switch that connects them.

Each host has its own address and its own link. A link can be slow and lose packets, so the kernel's
TCP behaves as it does between machines. This module needs Linux, root, iproute2, and nftables for
lost packets. `Namespaces` removes all namespaces at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from dpwa.errors import UserError, without_codes
from dpwa.lifecycle import Closeable

INTERFACE = "dpwa0"

_FOLDER = Path("/run/netns")
_NAME = re.compile(r"dpwa-(\d+)-\d+-\w+")  # the first number is the id of the process that made it
_MAX_HOSTS = 200
_MAX_UP_S = 10.0
_PARTS_OF_LOSS = 10_000
_serial = itertools.count()


@dataclass(frozen=True)
class Host:
    """A host: one network namespace.

    Attributes:
        name: the name of the namespace.
        address: the address at which the other hosts reach this host.
    """

    name: str
    address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command line that runs the given command line on this host."""
        return ["ip", "netns", "exec", self.name, *command]


class Namespaces(Closeable, Sequence[Host]):
    """A sequence of hosts (`Host`) that reach each other only through a virtual switch.

    It first removes the namespaces of processes that have died.

    Args:
        count: the number of hosts.
        rate_mbit: the rate of each host's link in each direction, in 10^6 bits per second. `None`
            means no limit. After a pause, a link sends up to 128 KiB without a limit. Its queue
            holds packets for at most 50 ms.
        loss: the share of the packets to a host that are dropped, from 0 to 1. Each packet is
            dropped independently, at random. Packets have the size that they have on a real link.

    Raises:
        UserError: this machine cannot create namespaces (`namespaces_missing` returns the reason),
            or an argument is out of its range.
    """

    def __init__(self, count: int, *, rate_mbit: float | None = None, loss: float = 0.0) -> None:
        _require_in_range(count, rate_mbit, loss)
        reason = _missing(loss=loss > 0.0)
        if reason:
            raise UserError(reason)
        remove_stale()
        prefix = f"dpwa-{os.getpid()}-{next(_serial)}"
        self._switch = f"{prefix}-switch"
        self._hosts = [Host(f"{prefix}-{n}", f"10.77.0.{n + 1}") for n in range(count)]
        try:
            self._add_switch()
            for host in self._hosts:
                self._add_host(host, rate_mbit)
                if loss:
                    # Otherwise, TCP passes 64 KiB as one packet, and all of it is lost together.
                    _do(f"ip -n {host.name} link set {INTERFACE} gso_max_segs 1")
                    _lose(host, loss)
            for host in self._hosts:
                _wait_until_up(host.name, INTERFACE)
                _wait_until_up(self._switch, _port_of(host))
        except BaseException:
            self.close()
            raise

    def partition(self, groups: Sequence[Sequence[int]]) -> None:
        """Split the network into groups of hosts, until `heal`. Drop all packets between groups.

        Args:
            groups: groups of hosts, by their positions. A host that is in no group reaches no host.

        Raises:
            UserError: a host is in two groups, or does not exist.
        """
        groups = [group for group in groups if group]
        listed = [position for group in groups for position in group]
        alone = [n for n in range(len(self)) if n not in listed]
        if len(set(listed)) < len(listed) or not set(listed) <= set(range(len(self))):
            raise UserError(
                f"the groups {groups} are invalid. Expected groups of hosts from 0 to "
                f"{len(self) - 1}, and each host in at most one group [DPWA-E203]"
            )
        for number, group in enumerate([*groups, *([n] for n in alone)]):
            self._plug(group, f"br{number}")

    def heal(self) -> None:
        """Connect all hosts again."""
        self._plug(range(len(self)), "br0")

    def close(self) -> None:
        """Remove the namespaces and their links. Programs that run there lose their connections."""
        for name in (self._switch, *(host.name for host in self._hosts)):
            _remove(name)

    def __len__(self) -> int:
        return len(self._hosts)

    @overload
    def __getitem__(self, position: int) -> Host: ...

    @overload
    def __getitem__(self, position: slice) -> list[Host]: ...

    def __getitem__(self, position: int | slice) -> Host | list[Host]:
        return self._hosts[position]

    def _add_switch(self) -> None:
        _do(f"ip netns add {self._switch}")
        for number in range(len(self)):  # one bridge for each possible group
            _do(f"ip -n {self._switch} link add br{number} type bridge")
            _do(f"ip -n {self._switch} link set br{number} up")

    def _add_host(self, host: Host, rate_mbit: float | None) -> None:
        port = _port_of(host)
        _do(f"ip netns add {host.name}")
        _do(
            f"ip link add {INTERFACE} netns {host.name} "
            f"type veth peer name {port} netns {self._switch}"
        )
        _do(f"ip -n {host.name} addr add {host.address}/24 dev {INTERFACE}")
        _do(f"ip -n {host.name} link set lo up")
        for name, interface in ((host.name, INTERFACE), (self._switch, port)):
            _do(f"ip -n {name} link set {interface} up")
            if rate_mbit is not None:
                limit = f"tbf rate {rate_mbit}mbit burst 128kb latency 50ms"
                _do(f"tc -n {name} qdisc add dev {interface} root {limit}")
        _do(f"ip -n {self._switch} link set {port} master br0")

    def _plug(self, group: Sequence[int], bridge: str) -> None:
        for position in group:
            port = _port_of(self[position])
            _do(f"ip -n {self._switch} link set {port} master {bridge}")


def namespaces_missing(*, loss: bool = False) -> str:
    """Return the reason why this machine cannot create namespaces, or "" if namespaces work.

    Args:
        loss: whether links should lose packets.
    """
    return without_codes(_missing(loss=loss))


def _missing(*, loss: bool) -> str:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need {' and '.join(missing)} (package iproute2) [DPWA-E234]"
    if os.geteuid() != 0:
        return "only root can create network namespaces [DPWA-E235]"
    if loss and shutil.which("nft") is None:
        return "links that lose packets need nft (package nftables) [DPWA-E236]"
    probe = f"dpwa-{os.getpid()}-{next(_serial)}-probe"
    try:
        _do(f"ip netns add {probe}")
        if loss:
            _lose(Host(probe, ""), 0.5)
    except UserError as error:
        return f"this machine cannot create network namespaces: {error.text} [DPWA-E237]"
    finally:
        _remove(probe)
    return ""


def remove_stale() -> None:
    """Remove the namespaces of processes that have ended."""
    for name, pid in _ours():
        if not Path("/proc", str(pid)).exists():
            _remove(name)


def _ours() -> Iterator[tuple[str, int]]:
    with contextlib.suppress(FileNotFoundError):
        for path in tuple(_FOLDER.iterdir()):
            if match := _NAME.fullmatch(path.name):
                yield path.name, int(match[1])


def _port_of(host: Host) -> str:
    """Return the name of the network interface by which the switch reaches a host."""
    return f"port{host.name.rpartition('-')[2]}"


def _lose(host: Host, loss: float) -> None:
    parts = round(loss * _PARTS_OF_LOSS)
    rules = (
        "table inet dpwa { chain input { type filter hook input priority 0; "
        f'iifname "{INTERFACE}" numgen random mod {_PARTS_OF_LOSS} < {parts} drop; }}; }}'
    )
    _run(host.command(["nft", rules]))


def _remove(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)  # noqa: S603, S607


def _wait_until_up(namespace: str, interface: str) -> None:
    """Wait for the kernel, which connects a new link a moment after the command that made it."""
    ends_at = time.monotonic() + _MAX_UP_S
    while "state UP" not in _run(["ip", "-n", namespace, "link", "show", interface]):
        if time.monotonic() > ends_at:
            text = f"the link of {namespace} is not up after {_MAX_UP_S:g} s"
            raise UserError(f"this machine cannot create network namespaces: {text} [DPWA-E237]")
        time.sleep(0.01)


def _do(command: str) -> None:
    _run(command.split())


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise UserError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _require_in_range(count: int, rate_mbit: float | None, loss: float) -> None:
    if not 1 <= count <= _MAX_HOSTS:
        raise UserError(f"count is {count}, but must be from 1 to {_MAX_HOSTS} [DPWA-E198]")
    if rate_mbit is not None and rate_mbit <= 0.0:
        raise UserError(
            f"rate_mbit is {rate_mbit}, but must be above 0, or None for no limit [DPWA-E199]"
        )
    if not 0.0 <= loss <= 1.0:
        raise UserError(f"loss is {loss}, but must be from 0 to 1 [DPWA-E200]")
