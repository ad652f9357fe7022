"""The reachable peers of a node, their incarnations, and their shared memory on this host."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from dpwa.data.peer_memory import NotMappedError, PeerFiles
from dpwa.data.segments import NONCE_BYTES, ByteArray, SharedSegment
from dpwa.data.shared_memory import SharedMemory
from dpwa.data.shared_records import BOARD_BYTES, BoardReader, BoardWriter
from dpwa.lifecycle import Closeable, uninterrupted
from dpwa.policy.group_views import Member
from dpwa.transport.link import LinkState
from dpwa.wire import limits
from dpwa.wire.collecting import Hello
from dpwa.wire.messages import Message

log = logging.getLogger("dpwa.collectives")

REMEMBERED_LIVES = 16
REMEMBERED_DEPARTED = 2 * limits.MAX_MEMBERS

Tell = Callable[[str, Message], None]


@dataclass
class _Contact:
    lives: deque[bytes]  # the peer's incarnations, the current one last; b"": not introduced yet
    is_up: bool = False
    was_up: bool = False  # whether the current incarnation was connected before
    folder: str = ""
    files: PeerFiles | None = None
    reads_us: bool | None = None  # whether the peer has mapped this node's memory; None: unknown
    is_met: bool = False  # whether the peer has introduced itself on the present connection
    successor: Hello | None = None  # from the next incarnation, while the connection is still up

    @property
    def is_mapped(self) -> bool | None:
        """Whether this node has mapped the peer's memory. `None`: the peer has announced none."""
        return self.files is not None if self.folder else None


_NOBODY = _Contact(deque([b""]))


class Contacts(Closeable):
    """The connections and shared memory of peers in collectives. All methods are thread-safe."""

    def __init__(
        self,
        own: Member,
        # returns the names of all nodes; messages of other nodes are ignored
        names: Callable[[], Collection[str]],
        tell: Tell,
        # called when a peer has introduced itself, has reconnected, or is gone
        changed: Callable[[str], None],
        *,
        may_map: bool,
        # called with a peer, and the bytes that were exchanged with this peer
        count: Callable[..., None] = lambda _peer, **_: None,
        # returns the incarnation of a connected peer, and its address; empty: unknown
        process_of: Callable[[str], tuple[bytes, str]] = lambda _peer: (b"", ""),
    ) -> None:
        self.own = own
        self._names = names
        self._may_map = may_map
        self.tell = tell
        self._changed = changed
        self.count = count
        self._process_of = process_of
        self._lock = threading.RLock()
        self._contacts: dict[str, _Contact] = {}
        # Incarnations of nodes that have left the cluster, but may still be members in a view.
        self._departed: OrderedDict[str, deque[bytes]] = OrderedDict()
        self._memory: SharedMemory | None = None
        self._numbers = 0
        self.is_closed = False  # if true, no memory is allocated, and calls raise `ClosedError`

    def send(self, names: Iterable[str], kind: type[Message], **fields: Any) -> None:
        """Sign a message, and send it to all `names` except this node itself."""
        peers = [name for name in names if name != self.own.name]
        if peers:
            message = kind(request=0, **self.own._asdict(), **fields)
            for peer in peers:
                self.tell(peer, message)

    # Peers

    def link_changed(self, peer: str, state: LinkState) -> None:
        """Record the state of a connection. A peer that this node disconnects is not lost."""
        is_up = state is LinkState.UP
        with self._lock:
            contact = self._of(peer)
            if state is LinkState.IDLE and contact.is_up:
                contact.was_up = False
            contact.is_up = is_up
            contact.was_up |= is_up
            contact.is_met &= is_up
            successor, contact.successor = contact.successor, None
            if is_up:
                self._greet(peer)
            elif not self.knows(peer):  # it has left the cluster
                self._forget(peer, contact)
        if successor is not None and not is_up:
            self.receive_hello(successor)
        self._changed(peer)

    def receive_hello(self, hello: Hello) -> None:
        """Record a peer's `Hello`, and answer this message if it has new contents."""
        if not self.knows(hello.name):
            return
        with self._lock:
            contact = self._of(hello.name)
            was_mapped = contact.is_mapped
            is_new = contact.lives[-1] != hello.incarnation
            connected = self._process_of(hello.name)[0]
            is_other = connected != hello.incarnation if connected else contact.is_met
            if is_new and contact.is_up and is_other:
                contact.successor = hello  # not trusted until the present connection ends
                return
            contact.is_met = True
            if is_new:
                contact.lives.append(hello.incarnation)
                contact.was_up = contact.is_up
                self._unmap(contact)
            if hello.folder != contact.folder:
                self._map(contact, hello)
            contact.reads_us = hello.is_mapped if self._memory is not None else None
            # A peer that had forgotten this node no longer knows this node's memory.
            is_untold = hello.is_mapped is None and self._memory is not None
            if is_new or is_untold or was_mapped != contact.is_mapped:
                self._greet(hello.name)
        self._changed(hello.name)

    def knows(self, name: str) -> bool:
        return name in self._names()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names())

    def incarnation(self, peer: str) -> bytes:
        """Return a peer's current incarnation, or b"" if the peer has not introduced itself."""
        with self._lock:
            return self._seen(peer).lives[-1]

    def is_up(self, peer: str) -> bool:
        with self._lock:
            return self._seen(peer).is_up

    def is_lost(self, peer: str, incarnation: bytes) -> bool:
        """Return whether an incarnation of a peer was connected, and is now gone or restarted.

        An incarnation that this node has not met yet is not lost. Other nodes may have admitted
        this incarnation already.
        """
        with self._lock:
            if peer not in self._contacts:
                return incarnation in self._departed.get(peer, ())
            contact = self._contacts[peer]
            if incarnation not in (b"", contact.lives[-1]):
                return incarnation in contact.lives
            return contact.lives[-1] != b"" and contact.was_up and not contact.is_up

    def reads_us(self, peer: str) -> bool:
        """Return whether a peer reads this node's shared memory, and so needs no messages."""
        with self._lock:
            return self._seen(peer).reads_us is True

    def is_near(self, peer: str) -> bool:
        """Return whether this node has mapped the shared memory of a peer."""
        with self._lock:
            return self._seen(peer).is_mapped is True

    def are_settled(self, peers: Iterable[str]) -> bool:
        """Return whether all peers have reported if they can read this node's memory."""
        with self._lock:
            return self._memory is None or all(
                self._seen(peer).reads_us is not None for peer in peers
            )

    # Memory

    def offer_memory(self) -> bool:
        """Allocate shared memory at the first call. Return whether this node has shared memory."""
        with self._lock:
            if self._memory is None and self._may_map and not self.is_closed:
                with uninterrupted():
                    self._make_memory()
            return self._memory is not None

    def _make_memory(self) -> None:
        try:
            self._memory = SharedMemory()
        except OSError as error:
            log.warning(
                "shared memory cannot be used (%s), so collectives use connections [DPWA-W022]",
                error,
            )
            self._may_map = False
        else:
            for peer, contact in self._contacts.items():
                if contact.is_up:
                    self._greet(peer)

    def board(self, tag: str) -> BoardWriter | None:
        """Allocate the board for own records. Return `None` without enough shared memory."""
        segment = self._segment(_board_name(tag), BOARD_BYTES)
        return None if segment is None else BoardWriter(segment.data)

    def buffer(self, nbytes: int) -> tuple[int, SharedSegment] | None:
        """Allocate a buffer for a value. Return its number for peers, and the buffer."""
        with self._lock:
            self._numbers += 1
            segment = self._segment(f"buffer-{self._numbers}", nbytes)
            return None if segment is None else (self._numbers, segment)

    def board_of(self, peer: str, tag: str) -> tuple[bytes, BoardReader] | None:
        """Map the board on which a peer posts records. Return the peer's incarnation and the board.

        Returns `None` if the peer has no board yet.
        """
        with self._lock:  # the incarnation and the folder of a peer change together
            contact = self._seen(peer)
            memory = None if contact.files is None else contact.files.map(_board_name(tag))
            if memory is None or memory.nbytes < BOARD_BYTES:
                return None
            return contact.lives[-1], BoardReader(memory)

    def image_of(self, peer: str, number: int) -> ByteArray | None:
        """Map the buffer that holds a peer's value, or return `None` if it cannot be mapped."""
        with self._lock:
            files = self._seen(peer).files
            return None if files is None else files.map(f"buffer-{number}")

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            for contact in self._contacts.values():
                self._unmap(contact)
            if self._memory is not None:
                self._memory.close()
                self._memory = None

    def _of(self, peer: str) -> _Contact:
        if peer not in self._contacts:
            lives = self._departed.pop(peer, None) or deque([b""], REMEMBERED_LIVES)
            self._contacts[peer] = _Contact(lives)
        return self._contacts[peer]

    def _seen(self, peer: str) -> _Contact:
        return self._contacts.get(peer, _NOBODY)

    def _forget(self, peer: str, contact: _Contact) -> None:
        self._unmap(contact)
        del self._contacts[peer]
        self._departed[peer] = contact.lives
        if len(self._departed) > REMEMBERED_DEPARTED:
            self._departed.popitem(last=False)

    def _greet(self, peer: str) -> None:
        memory = self._memory
        self.send(
            [peer],
            Hello,
            folder="" if memory is None else memory.name,
            nonce=bytes(NONCE_BYTES) if memory is None else memory.nonce,
            is_mapped=self._seen(peer).is_mapped,
        )

    def _segment(self, name: str, nbytes: int) -> SharedSegment | None:
        with self._lock:
            if self._memory is None:
                return None
            try:
                return self._memory.create(name, nbytes)
            except OSError as error:
                log.warning(
                    "there is too little shared memory for %d bytes (%s), so collectives use "
                    "connections [DPWA-W021]",
                    nbytes,
                    error,
                )
                return None

    def _map(self, contact: _Contact, hello: Hello) -> None:
        self._unmap(contact)
        contact.folder = hello.folder
        if not hello.folder or not self._may_map:
            return
        try:
            contact.files = PeerFiles(hello.folder, hello.nonce)
        except NotMappedError as error:
            log.info("%s: collectives stream from %s: %s", self.own.name, hello.name, error)

    def _unmap(self, contact: _Contact) -> None:
        contact.folder, contact.reads_us = "", None
        files, contact.files = contact.files, None
        if files is not None:
            files.close()


def _board_name(tag: str) -> str:
    return "board-" + hashlib.blake2b(tag.encode(), digest_size=8).hexdigest()
