"""Messages with which a node that joins late gets the state of the training from its peers.

    joiner                                       donor
    ask_state (prepares: no)   ──────────────►
                               ◄──────────────   state_standing, or other_state
    ask_state (prepares: yes)  ──────────────►   its trainer copies the state at its next update
                               ◄──────────────   state_standing until then, or state_busy
                               ◄──────────────   state_offer
    ask_piece, several at once ──────────────►
                               ◄──────────────   state_piece, or state_gone
    state_done                 ──────────────►

The state has parts. Each part has an image, which is a safetensors file in pieces of 1 MiB.
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
    """Ask a donor for a part of its state. Unless `kind` is empty, the state must be of this kind.

    `prepares`: the donor must copy its state for the joiner. Otherwise it only sends its clock.
    `token` names the copy from which the joiner has a different part. If empty, any copy will do.
    """

    type: Literal["ask_state"] = "ask_state"
    part: PartName
    kind: AnyFingerprint
    prepares: bool
    token: Annotated[bytes, Field(max_length=limits.STATE_TOKEN_BYTES)]


class StateStanding(BaseMessage):
    """Report the donor's training progress to a joiner, before the donor has copied its state.

    `is_trained`: whether the donor has trained at all. `is_sound`: whether its loss is finite.
    """

    type: Literal["state_standing"] = "state_standing"
    clock: TrainingClock
    is_trained: bool
    is_sound: bool


class StateBusy(BaseMessage):
    """Refuse a joiner's request for now, because the donor serves the maximum number of joiners."""

    type: Literal["state_busy"] = "state_busy"
    retry_after_s: RetryAfter


class OtherState(BaseMessage):
    """Refuse `AskState`: the donor lacks the part, or has a different layout (in the payload)."""

    type: Literal["other_state"] = "other_state"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_DETAIL_BYTES


class StateOffer(BaseMessage):
    """Offer a joiner the pieces of one state copy, named by `token`. The payload has its numbers.

    If the layouts of several images have equal fingerprints, their pieces can be combined.
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
    """Report that the donor has discarded the offered state."""

    type: Literal["state_gone"] = "state_gone"


class StateDone(BaseMessage):
    """The joiner needs nothing more from this donor. The donor does not answer."""

    type: Literal["state_done"] = "state_done"
