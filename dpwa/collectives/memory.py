"""The shared memory through which members on one host read each other's values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dpwa.collectives.contacts import Contacts
from dpwa.data.segments import ByteArray, SharedSegment
from dpwa.errors import ProtocolError
from dpwa.lifecycle import Closeable, uninterrupted

PRIVATE = 0  # the number of a buffer that peers cannot map


class StagingBuffer:
    """A buffer that is used again for each value. A new view of the members gets a new buffer.

    A node that was excluded from the group may still read the buffer of an earlier view.
    """

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._view = b""
        self._segment: SharedSegment | None = None
        self._data: ByteArray = np.empty(0, np.uint8)
        self.number = PRIVATE

    def make_room(self, view: bytes, nbytes: int) -> ByteArray:
        """Return a buffer of `nbytes` bytes, which peers can map by the buffer's `number`."""
        if self._view != view or self._data.nbytes < nbytes:
            with uninterrupted():
                self._take(view, nbytes)
        return self._data[:nbytes]

    def _take(self, view: bytes, nbytes: int) -> None:
        self.close()
        made = self._contacts.buffer(nbytes) if nbytes and self._contacts.offer_memory() else None
        if made is None:
            self._data = np.empty(nbytes, np.uint8)
        else:
            self.number, self._segment = made
            self._data = self._segment.data
        self._view = view

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def close(self) -> None:
        """Free the memory. Peers that still read the memory keep their mappings."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self.number, self._view = None, PRIVATE, b""
        self._data = np.empty(0, np.uint8)


class ValueMemory(Closeable):
    """This node's buffers in one group, and the peers' buffers that this node has mapped."""

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        # for this node's value, and for its reduced shard
        self.buffers = StagingBuffer(contacts), StagingBuffer(contacts)
        # Mapped buffers of peers on this host, by name and incarnation, and by number
        self._mapped: dict[tuple[str, bytes], dict[int, ByteArray]] = {}

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()

    def room(self, view: bytes, brought: int, reduced: int) -> tuple[ByteArray, ByteArray]:
        first, second = self.buffers
        return first.make_room(view, brought), second.make_room(view, reduced)

    def find(
        self, peer: str, numbers: tuple[int, ...], nbytes: int
    ) -> tuple[ByteArray, ...] | None:
        """Return a peer's buffers, read-only, or `None` if any buffer cannot be mapped.

        Other mapped memory of this peer is released. Raises `ProtocolError` if the first buffer has
        less than `nbytes` bytes.
        """
        life = self._contacts.incarnation(peer)
        known = self._mapped.get((peer, life), {})
        found: dict[int, ByteArray] = {}
        for number in numbers:
            memory = known.get(number)
            if memory is None and number != PRIVATE:
                memory = self._contacts.image_of(peer, number)
            if memory is None:
                return None
            found[number] = memory
        self._mapped[peer, life] = found
        if found[numbers[0]].nbytes < nbytes:
            raise ProtocolError(f"the shared memory of {peer} is too small for the value of {peer}")
        return tuple(found[number] for number in numbers)

    def keep_only(self, names: Iterable[str]) -> None:
        """Release the mapped buffers of all peers except `names`, and of earlier incarnations."""
        lives = {(name, self._contacts.incarnation(name)) for name in names}
        self._mapped = {life: found for life, found in self._mapped.items() if life in lives}
