"""The memory in which members on one host find each other's values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dpwa.collectives.contacts import Contacts
from dpwa.data.segments import ByteArray, SharedSegment
from dpwa.errors import ProtocolError
from dpwa.lifecycle import Closeable, uninterrupted

PRIVATE = 0  # the number of a buffer that peers cannot map


class StagingBuffer:
    """Memory for one value after the other. A new view gets memory of its own.

    A node that was left behind may still read the memory of the view before, at any time.
    """

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._view = b""
        self._segment: SharedSegment | None = None
        self._data: ByteArray = np.empty(0, np.uint8)
        self.number = PRIVATE

    def make_room(self, view: bytes, nbytes: int) -> ByteArray:
        """Return memory for `nbytes` bytes, which peers find by `number`."""
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
        """Free the memory. Nodes that still read it keep it until they are done."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self.number, self._view = None, PRIVATE, b""
        self._data = np.empty(0, np.uint8)


class ValueMemory(Closeable):
    """The buffers of this node in one group, and the buffers of its peers that it has mapped."""

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        # for what this node brings, and for what it reduces
        self.buffers = StagingBuffer(contacts), StagingBuffer(contacts)
        # Buffers of peers on this host, mapped once, by name and life, and by number
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
        """Return a peer's buffers, read-only, or `None` if any of them must be streamed.

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
            raise ProtocolError(f"the shared memory of {peer} is too small for its value")
        return tuple(found[number] for number in numbers)

    def keep_only(self, names: Iterable[str]) -> None:
        """Let go of the buffers of all but these peers, and of former lives of theirs."""
        lives = {(name, self._contacts.incarnation(name)) for name in names}
        self._mapped = {life: found for life, found in self._mapped.items() if life in lives}
