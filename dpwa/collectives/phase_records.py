"""PhaseRecords: the records that members post of a collective, on boards or in messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group_sender import NOWHERE, GroupSender, Key
from dpwa.data.boards import BoardReader, BoardWriter, Posted
from dpwa.lifecycle import uninterrupted

ENTERED, READY = 0, 1


class PhaseRecords:
    """What has been posted last, by each member and phase.

    Args:
        tag: of the group.
        contacts: of the node.
        sender: sends records to who cannot read this node's board.
    """

    def __init__(self, tag: str, contacts: Contacts, sender: GroupSender) -> None:
        self._tag = tag
        self._contacts = contacts
        self._sender = sender
        self._heard: dict[tuple[str, int], Posted] = {}
        self._boards: dict[str, tuple[bytes, BoardReader]] = {}
        self._board: BoardWriter | None = None

    @property
    def has_boards(self) -> bool:
        """Whether others may post on boards: this node shares memory, or reads that of others."""
        return self._board is not None or bool(self._boards)

    def open(self) -> None:
        """Make this node's board, if it shares memory."""
        if self._contacts.share() and self._board is None:
            with uninterrupted():
                self._board = self._contacts.board(self._tag)

    def post(self, members: Iterable[str], key: Key, phase: int, record: bytes) -> None:
        """Post a record for all members."""
        if self._board is not None:
            self._board.post(phase, Posted(key[1], key[0], record))
        for name in members:
            self.repeat(name, key, phase, record)

    def repeat(self, peer: str, key: Key, phase: int, record: bytes) -> None:
        """Send a record to a peer, unless it reads it on the board."""
        if self._board is None or not self._contacts.reads_us(peer):
            self._sender.post(peer, key, phase, record)

    def clear(self) -> None:
        """Be ready in nothing any more, for who would compare numbers of other views."""
        if self._board is not None:
            view, number = NOWHERE
            self._board.post(READY, Posted(number, view, b""))

    def keep(self, names: Collection[str]) -> None:
        """Let go of what all others have posted."""
        self._heard = {key: posted for key, posted in self._heard.items() if key[0] in names}
        self._boards = {name: known for name, known in self._boards.items() if name in names}

    def hear(self, name: str, phase: int, posted: Posted) -> None:
        """Take in a record that came in a message."""
        self._heard[name, phase] = posted

    def heard(self, name: str, phase: int) -> Posted | None:
        """Return the record that came last in a message."""
        return self._heard.get((name, phase))

    def on_board(self, name: str, phase: int) -> Posted | None:
        """Return the record that stands on a peer's board."""
        life = self._contacts.incarnation(name)
        known = self._boards.get(name)
        if known is None or known[0] != life:
            known = self._contacts.board_of(name, self._tag)
            if known is None:
                return None
            self._boards[name] = known
        return known[1].read(phase)

    def life_of_board(self, name: str) -> bytes:
        """Return whose board `on_board` reads."""
        return self._boards[name][0] if name in self._boards else b""
