"""What operations of a group work with, and what its members have called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpwa.collectives.collective_wait import CollectiveWait
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.entries import Contribution
from dpwa.collectives.exchange import Side
from dpwa.collectives.group import Group
from dpwa.collectives.pull_source import Offer, PullSource
from dpwa.collectives.pulling import Puller, PullListener
from dpwa.collectives.staging import MappedBuffers, StagingBuffer
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError
from dpwa.runtime import Runtime

SETTLE_S = 0.2
SETTLE_POLL_S = 0.001


@dataclass(frozen=True)
class Called:
    """What the members of a collective have called.

    Attributes:
        entries: of all members, by name in order of rank.
    """

    entries: Mapping[str, Contribution]

    @property
    def contributors(self) -> tuple[str, ...]:
        """Who has brought a value, in order of rank."""
        return tuple(name for name, entry in self.entries.items() if entry.contributes)


@dataclass(frozen=True)
class Workspace:
    """What operations of a group work with.

    Attributes:
        group: its state.
        contacts, listener, pull_source: of the node.
        buffers: memory for what this node brings, and for what it reduces.
        mapped: those of peers on this host.
        runtime: of the node.
    """

    group: Group
    contacts: Contacts
    listener: PullListener
    pull_source: PullSource
    buffers: tuple[StagingBuffer, StagingBuffer]
    mapped: MappedBuffers
    runtime: Runtime

    @property
    def own(self) -> str:
        """Name of this node."""
        return self.contacts.own.name

    def settle(self) -> None:
        """Let members on this host map its memory, before a large value is laid out for them.

        Only for a moment: who does not say in time whether it can is sent a stream, once.
        """
        if not self.contacts.share():
            return
        others = [name for name in self.group.view.names if name != self.own]
        runtime = self.runtime
        end = runtime.now() + SETTLE_S
        while not self.contacts.are_settled(others) and runtime.now() < end:
            runtime.sleep(SETTLE_POLL_S)

    def room(self, brought: int, reduced: int) -> tuple[ByteArray, ByteArray]:
        """Return both buffers with room for so many bytes."""
        view = self.group.view.identity
        first, second = self.buffers
        return first.make_room(view, brought), second.make_room(view, reduced)

    def show(self, offer: Offer) -> None:
        """Let members of other hosts pull what this node offers."""
        group = self.group
        self.pull_source.show(group.tag, (group.view.identity, group.number), offer)

    def is_read(self) -> bool:
        """Tell whether a member reads this node's memory."""
        names = self.group.view.names
        return any(self.contacts.reads_us(name) for name in names if name != self.own)

    def sides(self, called: Called) -> dict[str, Side]:
        """Map the buffers of all contributors on this host."""
        sides: dict[str, Side] = {}
        for name in called.contributors:
            if name == self.own:
                continue
            entry = called.entries[name]
            found = self.mapped.find(name, entry.buffers)
            if found is not None and found[0].nbytes < entry.nbytes:
                raise ProtocolError(f"the memory of {name} is smaller than its value")
            sides[name] = Side() if found is None else Side(*found)
        return sides

    def puller(self, wait: CollectiveWait, far: list[str]) -> Puller:
        """Return what pulls from members of other hosts, once they are connected."""
        wait.wait(lambda: True if all(map(self.contacts.is_up, far)) else None)
        group, own = self.group, self.contacts.own
        header = {
            "tag": group.tag,
            "name": own.name,
            "incarnation": own.incarnation,
            "view": group.view.identity,
            "number": group.number,
        }
        return Puller(self.listener, self.contacts, self.runtime.queue(), header)
