"""ViewProgress: the members of a view as they were let in, and how far each has come."""

from __future__ import annotations

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group_sender import Key
from dpwa.collectives.phase_records import ENTERED, READY, PhaseRecords
from dpwa.data.boards import Posted
from dpwa.policy.groups.views import GroupView, ViewRank


class ViewProgress:
    """The members of one view, and what they have posted; used under the lock of its group.

    Args:
        view: the first one.
        contacts: of this node.
        records: of the group.

    Attributes:
        view: who takes part.
        number: of the collective that comes next, or is under way.
        has_entered, is_ready: how far this node has come in it.
        work: how much was done for what stands on views and calls no collectives.
    """

    def __init__(self, view: GroupView, contacts: Contacts, records: PhaseRecords) -> None:
        self.view = view
        self.number = 0
        self.has_entered = self.is_ready = False
        self.work = 0
        self._own = contacts.own.name
        self._contacts = contacts
        self._records = records
        self._lives: dict[str, bytes] = {}  # of members whose life the view does not name
        self._posted: dict[int, bytes] = {}  # this node's records, by phase

    def begin(self, view: GroupView, number: int) -> None:
        """Go on to another collective, perhaps of another view."""
        if view != self.view:
            self._lives = {name: life for name, life in self._lives.items() if name in view.names}
            self._records.keep(view.names)
        self.view, self.number = view, number
        self.withdraw()

    def withdraw(self) -> None:
        """Take no part in the collective, as far as this node can."""
        self.has_entered = self.is_ready = False
        self._posted = {}

    @property
    def key(self) -> Key:
        """Which collective it is."""
        return self.view.identity, self.number

    @property
    def rank(self) -> ViewRank:
        """What counts of the view when it meets another."""
        size = len(self.view.names)
        # Only who is alone counts its work: members would not count the same.
        ended = self.number + (self.work if size == 1 else 0)
        return ViewRank(size, ended, self.view.names[0])

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the other members, in order of rank."""
        return tuple(name for name in self.view.names if name != self._own)

    # Lives

    def life_of(self, name: str) -> bytes:
        """Return which life of a node is a member; empty as long as it is not known."""
        return self.view.incarnation_of(name) or self._lives.get(name, b"")

    def lives(self) -> dict[str, bytes]:
        """Return those of all members, by name."""
        return {name: self.life_of(name) for name in self.view.names}

    def knows(self, name: str, incarnation: bytes) -> bool:
        """Tell whether this life of a node is a member; the first one that speaks is."""
        if name not in self.view.names:
            return False
        return (self.life_of(name) or self._lives.setdefault(name, incarnation)) == incarnation

    def gone(self) -> tuple[str, ...]:
        """Return which members were there, and are not any more."""
        return tuple(name for name in self.others if self._is_gone(name))

    # Records

    def post(self, phase: int, record: bytes) -> None:
        """Say how far this node has come."""
        self._posted[phase] = record
        self._records.post(self.view.names, self.key, phase, record)

    def repeat(self, peer: str) -> None:
        """Say it again to one member."""
        if self.has_entered and peer in self.view.names:
            for phase, record in self._posted.items():
                self._records.repeat(peer, self.key, phase, record)

    def records(self, phase: int) -> dict[str, bytes]:
        """Return what members have posted of the collective, by name; this node's too."""
        own = self._posted.get(phase)
        found = {} if own is None else {self._own: own}
        for name in self.others:
            record = self._record(name, phase)
            if record is not None:
                found[name] = record
        return found

    def is_missing(self, name: str) -> bool:
        """Tell whether a member is gone, or in a collective that comes after this one.

        On its board, what it said of this one can be read for as long as it is not ready in that.
        If it has sent word, somebody else has stopped before its own was sent to this node, too.
        """
        if self._is_gone(name):
            return True
        heard = self._records.heard(name, ENTERED)
        if heard is not None and heard.view == self.view.identity and heard.number > self.number:
            return True
        posted = self._on_board(name, READY)
        return posted is not None and posted.number > self.number

    def _is_gone(self, name: str) -> bool:
        return self._contacts.is_gone(name, self.life_of(name))

    def _record(self, name: str, phase: int) -> bytes | None:
        for posted in (self._records.heard(name, phase), self._on_board(name, phase)):
            if posted and (posted.view, posted.number) == self.key:
                return posted.record
        return None

    def _on_board(self, name: str, phase: int) -> Posted | None:
        posted = self._records.on_board(name, phase)
        is_member = posted is not None and self.knows(name, self._records.life_of_board(name))
        return posted if is_member else None
