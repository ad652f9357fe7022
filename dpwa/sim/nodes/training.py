"""What an adapter does for a module, for the numbers of one simulated node.

To copy and to check a hundred megabytes at each step of each node would take minutes. So a snapshot
has fewer bytes, but goes in as many pieces, and each counts on the wire as what it stands for
(`ScaledSnapshots`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpwa.algorithms import Values
from dpwa.connection import DpwaConnection
from dpwa.data.arrays import is_finite
from dpwa.data.layout import Layout, Piece, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import FinishedCopy
from dpwa.node.arrival import Arrival, FetchTerms
from dpwa.policy.clipping import ClipRadius
from dpwa.policy.consensus_control import ConsensusControl
from dpwa.sim.conditions import Conditions
from dpwa.sim.rules.participant import ArrayValues
from dpwa.sim.scenario import RunSpec
from dpwa.state.target import Target, values_of, values_part
from dpwa.wire import limits

Floats = NDArray[np.float64]


class ArrivedValues:
    """`dpwa.algorithms.Received`: a snapshot that has come, to be merged into `model`."""

    def __init__(
        self, arrival: Arrival, model: ArrayValues, clip: ClipRadius | None = None
    ) -> None:
        self.peer = arrival.peer
        self.standing = arrival.progress
        self.factor = arrival.factor
        self.distance = 0.0
        self._arrival = arrival
        self._model = model
        self._clip = clip
        self._scale: float | None = None
        self._own_copy: ArrayValues | None = None

    @property
    def published(self) -> ArrayValues:
        """What this node has published in the same round, or if it could not, its values."""
        own = self._arrival.published
        if own is not None:
            return ArrayValues(_values(own.data, self._model.array.size))
        if self._own_copy is None:
            self._own_copy = self._model.clone()
        return self._own_copy

    def merge(self, factor: float, *, delta: bool = False, buffers: float | None = None) -> float:  # noqa: ARG002
        """Merge what came of it, all or a part; return the factor."""
        part, theirs = self._part()
        own = self._model.array[part]
        base = own
        if delta and self._arrival.published is not None:
            base = self.published.array[part]
        step = theirs - base
        self.distance = math.sqrt(float(step @ step))
        scaled = factor * self._scale_of_clip()
        own += scaled * step
        return scaled

    def merge_buffers(self, factor: float) -> None:
        """Do nothing: there are no buffers."""

    def values(self, into: Values | None = None) -> ArrayValues:
        _, theirs = self._part()
        self.distance = float(np.linalg.norm(theirs - self._model.array))
        scale = self._scale_of_clip()
        taken = theirs if scale == 1.0 else self._model.array + scale * (theirs - self._model.array)
        if isinstance(into, ArrayValues):
            into.array[...] = taken
            return into
        return ArrayValues(taken.copy())

    def _scale_of_clip(self) -> float:
        """Return by how much the merge is shortened, from 0 to 1."""
        if self._clip is None:
            return 1.0
        if self._scale is None:
            self._scale = self._clip.scale(
                float(np.linalg.norm(self._part()[1] - self.published.array))
            )
        return self._scale

    def _part(self) -> tuple[slice, Floats]:
        """Return which of the values came, and what they are; what fills up is left out."""
        start, size = self._arrival.start // VALUE_BYTES, self._model.array.size
        theirs = _values(self._arrival.data, max(0, size - start))
        return slice(start, start + theirs.size), theirs


class ArrayTraining:
    """Gossip of the values `x`, shape (D,), of one node, whatever its algorithm."""

    def __init__(self, connection: DpwaConnection, x: Floats, scaled: ScaledSnapshots) -> None:
        config = connection.node.config
        self.rounds = connection.node.rounds
        self._states = connection.states
        self._values = ArrayValues(x)
        self._scaled = scaled
        self._layout = scaled.layout
        check = is_finite if config.guard == "finite" else None
        self._terms = FetchTerms(config.fraction, check)
        self._algorithm = self.rounds.algorithm
        self.rounds.merger.knows_beginners = True
        self.rounds.guard_transactions(check)
        self._clip: ClipRadius | None = None
        self._control: ConsensusControl | None = None
        if config.robust != "none" or config.consensus_control > 0.0:
            from dpwa.adapters.merge import clip_of, control_of  # brings torch

            self._clip, self._control = clip_of(config), control_of(config)
        self._distance = 0.0
        self._has_sent = False

    def take_over(self) -> bool:
        """Begin where peers have come to, if they train already; return whether they do."""
        image = Target("values", self._layout, None, limits.MAX_UNSTRUCTURED_BYTES, self._load)
        return self._states.start(image) is not None

    def send(self, loss: float | None) -> None:
        """Publish, and begin a fetch; as `DpwaPyTorchAdapter.update_send`."""
        rounds = self.rounds
        rounds.begin(loss)
        self._publish_and_ask()
        self._has_sent = True
        self._states.copy_if_due(self._capture)

    def _publish_and_ask(self) -> None:
        rounds, view = self.rounds, self.rounds.view
        view.model = self._values
        values, is_published = self._algorithm.publishes(view), True
        if isinstance(values, ArrayValues):
            write = partial(self._write, values)
            is_published = rounds.publish(self._layout, self._scaled.nbytes, write)
        ask = self._algorithm.asks(view)
        may_ask = is_published or values is view.model
        rounds.ask(ask if may_ask else None, self._layout, self._terms)

    def wait(self, loss: float | None) -> None:
        """Wait for the fetch, and merge; as `DpwaPyTorchAdapter.update_wait`."""
        if self._has_sent:
            self._algorithm.after_step(self.rounds.view)
            self._has_sent = False
        arrival = self.rounds.wait(loss, self._merge)
        if arrival is not None and self._control is not None:
            self._mix_more(self._control)
        for ask in self._algorithm.more:
            self.rounds.ask_anew(ask, self._layout, self._terms)
            self.rounds.wait(None, self._merge)
        self._states.copy_if_due(self._capture, saves=False)

    def _write(self, values: ArrayValues, slot: ByteArray) -> FinishedCopy:
        self._scaled.fill(slot.view(DTYPE), values.array)
        check, nbytes = self._terms.is_finite, values.array.size * VALUE_BYTES
        return FinishedCopy(None if check is None else check(slot[:nbytes], DTYPE, 0))

    def _mix_more(self, control: ConsensusControl) -> None:
        """Gossip again at once, as long as the nodes are too far apart."""
        rounds = 0
        while control.wants_more(self._distance, rounds):
            rounds += 1
            self._publish_and_ask()
            if self.rounds.wait(None, self._merge_more) is None:
                return

    def _merge(self, arrival: Arrival) -> float:
        own = arrival.published
        if self._control is not None and own is not None:
            array = self._values.array
            step = array - _values(own.data, array.size)
            self._control.observed(float(np.linalg.norm(step)))
        return self._merge_more(arrival)

    def _merge_more(self, arrival: Arrival) -> float:
        received = ArrivedValues(arrival, self._values, self._clip)
        if arrival.takes_over:
            factor = received.merge(1.0)
            self._algorithm = self.rounds.renew_algorithm()
        else:
            factor = self._algorithm.merge(self.rounds.view, received)
        self._distance = self.rounds.figures.consensus_distance = received.distance
        return factor

    def _capture(self) -> dict[str, Any]:
        return dict(values_part(self._layout, self._image()))

    def _image(self) -> Singles:
        image = np.empty(self._scaled.elements, np.float32)
        self._scaled.fill(image, self._values.array)
        return image

    def _load(self, image: ByteArray, numbers: bytes) -> None:
        found = values_of(image, numbers)
        if isinstance(found, np.ndarray):
            self._values.array[...] = found[: self._values.array.size]


def _values(data: ByteArray, count: int) -> Floats:
    """Return the first values of a snapshot, or of a part of one."""
    return data.view(np.float32)[:count].astype(np.float64)


DTYPE = "float32"  # as models have it: codecs make of it what they make of models
VALUE_BYTES = 4

ENOUGH_BYTES = 512 * 1024  # of a snapshot, if its pieces are not too small by then
SMALL_PIECE_BYTES = 16 * 1024  # below that, `topk` sends more than its share
MOST_BYTES = 4 * 1024 * 1024  # of a snapshot, if its pieces are not tiny by then
TINY_PIECE_BYTES = 1024  # a block of `int8`
FEWEST_PIECES = 4  # of a snapshot in larger pieces
ROUND_TRIPS = 1.2  # that what is granted at once lasts for, if no sender ever waits for more

Singles = NDArray[np.float32]


@dataclass(frozen=True)
class ScaledLayout(Layout):
    """The layout of a snapshot that is cut into as many pieces as the one that it stands for."""

    most_piece_bytes: int = limits.CHUNK_BYTES  # of a piece, whatever a fetch asks for

    def pieces(self, nbytes: int, piece_bytes: int) -> tuple[Piece, ...]:
        return super().pieces(nbytes, min(piece_bytes, self.most_piece_bytes))


@dataclass(frozen=True)
class ScaledSnapshots:
    """What the snapshots of a run are like."""

    layout: ScaledLayout
    elements: int  # how many values a snapshot has
    scale: float  # how many bytes on the wire each of its bytes stands for
    real_bytes: float  # of what it stands for

    @classmethod
    def of(cls, spec: RunSpec, conditions: Conditions, dimension: int) -> ScaledSnapshots:
        real = (spec.scenario.model_mb or 0.0) * 1e6 or float(dimension * VALUE_BYTES)
        # It has all the task's values, and as many shards as there are to be.
        least = max(dimension * VALUE_BYTES, limits.MIN_CHUNK_BYTES / spec.config.fraction)
        real_piece = limits.CHUNK_BYTES * _pieces_in_one(spec, conditions, real)
        piece_bytes = limits.CHUNK_BYTES
        while not _is_small(real * piece_bytes / real_piece, piece_bytes):
            if real * piece_bytes / real_piece < 2.0 * least:
                break
            piece_bytes //= 2
        scale = real_piece / piece_bytes
        elements = max(dimension, math.ceil(real / scale / VALUE_BYTES))
        return cls(_layout(elements, piece_bytes), elements, scale, real)

    @property
    def nbytes(self) -> int:
        return self.elements * VALUE_BYTES

    def fill(self, room: Singles, values: Floats) -> None:
        """Write a snapshot: the values again and again, as codecs choose by what changes."""
        size = values.size
        copies = room.size // size
        with np.errstate(over="ignore"):  # as in a model: what is too large is infinite
            room[:size] = values
        room[size : copies * size].reshape(-1, size)[...] = room[:size]
        room[copies * size :] = room[: room.size - copies * size]


def _is_small(nbytes: float, piece_bytes: int) -> bool:
    """Tell whether a snapshot is small enough, or its pieces are too small already."""
    if piece_bytes <= TINY_PIECE_BYTES:
        return True
    return nbytes <= (ENOUGH_BYTES if piece_bytes > SMALL_PIECE_BYTES else MOST_BYTES)


def _pieces_in_one(spec: RunSpec, conditions: Conditions, nbytes: float) -> int:
    """Return how many pieces of a real snapshot go as one: each takes time to simulate.

    It is one, unless all go alike in larger pieces: no sender ever stands still for want of credit,
    since what is granted at once keeps the fastest link busy until more is; none has to keep to its
    upload; no piece is lost; and fetches are of all pieces.
    """
    network, config = spec.scenario.network, spec.config
    if config.fraction < 1.0 or config.max_upload_mbps is not None or network.loss:
        return 1
    rate = min(conditions.link_bytes_per_s, conditions.download_bytes_per_s)
    round_trip_s = 2.0 * (conditions.longest_latency_s + network.jitter_ms / 1000.0)
    if ROUND_TRIPS * round_trip_s * rate > limits.GRANTED_CHUNKS * _payload_bytes(spec, nbytes):
        return 1
    return max(1, math.ceil(nbytes / limits.CHUNK_BYTES) // FEWEST_PIECES)


def _payload_bytes(spec: RunSpec, nbytes: float) -> float:
    """Return what the codec makes of a piece of a snapshot of so many bytes."""
    config = spec.config
    if config.codec == "none":
        return limits.CHUNK_BYTES
    from dpwa.node.assembly import codec_of  # brings torch
    from dpwa.plan.payloads import Payloads

    layout = _layout(math.ceil(nbytes / VALUE_BYTES))
    work = Payloads(layout, partial(codec_of, config)).fetch(config.codec, 1.0)
    return work.nbytes / work.pieces


def _layout(elements: int, most_piece_bytes: int = limits.CHUNK_BYTES) -> ScaledLayout:
    tensor = TensorSpec("parameters", DTYPE, (elements,), VALUE_BYTES)
    return ScaledLayout((tensor,), most_piece_bytes=most_piece_bytes)
