"""ReliableChannels sends messages between members in order, and repeats lost messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import Group
from dpwa.errors import ProtocolError
from dpwa.policy import ballots
from dpwa.policy.group_views import GroupView
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.messages import Message
from dpwa.wire.tables import FromMember, InPieces, Numbered, TableElsewhere, TableSeen

WINDOW = 32  # maximum number of unacknowledged messages, half the capacity of the queue
ACKNOWLEDGE_AFTER_S = 0.05  # or after half a window
RESEND_AFTER_S = 0.25
LONGEST_RESEND_S = 1.0

Send = Callable[[Any, Frame | None], None]  # sends a message


@dataclass(frozen=True)
class Item:
    """A message that `OutgoingStream` sends to a member."""

    kind: type[Numbered]
    # the message's own fields, without the fields of its header and of its pieces
    fields: dict[str, Any] = field(default_factory=dict)
    data: Frame | None = None  # divided into pieces if the kind of message allows it
    # called when the member has acknowledged the message, unless it is divided into pieces
    seen: Callable[[], None] | None = None

    def pieces(self) -> Iterator[tuple[dict[str, Any], Frame | None]]:
        if not issubclass(self.kind, InPieces):
            yield self.fields, self.data
            return
        data = memoryview(self.data or b"")
        for start in range(0, max(len(data), 1), limits.MAX_PUSH_BYTES):
            place = {"start": start, "nbytes": len(data)}
            yield {**self.fields, **place}, data[start : start + limits.MAX_PUSH_BYTES]


class OutgoingStream:
    """Sends numbered messages to one member of a view. Resends messages that `send` has lost."""

    def __init__(self, header: dict[str, Any], send: Send) -> None:
        self._header = header
        self._send = send
        self._sources: deque[Iterator[Item]] = deque()
        self._pieces: Iterator[tuple[dict[str, Any], Frame | None]] = iter(())
        self._item = Item(Numbered)
        self._unseen: deque[tuple[Numbered, Frame | None, Callable[[], None] | None]] = deque()
        self._number = 0
        self._seen_at = self._resent_at = 0.0
        self._patience_s = RESEND_AFTER_S

    def queue_items(self, items: Iterable[Item]) -> None:
        """Send messages in order. The iterator is read when few messages are unacknowledged."""
        self._sources.append(iter(items))

    def pump(self, now: float) -> None:
        """Send messages until `WINDOW` are unacknowledged. Resend those that are late."""
        while self._sources and len(self._unseen) < WINDOW:
            piece = self._next()
            if piece is None:
                break
            if not self._unseen:
                self._seen_at = self._resent_at = now
            self._number += 1
            fields, data = piece
            message = self._item.kind(**{**self._header, **fields, "number": self._number})
            self._unseen.append((message, data, self._item.seen))
            self._send(message, data)
        if self._unseen and now - self._resent_at >= self._patience_s:
            self._patience_s = min(2 * self._patience_s, LONGEST_RESEND_S)
            self.resend(now)

    def resend(self, now: float) -> None:
        self._resent_at = now
        for message, data, _ in self._unseen:
            self._send(message, data)

    def seen(self, number: int, now: float) -> None:
        """Record that the member has received all messages up to `number`."""
        while self._unseen and self._unseen[0][0].number <= number:
            *_, then = self._unseen.popleft()
            self._seen_at = self._resent_at = now
            self._patience_s = RESEND_AFTER_S
            if then is not None:
                then()

    def note_alive(self, now: float) -> None:
        """Record that the member is alive, even if it has not acknowledged a message."""
        self._seen_at = now

    def stalled_s(self, now: float) -> float:
        """Return the seconds of the member's silence, or 0 if it acknowledged all messages."""
        return now - self._seen_at if self._unseen else 0.0

    @property
    def is_busy(self) -> bool:
        return bool(self._unseen or self._sources)

    def _next(self) -> tuple[dict[str, Any], Frame | None] | None:
        while True:
            piece = next(self._pieces, None)
            if piece is not None:
                return piece
            item = self._next_item()
            if item is None:
                return None
            self._item, self._pieces = item, item.pieces()

    def _next_item(self) -> Item | None:
        while self._sources:
            item = next(self._sources[0], None)
            if item is not None:
                return item
            self._sources.popleft()
        return None


class IncomingStream:
    """Receives the numbered messages of one member in order, within one membership view."""

    def __init__(self) -> None:
        self.last = 0  # number of the message that was accepted last
        self.wants = False
        self.owed = 0  # messages since the last acknowledgement
        self._owed_since = 0.0
        self._needs_none_after = -1  # `last` when the next message came, or was requested
        self._data = bytearray()

    def is_next(self, number: int, now: float) -> bool:
        """Return whether message `number` is the next in order. Request missing messages before it.

        Missing messages are requested once. If that fails, the sender sends them again after a
        while. Messages that arrived and cannot be accepted yet are not requested. Otherwise all
        later messages would arrive again and again, each time with more answers that request them.
        """
        if not self.owed:
            self._owed_since = now
        self.owed += 1
        if number > self.last and self._needs_none_after != self.last:
            self._needs_none_after = self.last
            self.wants |= number > self.last + 1
        return number == self.last + 1

    def must_acknowledge(self, now: float) -> bool:
        """Return whether to acknowledge messages now. Otherwise, one message acknowledges more."""
        is_late = self.owed > 0 and now - self._owed_since >= ACKNOWLEDGE_AFTER_S
        return self.wants or self.owed >= WINDOW // 2 or is_late

    def accept_message(self, message: Numbered, payload: Frame, most_bytes: int) -> Frame | None:
        """Accept the next message. Return the whole message after its last piece, otherwise `None`.

        Raises ProtocolError for more than `most_bytes` bytes, or pieces that do not fit together.
        """
        if not isinstance(message, InPieces):
            self.last = message.number
            return payload
        if message.start == 0:
            self._data = bytearray()
        stop = message.start + len(payload)
        if message.start != len(self._data) or not stop <= message.nbytes <= most_bytes:
            self.last = message.number  # the message would be refused again
            raise ProtocolError(
                f"{type(message).__name__}: expected a piece from byte {len(self._data)}, and a "
                f"message of at most {most_bytes} bytes (got bytes {message.start} to {stop} of "
                f"{message.nbytes})"
            )
        if message.start == 0 and stop == message.nbytes:
            self.last = message.number
            return payload
        self._data += payload  # if memory for it is missing, the piece will be sent again
        self.last = message.number
        return None if stop < message.nbytes else self._data


UNREACHABLE_S = 0.3  # time without a connection until a member is suspected
TELL_ELSEWHERE_S = 0.05  # minimum time between two `TableElsewhere` messages to a member

Tell = Callable[[str, Message, Frame | None], None]


class ReliableChannels:
    """Exchanges ordered messages with all other members of this node's membership view."""

    def __init__(self, group: Group, contacts: Contacts, tell: Tell) -> None:
        self._group = group
        self._contacts = contacts
        self._own = contacts.own
        self._tell = tell
        self._out: dict[str, OutgoingStream] = {}
        self._in: dict[str, IncomingStream] = {}
        self._missing_since: dict[str, float] = {}
        self._heard: set[str] = set()
        self._wanted_at = 0.0
        self._elsewhere_at: float | None = None
        self._told_elsewhere: dict[str, float] = {}
        self.view: GroupView = group.view
        self.now = 0.0

    def begin_view(self, view: GroupView) -> None:
        """Change to a new membership view, and drop all messages of the old view."""
        self.view = view
        header = {"request": 0, **self._signed}
        others = [name for name in view.names if name != self._own.name]
        self._in = {name: IncomingStream() for name in others}
        self._out = {name: OutgoingStream(header, partial(self._tell, name)) for name in others}
        self._missing_since, self._elsewhere_at, self._wanted_at = {}, None, self.now
        self._heard = set()

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(self._out)

    # Sending

    def say(self, name: str, item: Item) -> None:
        outgoing = self._out.get(name)
        if outgoing is not None:
            outgoing.queue_items([item])
            outgoing.pump(self.now)

    def say_to_all(self, item: Item) -> None:
        for name in self._out:
            self.say(name, item)

    def stream(self, name: str) -> OutgoingStream | None:
        """Return the stream of messages to a node, or `None` if the node is not a member."""
        return self._out.get(name)

    def to_self(self, item: Item) -> Numbered:
        fields = {"request": 0, **self._signed, **item.fields, "number": 0}
        if "start" in item.kind.model_fields:
            fields |= {"start": 0, "nbytes": 0}
        return item.kind(**fields)

    def link_changed(self, name: str) -> None:
        """Resend unacknowledged messages if the member is connected. Restart its `stalled_s`."""
        outgoing = self._out.get(name)
        if outgoing is not None and self._contacts.is_up(name):
            outgoing.note_alive(self.now)
            outgoing.resend(self.now)

    def want_all(self) -> None:
        """Ask all members to resend messages. This node could not accept these messages before."""
        for incoming in self._in.values():
            incoming.wants = True

    def want_in_vain(self) -> None:
        """Ask all members to resend messages if the last request is `ballots.STALLED_S` old.

        A member that has continued without this node then reports that its view differs. Otherwise
        this node would not notice the difference if all of its own messages had arrived.
        """
        if self.now - self._wanted_at >= ballots.STALLED_S:
            self._wanted_at = self.now
            self.want_all()

    def pump(self) -> bool:
        """Send messages and due acknowledgements. Return whether any acknowledgement is missing."""
        is_busy = False
        for name, incoming in self._in.items():
            if incoming.must_acknowledge(self.now):
                seen = TableSeen(
                    request=0, **self._signed, number=incoming.last, wants=incoming.wants
                )
                incoming.owed, incoming.wants = 0, False
                self._tell(name, seen, None)
            is_busy |= incoming.owed > 0
        for outgoing in self._out.values():
            outgoing.pump(self.now)
            is_busy |= outgoing.is_busy
        return is_busy

    @property
    def is_in_doubt(self) -> bool:
        """Whether a member has no connection, or has reported a different membership view."""
        return bool(self._missing_since) or self._elsewhere_at is not None

    # Receiving

    def admit(self, message: FromMember) -> IncomingStream | None:
        """Receive a message. Return the sender's stream if it is the stream's next message."""
        if isinstance(message, TableElsewhere):
            if message.view == self.view.identity and self._elsewhere_at is None:
                self._elsewhere_at = self.now
            return None
        if not self._is_of_view(message):
            self._tell_elsewhere(message)
            return None
        if message.name in self._out:
            self._heard.add(message.name)
            self._out[message.name].note_alive(self.now)
        if isinstance(message, TableSeen):
            self._seen(message)
        elif isinstance(message, Numbered):
            incoming = self._in.get(message.name)
            if incoming is not None and incoming.is_next(message.number, self.now):
                return incoming
        return None

    def _is_of_view(self, message: FromMember) -> bool:
        return message.view == self.view.identity and self._group.is_member(
            message.name, message.incarnation
        )

    def _seen(self, message: TableSeen) -> None:
        outgoing = self._out.get(message.name)
        if outgoing is not None:
            outgoing.seen(message.number, self.now)
            if message.wants:
                outgoing.resend(self.now)

    def _tell_elsewhere(self, message: FromMember) -> None:
        name, last = message.name, self._told_elsewhere.get(message.name, -TELL_ELSEWHERE_S)
        is_known = name in self._group.others
        waits = isinstance(message, Numbered) or (isinstance(message, TableSeen) and message.wants)
        if is_known and self.now - last >= TELL_ELSEWHERE_S and waits:
            self._told_elsewhere[name] = self.now
            fields = {"request": 0, **self._signed, "view": message.view}
            self._tell(name, TableElsewhere(**fields), None)

    # Suspicion

    def is_elsewhere(self) -> bool:
        """Return whether a member reported a different membership view over `UNREACHABLE_S` ago."""
        if self._elsewhere_at is None or self.now - self._elsewhere_at <= UNREACHABLE_S:
            return False
        self._elsewhere_at = None
        return True

    def has_silent_members(self, unreachable_s: float) -> bool:
        """Return whether a member has not answered, or has had no connection, for too long."""
        return any(self._is_silent(name, unreachable_s) for name in self._out)

    def _is_silent(self, name: str, unreachable_s: float) -> bool:
        """Return whether a member has not answered, or has had no connection, for too long.

        If a member is gone, its shards must be copied while other members still have copies. A
        member that was never reached may be new, so both nodes need a while to connect.
        """
        missing_s = self._missing_s(name)
        if missing_s is None:
            return self._out[name].stalled_s(self.now) > ballots.STALLED_S
        return missing_s > (unreachable_s if name in self._group.lost() else ballots.STALLED_S)

    def lost(self, unreachable_s: float) -> set[str]:
        """Return the members whose connection broke more than `unreachable_s` seconds ago."""
        lost = self._group.lost()
        return {
            n for n in self._heard.intersection(lost) if (self._missing_s(n) or 0.0) > unreachable_s
        }

    def _missing_s(self, name: str) -> float | None:
        """Return the seconds for which a member has had no connection, or `None` if connected."""
        if self._contacts.is_up(name):
            self._missing_since.pop(name, None)
            return None
        return self.now - self._missing_since.setdefault(name, self.now)

    @property
    def _signed(self) -> dict[str, Any]:
        own, view = self._own, self.view.identity
        return {"name": own.name, "incarnation": own.incarnation, "view": view}
