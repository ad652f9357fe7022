"""A donor's service, which sends its state to joining nodes, on its answering thread (RxThread)."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from dpwa import fault_points
from dpwa.clock import Clock
from dpwa.data.checksum import checksum
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.node.serving.service import Reply, Service
from dpwa.node.serving.upload import Upload
from dpwa.state.safetensors_image import State, StatePart
from dpwa.types import TrainingProgress
from dpwa.wire import limits
from dpwa.wire.messages import pack_layout
from dpwa.wire.state import (
    AskPiece,
    AskState,
    OtherState,
    StateBusy,
    StateDone,
    StateGone,
    StateOffer,
    StatePiece,
    StateStanding,
)

HOLD_S = 10.0  # time after which an unused copy is freed
FRESH_S = 30.0  # maximum age of a copy for a new joining node
NEW_S = 2.0  # a copy of this age is always shared, by nodes that ask at about the same time
FRESH = 0.95  # minimum clock of an older copy, as a share of this node's clock


@dataclass
class DonorSnapshot:
    """A copy of the state, which joining nodes fetch."""

    state: State
    taken: float  # the time of the copy
    asked: float  # the time of the last request for it
    piece_bytes: int = limits.CHUNK_BYTES  # the size of each piece but the last
    # identifies the copy in requests; equal copies have the same token on all nodes
    token: bytes = field(init=False)

    def __post_init__(self) -> None:
        self._checksums = {name: [*self._sums(part)] for name, part in self.state.parts.items()}
        parts = [(n, p.numbers, self._checksums[n]) for n, p in self.state.parts.items()]
        what = repr((self.state.updates, parts))
        digest = hashlib.blake2b(what.encode(), digest_size=limits.STATE_TOKEN_BYTES)
        self.token = digest.digest()

    def piece(self, part: str, index: int) -> tuple[ByteArray, int] | None:
        """Return a piece and its checksum, or `None` if the piece does not exist."""
        checksums = self._checksums.get(part, [])
        if index >= len(checksums):
            return None
        image = self.state.parts[part].image
        return image[index * self.piece_bytes :][: self.piece_bytes], checksums[index]

    def _sums(self, part: StatePart) -> Iterator[int]:
        for start in range(0, part.image.nbytes, self.piece_bytes):
            yield checksum(part.image[start : start + self.piece_bytes])


FORGOTTEN_AFTER_S = 3.0  # time without a request until a joining node loses its place
RETRY_AFTER_S = 0.5

_NO_KIND = Layout(())


class StateService(Service):
    """Offers this node's state to a few joining nodes at once, and sends the state in pieces.

    The training thread makes the copy when the first node asks. All joining nodes share it. The
    service holds at most one copy.
    """

    handles = (AskState, AskPiece, StateDone)

    def __init__(
        self,
        clock: Clock,
        progress: Callable[[], TrainingProgress],  # returns this node's clock and loss
        most_joiners: int,
        upload: Upload,
        piece_bytes: int = limits.CHUNK_BYTES,
    ) -> None:
        self.is_wanted = False  # whether the training thread must make a copy at its next update
        self.kinds: Mapping[str, Layout] = {}  # the kind of each part of the state
        self.copies = 0  # the number of copies made so far
        self._lock = threading.RLock()
        self._copy: DonorSnapshot | None = None
        self._piece_bytes = piece_bytes
        self._upload = upload
        self._clock = clock
        self._progress = progress
        self._most_joiners = most_joiners
        self._joiners: dict[bytes, float] = {}  # by connection: the time of its last request
        self._waiting: deque[tuple[bytes, AskPiece, Reply]] = deque(maxlen=limits.MAX_STATE_WAITING)
        self.served_bytes = 0

    # On the training thread

    def replace_copy(self, state: State) -> None:
        """Replace the held copy of the state. Nodes that fetch the old copy must ask again."""
        now = self._clock.now()
        copy = DonorSnapshot(state, now, now, self._piece_bytes)
        with self._lock:
            self.is_wanted = False
            self.copies += 1
            self._copy = copy

    def clear(self) -> None:
        with self._lock:
            self.is_wanted, self._copy = False, None

    @property
    def held_bytes(self) -> int:
        copy = self._copy
        parts = () if copy is None else copy.state.parts.values()
        return sum(part.image.nbytes for part in parts)

    # On the RxThread

    def handle(self, sender: bytes, message: AskState | AskPiece | StateDone, reply: Reply) -> None:
        match message:
            case AskState():
                self._consider(sender, message, reply)
            case AskPiece():
                if sender in self._joiners:
                    self._joiners[sender] = self._clock.now()
                    self._serve(sender, message, self._upload.shared(sender.hex(), reply))
            case StateDone():
                self._forget(sender)

    def tick(self, now: float) -> bool:
        """Retry pieces that could not be sent before, and forget joining nodes that ask no more."""
        late = [s for s, asked in self._joiners.items() if now - asked > FORGOTTEN_AFTER_S]
        for sender in late:
            self._forget(sender)
        for _ in range(len(self._waiting)):
            sender, ask, reply = self._waiting.popleft()
            if sender in self._joiners:
                self._serve(sender, ask, reply)
        with self._lock:
            if self._copy is not None and now - self._copy.asked > HOLD_S:
                self._copy = None
        return bool(self._waiting)

    def _current(self) -> DonorSnapshot | None:
        with self._lock:
            if self._copy is not None:
                self._copy.asked = self._clock.now()
            return self._copy

    def _is_stale(self, copy: DonorSnapshot) -> bool:
        age_s = self._clock.now() - copy.taken
        is_behind = copy.state.clock < FRESH * self._progress().clock
        return age_s > FRESH_S or (is_behind and age_s > NEW_S)

    def _forget(self, sender: bytes) -> None:
        if self._joiners.pop(sender, None) is not None:
            self._upload.forget_reader(sender.hex())

    def _consider(self, sender: bytes, ask: AskState, reply: Reply) -> None:
        is_trained, kinds = self._progress().clock > 0.0, self.kinds
        kind = kinds.get(ask.part, _NO_KIND)
        is_other = kind == _NO_KIND or ask.kind not in (b"", kind.fingerprint)
        if is_trained and kinds and is_other:  # if kinds are unknown, the first copy shows them
            reply(OtherState(request=ask.request), pack_layout(kind))
        elif is_trained and ask.prepares:
            self._prepare(sender, ask, reply)
        else:
            reply(self._standing(ask))

    def _prepare(self, sender: bytes, ask: AskState, reply: Reply) -> None:
        copy = self._current()
        is_fit = copy is not None and (copy.token == ask.token or not self._is_stale(copy))
        others = len(self._joiners) - (sender in self._joiners)
        if others >= self._most_joiners or (copy is not None and others and not is_fit):
            reply(StateBusy(request=ask.request, retry_after_s=RETRY_AFTER_S))
            return
        self._joiners[sender] = self._clock.now()
        fault_points.reached("state.asked")
        if copy is not None and is_fit:
            self._offer(copy, ask, reply)
        else:
            self.is_wanted = True
            reply(self._standing(ask))

    def _offer(self, copy: DonorSnapshot, ask: AskState, reply: Reply) -> None:
        part = copy.state.parts.get(ask.part)
        if part is None:
            reply(OtherState(request=ask.request), pack_layout(_NO_KIND))
            return
        offer = StateOffer(
            request=ask.request,
            token=copy.token,
            nbytes=part.image.nbytes,
            fingerprint=part.layout.fingerprint,
            clock=copy.state.clock,
            updates=copy.state.updates,
        )
        reply(offer, part.numbers)
        fault_points.reached(f"state.offered.{ask.part}")

    def _standing(self, ask: AskState) -> StateStanding:
        progress = self._progress()
        return StateStanding(
            request=ask.request,
            clock=progress.clock,
            is_trained=progress.clock > 0.0,
            is_sound=progress.loss is None or math.isfinite(progress.loss),
        )

    def _serve(self, sender: bytes, ask: AskPiece, reply: Reply) -> None:
        copy = self._current()
        found = copy.piece(ask.part, ask.index) if copy and copy.token == ask.token else None
        if found is None:
            self._upload.forget_reader(sender.hex())
            reply(StateGone(request=ask.request))
            return
        data, digest = found
        piece = StatePiece.model_construct(request=ask.request, index=ask.index, checksum=digest)
        if reply(piece, data.data, is_lent=True) is None:
            if len(self._waiting) == self._waiting.maxlen:
                self._upload.forget_reader(self._waiting[0][0].hex())  # its piece is dropped
            self._waiting.append((sender, ask, reply))
            return
        self.served_bytes += data.nbytes
        fault_points.reached("state.piece_served")
