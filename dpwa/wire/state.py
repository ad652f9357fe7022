"""Messages by which a node that joins late gets the state of the training from its peers.

    joiner                                       donor
    ask_state (prepares: no)   ──────────────►
                               ◄──────────────   state_standing, or other_state
    ask_state (prepares: yes)  ──────────────►   its trainer copies the state at its next update
                               ◄──────────────   state_standing until then, or state_busy
                               ◄──────────────   state_offer
    ask_piece, several at once ──────────────►
                               ◄──────────────   state_piece, or state_gone
    state_done                 ──────────────►

The state has parts, each with an image of its own: a file of safetensors, cut into pieces of 1 MiB.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dpwa.data.layout import FINGERPRINT_BYTES
from dpwa.wire import limits
from dpwa.wire.fields import BaseMessage, Fingerprint, TrainingClock

PartName = Literal["model", "optimizer", "values"]
Token = Annotated[
    bytes, Field(min_length=limits.STATE_TOKEN_BYTES, max_length=limits.STATE_TOKEN_BYTES)
]
AnyFingerprint = Annotated[bytes, Field(max_length=FINGERPRINT_BYTES)]
RetryAfter = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]
PieceIndex = Annotated[int, Field(ge=0, lt=limits.MAX_PIECES)]
StateBytes = Annotated[int, Field(ge=1, le=limits.MAX_PIECES * limits.CHUNK_BYTES)]


class AskState(BaseMessage):
    """Ask for a part of the state, if it is of this kind, or of any kind if `kind` is empty.

    `prepares`: the donor must copy its state, to be fetched. Otherwise it only sends its clock.
    `token` names a copy of which the joiner has another part already. If empty, any copy will do.
    """

    type: Literal["ask_state"] = "ask_state"
    part: PartName
    kind: AnyFingerprint
    prepares: bool
    token: Annotated[bytes, Field(max_length=limits.STATE_TOKEN_BYTES)]


class StateStanding(BaseMessage):
    """The progress of a donor, whose state is not copied, or not yet.

    `is_trained`: whether it has trained at all. `is_sound`: its loss is finite.
    """

    type: Literal["state_standing"] = "state_standing"
    clock: TrainingClock
    is_trained: bool
    is_sound: bool


class StateBusy(BaseMessage):
    """The donor serves as many joiners as it wants to."""

    type: Literal["state_busy"] = "state_busy"
    retry_after_s: RetryAfter


class OtherState(BaseMessage):
    """Refused, because the donor's part is of a different kind, which the payload describes."""

    type: Literal["other_state"] = "other_state"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_DETAIL_BYTES


class StateOffer(BaseMessage):
    """A part of the state can be fetched by its token, in pieces. The payload has its numbers.

    Pieces of images whose layouts have equal fingerprints can be put together.
    """

    type: Literal["state_offer"] = "state_offer"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_DETAIL_BYTES
    token: Token
    nbytes: StateBytes
    fingerprint: Fingerprint
    clock: TrainingClock
    updates: Annotated[int, Field(ge=0, le=limits.MAX_STATE_UPDATES)]


class AskPiece(BaseMessage):
    """Ask for a piece of an offered state."""

    type: Literal["ask_piece"] = "ask_piece"
    token: Token
    part: PartName
    index: PieceIndex


class StatePiece(BaseMessage):
    """A piece of a state."""

    type: Literal["state_piece"] = "state_piece"
    max_payload_bytes: ClassVar[int | None] = limits.CHUNK_BYTES
    index: PieceIndex
    checksum: Annotated[int, Field(ge=0, lt=2**64)]  # of the payload


class StateGone(BaseMessage):
    """The offered state is not kept any more."""

    type: Literal["state_gone"] = "state_gone"


class StateDone(BaseMessage):
    """The joiner needs nothing more of this donor. Not answered."""

    type: Literal["state_done"] = "state_done"
