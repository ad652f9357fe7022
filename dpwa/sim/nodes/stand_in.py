"""StandIn: snapshots of simulated nodes, each byte of which stands for several of a real one.

To copy and to check a hundred megabytes at each step of each node would take minutes. So a snapshot
has fewer bytes, but goes in as many pieces, and each counts on the wire as what it stands for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpwa.data.layout import Layout, Piece, TensorSpec
from dpwa.sim.conditions import Conditions
from dpwa.sim.run_spec import RunSpec
from dpwa.wire import limits

DTYPE = "float32"  # as models have it: codecs make of it what they make of models
VALUE_BYTES = 4

ENOUGH_BYTES = 512 * 1024  # of a snapshot, if its pieces are not too small by then
SMALL_PIECE_BYTES = 16 * 1024  # below that, `topk` sends more than its share
MOST_BYTES = 4 * 1024 * 1024  # of a snapshot, if its pieces are not tiny by then
TINY_PIECE_BYTES = 1024  # a block of `int8`
FEWEST_PIECES = 4  # of a snapshot in larger pieces
ROUND_TRIPS = 1.2  # that what is granted at once lasts for, if no sender ever waits for more

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


@dataclass(frozen=True)
class StandInLayout(Layout):
    """The layout of a snapshot that is cut into as many pieces as the one that it stands for.

    Attributes:
        most_piece_bytes: of a piece, whatever a fetch asks for.
    """

    most_piece_bytes: int = limits.CHUNK_BYTES

    def pieces(self, nbytes: int, piece_bytes: int) -> tuple[Piece, ...]:
        """Cut a snapshot into pieces, at both ends alike; see `Layout.pieces`."""
        return super().pieces(nbytes, min(piece_bytes, self.most_piece_bytes))


@dataclass(frozen=True)
class StandIn:
    """What the snapshots of a run are like.

    Attributes:
        layout: of a snapshot.
        elements: how many values it has.
        scale: how many bytes on the wire each of its bytes stands for.
        real_bytes: of what it stands for.
    """

    layout: StandInLayout
    elements: int
    scale: float
    real_bytes: float

    @classmethod
    def of(cls, spec: RunSpec, conditions: Conditions, dimension: int) -> StandIn:
        """Choose a size.

        Args:
            spec: of the run.
            conditions: of its links.
            dimension: parameters of a node.
        """
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
        """Size of a snapshot in memory."""
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


def _layout(elements: int, most_piece_bytes: int = limits.CHUNK_BYTES) -> StandInLayout:
    tensor = TensorSpec("parameters", DTYPE, (elements,), VALUE_BYTES)
    return StandInLayout((tensor,), most_piece_bytes=most_piece_bytes)
