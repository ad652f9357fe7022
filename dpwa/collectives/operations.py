"""The operations of collectives: their contributions, exchanges and results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dpwa import fault_points
from dpwa.collectives.call import Call
from dpwa.collectives.entries import (
    INLINE_BYTES,
    Contribution,
    contributors,
    described,
    sound,
)
from dpwa.collectives.exchange import Exchange, PairExchange
from dpwa.collectives.memory import PRIVATE
from dpwa.collectives.objects import PackedObject, unpack_object
from dpwa.collectives.pulling import BROUGHT
from dpwa.data.layout import Piece
from dpwa.data.payload import Payload
from dpwa.data.reduction import check_reducible, reduce_into
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError
from dpwa.wire import limits


class Operation:
    """Base class of what one collective does with this node's value, such as a reduction."""

    def __init__(self, name: str, *, contributes: bool = True) -> None:
        self._name = name
        self._contributes = contributes

    def enter(self, call: Call) -> Contribution:  # noqa: ARG002
        """Copy this node's value to where members read it, and return the value's description."""
        return Contribution(self._name, self._contributes)

    def exchange(self, call: Call) -> None:
        """Read all data for the result from the other members, unless the collective ends first.

        The value of this node stays unchanged, or `undo` restores it.
        """

    def undo(self) -> None:
        """Restore the value of this node, because the collective has failed."""

    def complete(self) -> None:
        """Store the result, because the collective has succeeded."""


class Reduce(Operation):
    """An all_reduce, or a broadcast. A broadcast is a reduction of only the `root`'s value.

    All members must have the same `label`, but their `digest` may differ. If `leaves_out()` returns
    true, a value that is not finite is left out, unless no value is finite. The member whose value
    was left out gets the result of the others.
    """

    def __init__(
        self,
        payload: Payload,
        op: str,
        root: str | None = None,
        label: str = "",
        leaves_out: Callable[[], bool] | None = None,
        digest: bytes = b"",
    ) -> None:
        if root is None:
            check_reducible(payload.layout, op)
        self._payload = payload
        self._op = op
        self._root = root
        name = f"all_reduce {op}" if root is None else f"broadcast from {root}"
        super().__init__(f"{name} {label}" if label else name)
        self._leaves_out = leaves_out
        self._is_finite = True  # false if a checked part of the value is not finite
        self._digest = digest
        self.digests: dict[str, bytes] = {}  # the digests of all contributors, by name
        self.left_out: tuple[str, ...] = ()  # the members whose values were left out
        self._exchange: Exchange | PairExchange | None = None
        self._result: ByteArray | None = None
        self._brought = self._reduced_image = np.empty(0, np.uint8)
        self._own = ""

    def enter(self, call: Call) -> Contribution:
        """Copy the parts of this node's value that the other members will read."""
        payload, layout = self._payload, self._payload.layout
        self._exchange = self._result = None  # from an earlier attempt
        self._is_finite, self.left_out = True, ()
        self._own = call.own
        entry = Contribution(
            call=self._name,
            fingerprint=layout.fingerprint,
            leaves=len(layout.tensors),
            descriptions=described(layout),
            nbytes=payload.nbytes,
            root=self._root or "",
            digest=self._digest,
        )
        if payload.nbytes <= INLINE_BYTES:
            inline = self._inline()
            return entry._replace(inline=inline, is_sound=self._is_sound())
        call.settle()
        is_whole = self._root is None and self._is_for_a_pair(call)
        is_read = self._lay_out(call, is_whole=is_whole)
        brought, reduced = (buffer.number if is_read else PRIVATE for buffer in call.memory.buffers)
        buffers = brought, PRIVATE if is_whole else reduced
        is_whole, is_sound = is_whole and brought != PRIVATE, self._is_sound()
        return entry._replace(buffers=buffers, is_whole=is_whole, is_sound=is_sound)

    def exchange(self, call: Call) -> None:
        entries = call.entries
        present = contributors(entries)
        sources = sound(entries) if self._root is None else (self._root,)
        self.digests = {name: entries[name].digest for name in present}
        if self._root is None:
            self.left_out = tuple(name for name in present if name not in sources)
        if self._payload.nbytes <= INLINE_BYTES:
            self._result = self._reduced([entries[name].inline for name in sources])
            return
        if sources == (call.own,) == present:
            return
        if all(entry.is_whole for entry in entries.values()) and len(present) == 2:
            self._exchange_whole(call, sources)
            return
        others = [name for name in present if name != call.own]
        found = {n: call.memory.find(n, entries[n].buffers, entries[n].nbytes) for n in others}
        near = {name: (both[0], both[1]) for name, both in found.items() if both is not None}
        far = [name for name in others if name not in near]
        owners = [name if name in present else "" for name in call.group.view.names]
        if not call.connect(far):
            return
        with call.puller() as puller:
            self._exchange = Exchange(
                own=call.own,
                op=self._op,
                sources=sources,
                shards=call.cut(self._payload, owners),
                near=near,
                payload=self._payload,
                reduced=self._reduced_image,
                puller=puller,
                on_reduced=partial(call.pull_source.reduced, call.group.tag),
            )
            self._exchange.run_exchange(call.look)
        if not call.is_over:
            for name in near:
                call.count_mapped(name, self._exchange.read_from(name))

    def complete(self) -> None:
        if self._root == self._own:
            return
        if self._exchange is not None:
            self._exchange.complete()
        elif self._result is not None:
            self._payload.assign(0, self._payload.nbytes, self._result)

    def undo(self) -> None:
        if self._exchange is not None:
            self._exchange.undo()

    @staticmethod
    def _is_for_a_pair(call: Call) -> bool:
        """Return whether there is one other member, and it has mapped this node's memory."""
        others = call.others
        return len(others) == 1 and call.contacts.reads_us(others[0])

    def _exchange_whole(self, call: Call, sources: tuple[str, ...]) -> None:
        entries = call.entries
        other = next(name for name in entries if name != call.own)
        nbytes, is_last = self._payload.nbytes, list(entries)[-1] == call.own
        found = call.memory.find(other, entries[other].buffers[:1], nbytes)
        if found is None:
            raise ProtocolError(f"the shared memory of {other} cannot be opened")
        theirs = found[0][:nbytes]
        if len(sources) == 2:
            pair = PairExchange(self._payload, self._brought, theirs, self._op, is_last)
            self._exchange = pair
            pair.run_exchange(call.look)
        elif sources == (other,):
            self._result = theirs.copy()  # before the other node is ready, and may change its value
        if not call.is_over:
            call.count_mapped(other, nbytes * (other in sources))

    def _inline(self) -> bytes:
        if self._root not in (None, self._own):
            return b""
        data = np.empty(self._payload.nbytes, np.uint8)
        self._payload.copy_into(0, data.nbytes, data)
        for piece in self._payload.layout.pieces(data.nbytes, INLINE_BYTES):
            self._check(data[piece.start : piece.stop], piece.dtype)
        return data.tobytes()

    def _check(self, data: ByteArray, dtype: str) -> None:
        """Record whether a part of the value is finite, while this part is in the CPU's cache."""
        if self._leaves_out is not None and self._is_finite:
            from dpwa.data.kernels import are_finite  # imports torch

            self._is_finite = are_finite(data, dtype)

    def _is_sound(self) -> bool:
        return self._is_finite or self._leaves_out is None or not self._leaves_out()

    def _reduced(self, values: list[bytes]) -> ByteArray:
        nbytes = self._payload.nbytes
        if any(len(value) != nbytes for value in values):
            raise ProtocolError("a node sent a value of the wrong size")
        first, *others = [np.frombuffer(value, np.uint8) for value in values]
        result: ByteArray = first.copy()
        by = len(values) if self._op == "mean" else 1
        for piece in self._payload.layout.pieces(nbytes, INLINE_BYTES):
            part = slice(piece.start, piece.stop)
            theirs = [other[part] for other in others]
            reduce_into(result[part], theirs, piece.dtype, self._op, by=by)
        return result

    def _lay_out(self, call: Call, *, is_whole: bool) -> bool:
        """Let other members map or pull the value. Return whether any of them can map it.

        This node's own shard is left out, because no other node reads this shard. A pair exchange
        leaves nothing out, because it may have to be undone. If no node maps memory, data are
        pulled directly from the value, which stays unchanged as long as a node needs it.
        """
        names = call.group.view.names  # once: another thread may change the view
        shards = call.cut(self._payload, names)
        own = shards[names.index(call.own)]
        pieces = [
            piece for shard in shards if is_whole or shard is not own for piece in shard.pieces
        ]
        pieces = pieces if self._root in (None, call.own) else []
        if self._leaves_out is not None and not is_whole:
            for piece in own.pieces:
                self._bytes_of(piece, is_read=False)
        is_read = any(map(call.contacts.reads_us, call.others))
        # A pair exchange needs no memory for a shard, unless one of the nodes cannot map memory.
        # The system allocates this memory only when it is written.
        spare = np.empty(own.nbytes if is_whole else 0, np.uint8)
        brought, reduced = call.room(
            self._payload.nbytes if is_read else 0, 0 if is_whole else max(1, own.nbytes)
        )
        self._reduced_image = spare if is_whole else reduced[: own.nbytes]
        if is_read:
            self._brought = brought
        shown = {piece.start: self._bytes_of(piece, is_read=is_read) for piece in pieces}
        fault_points.reached("reduce.laid_out")
        call.show(shown, self._reduced_image, own.start)
        return is_read

    def _bytes_of(self, piece: Piece, *, is_read: bool) -> ByteArray:
        view = None if is_read else self._payload.view(piece.start, piece.stop)
        if view is not None:
            self._check(view, piece.dtype)
            return view
        place = (
            self._brought[piece.start : piece.stop] if is_read else np.empty(piece.nbytes, np.uint8)
        )
        self._payload.copy_into(piece.start, piece.stop, place)
        self._check(place, piece.dtype)
        return place


def _whole(entry: Contribution) -> bytes:
    """Return the value that a member sent in its entry. Raise `ProtocolError` if it is missing."""
    if len(entry.inline) != entry.nbytes:
        raise ProtocolError("a node sent a message without its value")
    return entry.inline


class Gather(Operation):
    """An all_gather of objects.

    Raises:
        ParametersError: the object cannot be sent.
    """

    def __init__(self, value: object) -> None:
        super().__init__("all_gather")
        self._packed = PackedObject(value)
        self._found: dict[str, ByteArray] = {}
        self.values: dict[str, object] = {}

    def enter(self, call: Call) -> Contribution:
        """Copy the packed object to where the other members read it."""
        nbytes = self._packed.nbytes
        if nbytes <= INLINE_BYTES:
            inline = np.empty(nbytes, np.uint8)
            self._packed.copy_into(inline)
            return Contribution(self._name, nbytes=nbytes, inline=inline.tobytes())
        call.settle()
        brought, _ = call.room(nbytes, 0)
        self._packed.copy_into(brought)
        starts = range(0, nbytes, limits.MAX_PULLED_BYTES)
        pieces = {start: brought[start : start + limits.MAX_PULLED_BYTES] for start in starts}
        call.show(pieces, brought[:0])
        return Contribution(
            "all_gather", nbytes=nbytes, buffers=(call.memory.buffers[0].number, PRIVATE)
        )

    def exchange(self, call: Call) -> None:
        entries = call.entries
        far: list[str] = []
        self._found = {}
        for name in contributors(entries):
            entry = entries[name]
            place = self._found[name] = np.empty(entry.nbytes, np.uint8)
            if entry.nbytes <= INLINE_BYTES:
                place[:] = np.frombuffer(_whole(entry), np.uint8)
            elif name == call.own:
                self._packed.copy_into(place)
            else:
                found = call.memory.find(name, entry.buffers[:1], entry.nbytes)
                if found is None:
                    far.append(name)
                else:
                    place[:] = found[0][: entry.nbytes]
                    call.count_mapped(name, entry.nbytes)
        if far and call.connect(far):
            with call.puller() as puller:
                for name in far:
                    puller.request(name, BROUGHT, 0, entries[name].nbytes)
                puller.start()
                for request, data in puller.arrivals(call.look):
                    self._found[request.peer][request.start : request.stop] = data

    def complete(self) -> None:
        self.values = {name: unpack_object(data) for name, data in self._found.items()}
