"""Staging: the flat bytes of values, here and in the memory of peers on this host."""

from __future__ import annotations

import numpy as np

from dpwa.collectives.contacts import Contacts
from dpwa.data.segments import ByteArray, SharedSegment
from dpwa.lifecycle import uninterrupted

PRIVATE = 0  # the number of a buffer that peers cannot map


class StagingBuffer:
    """Memory for one value after the other. A view gets memory of its own.

    For whoever was left behind may still read what belonged to the view before, at any time.
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
        made = self._contacts.buffer(nbytes) if nbytes and self._contacts.share() else None
        if made is None:
            self._data = np.empty(nbytes, np.uint8)
        else:
            self.number, self._segment = made
            self._data = self._segment.data
        self._view = view

    @property
    def nbytes(self) -> int:
        """Size of the memory."""
        return self._data.nbytes

    def close(self) -> None:
        """Give the memory back; whoever still reads it keeps it until they are done."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self.number, self._view = None, PRIVATE, b""
        self._data = np.empty(0, np.uint8)


class MappedBuffers:
    """Buffers of peers on this host, mapped once."""

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._mapped: dict[tuple[str, bytes], dict[int, ByteArray]] = {}

    def find(self, peer: str, numbers: tuple[int, ...]) -> tuple[ByteArray, ...] | None:
        """Return a peer's buffers, read-only; `None` if any of them must be streamed.

        What else was mapped of this peer is let go.
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
        return tuple(found[number] for number in numbers)

    def keep(self, names: tuple[str, ...]) -> None:
        """Let go of the buffers of all but these peers, and of former lives of theirs."""
        self._mapped = {
            (name, life): buffers
            for (name, life), buffers in self._mapped.items()
            if name in names and life == self._contacts.incarnation(name)
        }
