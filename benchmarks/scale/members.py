"""Simulate the members of a cluster without the rest of their nodes, for views.py."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from dpwa.config import load_config
from dpwa.membership.asking import Asking
from dpwa.membership.context import MembershipContext
from dpwa.membership.member_list import MemberList
from dpwa.membership.service import RosterService
from dpwa.policy.members.states import MemberEntry
from dpwa.sim.nodes.runtime import VirtualRuntime
from dpwa.sim.nodes.tcp import VirtualTcp
from dpwa.sim.rules.wire_sizes import wire_bytes
from dpwa.transport.link import LinkState
from dpwa.types import Frame
from dpwa.virtual_network import Link, VirtualNetwork
from dpwa.wire.messages import Message, decode, encode

TICK_S = 0.2
CONFIG = load_config({"join": [], "listen": "tcp://127.0.0.1:7000"})


class Links:
    """The links of the TCP network. Only connections to dead members use them, and are refused."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def delay_s(self, sender: str, to: str) -> float:  # noqa: ARG002
        return self._delay_s

    def may_connect(self, client: str, server: str) -> bool:  # noqa: ARG002
        return True

    def upload(self, node: str) -> float:  # noqa: ARG002
        return 1e9

    download = upload

    def shared_link(self, sender: str, to: str) -> None:
        """Return None, because no two links share a line."""


class CountingList(MemberList):
    trials = 0

    def to_retry(self) -> list[MemberEntry]:
        found = super().to_retry()
        self.trials += len(found)
        return found


class Member:
    source = "10.0.0.1"  # of all requests, as in `RxThread`

    def __init__(self, cluster: Cluster, entry: MemberEntry, seed: str) -> None:
        self.name, self.entry = entry.name, entry
        self.sent_bytes = self.sent_messages = 0
        self._cluster, self._network = cluster, cluster.network
        self._ticks_at = -1.0
        rng = random.Random(seed)
        runtime = VirtualRuntime(cluster.tcp, self.name, rng)
        self.member_list = CountingList(entry, runtime, rng, self._look_soon)
        context = MembershipContext(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            None,
            runtime,
            rng,
            lambda place: (place,),
            frozenset(),
            None,
            (),
        )
        self.asking = Asking(self.member_list, CONFIG, context, self._nobody)
        self._service = RosterService(self.member_list, CONFIG.algorithm, context, self.asking)
        self.asking.attached(runtime.zmq_context(), runtime.poller())
        self._network.add(self.name, self._receive)
        self._network.call_later(rng.uniform(0.0, TICK_S), self._tick)

    def send_message(
        self, peer: str, message: Message, payload: Frame | None = None, **_: bool
    ) -> None:
        """Send a message, or report the link of a dead peer as down, as `TxThread` does."""
        if peer in self._cluster.dead:
            down = LinkState.DOWN
            self._network.call_later(0.0, lambda: self.asking.link_changed(peer, down))
        else:
            self._send(peer, message, payload, is_answer=False)

    def state_of(self, peer: str) -> LinkState:
        return self._cluster.state_between(self.name, peer)

    def wake(self) -> None:
        """Do nothing, because the service runs after each message and at each tick."""

    def _look_soon(self) -> None:
        if self._ticks_at != self._network.clock.now():
            self._ticks_at = self._network.clock.now()
            self._network.call_later(0.0, self._look)

    def _nobody(self, *_: object) -> None:
        """Do nothing, because no node joins, and peers need no connections."""

    def _tick(self) -> None:
        if self.name not in self._cluster.dead:
            self._look()
            self._network.call_later(TICK_S, self._tick)

    def _look(self) -> None:
        if self.name not in self._cluster.dead:
            self.asking.tick(self._network.clock.now())
            self._service.tick(self._network.clock.now())

    def _send(self, peer: str, message: Message, payload: Frame | None, *, is_answer: bool) -> None:
        frames = [encode(message)] + ([] if payload is None else [bytes(payload)])
        self.sent_bytes += wire_bytes([len(frame) for frame in frames])
        self.sent_messages += 1
        self._network.send(self.name, peer, (is_answer, frames))

    def _receive(self, sender: str, sent: tuple[bool, Sequence[bytes]]) -> None:
        is_answer, frames = sent
        message, payload = decode(frames)
        if is_answer:
            self.asking.receive(sender, message, payload)  # type: ignore[arg-type]
            return

        def reply(answer: Message, load: Frame | None = None, *, is_lent: bool = False) -> None:  # noqa: ARG001
            self._send(sender, answer, load, is_answer=True)

        self._service.receive(sender.encode(), message, payload, reply)
        self._service.tick(self._network.clock.now())


class Cluster:
    """A cluster of members that know each other. Each is connected to about `connections` peers."""

    def __init__(self, nodes: int, seed: int, latency_s: float, connections: int) -> None:
        self.network = VirtualNetwork(seed, Link(delay_s=latency_s))
        self.tcp = VirtualTcp(self.network, Links(latency_s))
        self.dead: set[str] = set()
        rng = random.Random(f"{seed}/connections")
        entries = [
            MemberEntry(
                f"n{index}", f"tcp://10.{index >> 8}.{index & 255}.1:7000", 1_700_000_000_000
            )
            for index in range(nodes)
        ]
        for entry in entries:
            self.tcp.hosts[entry.endpoint] = entry.name
        self._members = [Member(self, e, f"{seed}/{e.name}") for e in entries]
        self._connected: dict[str, list[Member]] = {e.name: [] for e in entries}
        for member in self._members:
            for entry in entries:
                if entry is not member.entry:
                    member.member_list.believe(entry)
            others = rng.sample(range(nodes), min(nodes, connections // 2 + 1))
            for other in (self._members[o] for o in others):
                if other is not member:
                    self._connect(member, other)

    def state_between(self, one: str, two: str) -> LinkState:
        if two in self.dead:
            return LinkState.DOWN
        is_connected = any(other.name == two for other in self._connected[one])
        return LinkState.UP if is_connected else LinkState.IDLE

    @property
    def living(self) -> list[Member]:
        return [member for member in self._members if member.name not in self.dead]

    def kill(self, members: Iterable[Member]) -> None:
        gone = list(members)
        self.dead |= {member.name for member in gone}
        for member in gone:
            self.network.set_down(member.name)
        for member in gone:
            for other in self._connected[member.name]:
                if other.name not in self.dead:
                    other.asking.link_changed(member.name, LinkState.DOWN)

    def unaware(self) -> int:
        """Return the number of pairs of a living member and a dead peer in its view."""
        return sum(
            entry.name in self.dead for member in self.living for entry in member.member_list.peers
        )

    def sent_between(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Run until `end_s`. Return the traffic of a member per second since `begin_s`."""
        self.network.run_until(begin_s)
        living = self.living
        before = [(m.sent_bytes, m.sent_messages, m.member_list.trials) for m in living]
        self.network.run_until(end_s)
        after = [(m.sent_bytes, m.sent_messages, m.member_list.trials) for m in living]
        lengths = len(living) * (end_s - begin_s)
        nbytes, messages, trials = (
            [b[at] - a[at] for a, b in zip(before, after, strict=True)] for at in range(3)
        )
        return {
            "bytes_per_s": sum(nbytes) / lengths,
            "most_bytes_per_s": max(nbytes) / (end_s - begin_s),
            "messages_per_s": sum(messages) / lengths,
            "trials_per_s": sum(trials) / lengths,
        }

    def _connect(self, one: Member, other: Member) -> None:
        for a, b in ((one, other), (other, one)):
            self._connected[a.name].append(b)
