"""What the fields of messages may be, and what all messages have in common."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from dpwa.data.segments import NONCE_BYTES
from dpwa.types import StrictModel
from dpwa.wire import limits

Count = Annotated[int, Field(ge=0, lt=2**63)]
Nonce = Annotated[bytes, Field(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]

# As in configurations: in news, names of wide characters could fill a header.
Name = Annotated[str, Field(pattern=rf"^[A-Za-z0-9._-]{{0,{limits.MAX_NAME_CHARACTERS}}}$")]


class BaseMessage(StrictModel):
    """The header of a message."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    max_payload_bytes: ClassVar[int | None] = None  # None: carries no payload

    request: Count  # chosen by the asking side; every answer repeats it
