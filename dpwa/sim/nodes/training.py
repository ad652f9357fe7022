"""Merge the parameter array of a simulated node with peers, as an adapter does for a module.

Copying and checking a hundred megabytes at each step of each node would take minutes. So a snapshot
has fewer bytes, but the same number of pieces, and each piece counts on the wire like a real piece
(`ScaledSnapshots`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpwa.collectives.paced import PacedRounds
from dpwa.connection import DpwaConnection
from dpwa.data.array_model import ArrayModel, NumericArray, is_finite
from dpwa.data.codecs.sizes import payload_bytes
from dpwa.data.layout import Layout, Piece, TensorSpec
from dpwa.data.payload import Payload
from dpwa.data.segments import ByteArray
from dpwa.node.trainer import Trainer
from dpwa.sim.conditions import Conditions
from dpwa.sim.scenario import RunSpec
from dpwa.state.replaced_parts import Target, values_of, values_part
from dpwa.wire import limits

Floats = NDArray[np.float64]


class ScaledModel(ArrayModel):
    """The model of a simulated node. Its snapshots repeat the array `x`."""

    def _fill(self, room: NumericArray, array: NumericArray) -> None:
        """Fill a snapshot with copies of the array, because codecs may depend on changes."""
        size, copies = array.size, room.size // array.size
        super()._fill(room[:size], array)
        room[size : copies * size].reshape(-1, size)[...] = room[:size]
        room[copies * size :] = room[: room.size - copies * size]


class ArrayTraining:
    """Publishes and merges one node's values `x`, shape (D,), like an adapter with a module."""

    def __init__(self, connection: DpwaConnection, x: Floats, scaled: ScaledSnapshots) -> None:
        self.rounds = connection.node.rounds
        self._connection = connection
        self._states = connection.states
        self._model = ScaledModel(x, scaled.layout)
        self._trainer = Trainer.from_config(
            self.rounds, self._model, connection.node.config, is_finite
        )
        self._paced = self._paced_rounds() if self.rounds.algorithm.averages_gradients else None

    def take_over(self) -> bool:
        """Adopt the state of peers if they already train. Return whether a state was adopted."""
        layout = self._model.layout
        image = Target("values", layout, None, limits.MAX_UNSTRUCTURED_BYTES, self._load)
        return self._states.start(image) is not None

    def update_send(self, loss: float | None) -> None:
        """Publish, and start a fetch, like `DpwaPyTorchAdapter.update_send`."""
        if self._paced is not None:
            self._paced.update(self.rounds.algorithm)
        self._trainer.update_send(loss)

    def update_wait(self, loss: float | None) -> None:
        """Wait for the fetch, and merge, like `DpwaPyTorchAdapter.update_wait`."""
        self._trainer.update_wait(loss)
        if self._paced is not None:
            self._paced.stepped()
        self._states.copy_if_due(self._capture)

    def average(self, before: Floats) -> None:
        """Average the change since `before` with peers, if the algorithm averages gradients."""
        if self._paced is None:
            return
        x = self._model.array
        step = np.resize((x - before).astype(np.float32), self._model.layout.tensors[0].shape)
        if self._paced.average(Payload(step)):
            x[...] = before + step[: x.size]

    def _paced_rounds(self) -> PacedRounds:
        node, connection, model = self._connection.node, self._connection, self._model

        def take_over(peer: str, given: Any) -> None:  # noqa: ARG001
            clock, updates, values = given
            model.array[...] = values
            node.rounds.resume(clock, updates)

        return PacedRounds(
            connection.collectives,
            "dpwa.gradients",
            node.config.timeout_ms / 1000,
            step=lambda: connection.updates,
            copy=lambda: [connection.clock, connection.updates, model.array.copy()],
            take_over=take_over,
            parted=node.rounds.merger.parted,
        )

    def _capture(self) -> dict[str, Any]:
        return dict(values_part(self._model.layout, self._model.image()))

    def _load(self, image: ByteArray, numbers: bytes) -> None:
        found = values_of(image, numbers)
        if isinstance(found, np.ndarray):
            self._model.array[...] = found[: self._model.array.size]


DTYPE = "float32"  # the dtype of models, so that codecs have the same effect
VALUE_BYTES = 4

ENOUGH_BYTES = 512 * 1024  # size of a snapshot, unless its pieces become tiny
TINY_PIECE_BYTES = 1024  # size of a block of `int8`
FEWEST_PIECES = 4  # minimum number of larger pieces of a snapshot
ROUND_TRIPS = 1.2  # for which one grant of credit lasts, so that no sender waits


@dataclass(frozen=True)
class ScaledLayout(Layout):
    """The layout of a smaller snapshot with as many pieces as the real snapshot."""

    most_piece_bytes: int = limits.CHUNK_BYTES  # overrides the size that a fetch asks for

    def pieces(self, nbytes: int, piece_bytes: int) -> tuple[Piece, ...]:
        return super().pieces(nbytes, min(piece_bytes, self.most_piece_bytes))


@dataclass(frozen=True)
class ScaledSnapshots:
    """The layout of a run's simulated snapshots, and their scale relative to real snapshots."""

    layout: ScaledLayout
    scale: float  # bytes on the wire for each byte of the snapshot
    real_bytes: float  # size of the real snapshot

    @classmethod
    def from_spec(cls, spec: RunSpec, conditions: Conditions, dimension: int) -> ScaledSnapshots:
        real = (spec.scenario.model_mb or 0.0) * 1e6 or float(dimension * VALUE_BYTES)
        # The layout has all the task's values, and the required number of shards.
        least = max(dimension * VALUE_BYTES, limits.MIN_CHUNK_BYTES / spec.config.fraction)
        real_piece = limits.CHUNK_BYTES * _pieces_in_one(spec, conditions, real)
        piece_bytes = limits.CHUNK_BYTES
        while piece_bytes > TINY_PIECE_BYTES and real * piece_bytes / real_piece > max(
            ENOUGH_BYTES, 2.0 * least
        ):
            piece_bytes //= 2
        scale = real_piece / piece_bytes
        elements = max(dimension, math.ceil(real / scale / VALUE_BYTES))
        return cls(_layout(elements, piece_bytes), scale, real)


def _pieces_in_one(spec: RunSpec, conditions: Conditions, nbytes: float) -> int:
    """Return the number of pieces of a real snapshot that are simulated as one piece.

    Fewer pieces save simulation time. The number is 1, unless larger pieces have the same effect:
    each grant of credit keeps the fastest link busy until the next grant, no node limits its
    upload, no packet is lost, and each fetch has all pieces.
    """
    network, config = spec.scenario.network, spec.config
    if config.fraction < 1.0 or config.max_upload_mbps is not None or network.loss:
        return 1
    rate = min(conditions.link_bytes_per_s, conditions.download_bytes_per_s)
    round_trip_s = 2.0 * (conditions.longest_latency_s + network.jitter_ms / 1000.0)
    piece = payload_bytes(config.codec, limits.CHUNK_BYTES, DTYPE)
    if ROUND_TRIPS * round_trip_s * rate > limits.GRANTED_CHUNKS * piece:
        return 1
    return max(1, math.ceil(nbytes / limits.CHUNK_BYTES) // FEWEST_PIECES)


def _layout(elements: int, most_piece_bytes: int = limits.CHUNK_BYTES) -> ScaledLayout:
    tensor = TensorSpec("parameters", DTYPE, (elements,), VALUE_BYTES)
    return ScaledLayout((tensor,), most_piece_bytes=most_piece_bytes)
