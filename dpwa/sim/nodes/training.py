"""The work of an adapter for a module, for the numbers of one simulated node.

Copying and checking a hundred megabytes at each step of each node would take minutes. So a snapshot
has fewer bytes, but the same number of pieces, and each counts on the wire as the real one
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
    """The values `x` of a node, which its snapshots repeat."""

    def _fill(self, room: NumericArray, array: NumericArray) -> None:
        """Write a snapshot that repeats the values, because codecs depend on changes."""
        size, copies = array.size, room.size // array.size
        super()._fill(room[:size], array)
        room[size : copies * size].reshape(-1, size)[...] = room[:size]
        room[copies * size :] = room[: room.size - copies * size]


class ArrayTraining:
    """Gossip of the values `x`, shape (D,), of one node, like an adapter's for a module."""

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
        """Begin with the state of peers, if they train already. Return whether they do."""
        layout = self._model.layout
        image = Target("values", layout, None, limits.MAX_UNSTRUCTURED_BYTES, self._load)
        return self._states.start(image) is not None

    def update_send(self, loss: float | None) -> None:
        """Publish, and begin a fetch, like `DpwaPyTorchAdapter.update_send`."""
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
        """Average the step from `before` with the others, if the algorithm averages gradients."""
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


DTYPE = "float32"  # as models have it: codecs make of it what they make of models
VALUE_BYTES = 4

ENOUGH_BYTES = 512 * 1024  # of a snapshot, if its pieces are not tiny by then
TINY_PIECE_BYTES = 1024  # a block of `int8`
FEWEST_PIECES = 4  # of a snapshot in larger pieces
ROUND_TRIPS = 1.2  # that what is granted at once lasts for, if no sender ever waits for more


@dataclass(frozen=True)
class ScaledLayout(Layout):
    """The layout of a snapshot that is cut into as many pieces as the one that it stands for."""

    most_piece_bytes: int = limits.CHUNK_BYTES  # of a piece, whatever a fetch asks for

    def pieces(self, nbytes: int, piece_bytes: int) -> tuple[Piece, ...]:
        return super().pieces(nbytes, min(piece_bytes, self.most_piece_bytes))


@dataclass(frozen=True)
class ScaledSnapshots:
    """The form of the snapshots of a run."""

    layout: ScaledLayout
    scale: float  # how many bytes on the wire each of its bytes stands for
    real_bytes: float  # of what it stands for

    @classmethod
    def from_spec(cls, spec: RunSpec, conditions: Conditions, dimension: int) -> ScaledSnapshots:
        real = (spec.scenario.model_mb or 0.0) * 1e6 or float(dimension * VALUE_BYTES)
        # It has all the task's values, and as many shards as there are to be.
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
    """Return how many pieces of a real snapshot are sent as one, because each costs simulation
    time.

    It is one, unless larger pieces have the same effect. That is so if no sender ever waits for
    credit, as each grant keeps the fastest link busy until the next one, if no node limits its
    upload, no piece is lost, and fetches are of all pieces.
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
