"""Types that validate the fields of messages, and the base class of all messages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from dpwa.data.layout import FINGERPRINT_BYTES
from dpwa.data.segments import NONCE_BYTES
from dpwa.types import MAX_CLOCK, StrictModel
from dpwa.wire import limits

Count = Annotated[int, Field(ge=0, lt=2**63)]
Nonce = Annotated[bytes, Field(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]

# As in configurations. Names of wide characters could make the loss reports exceed a header.
Name = Annotated[str, Field(pattern=rf"^[A-Za-z0-9._-]{{1,{limits.MAX_NAME_CHARACTERS}}}$")]
OptionalName = Annotated[str, Field(pattern=rf"^[A-Za-z0-9._-]{{0,{limits.MAX_NAME_CHARACTERS}}}$")]

Endpoint = Annotated[
    str, Field(max_length=limits.MAX_ENDPOINT_CHARACTERS, pattern=r"^(tcp|ipc)://[!-~]+$")
]
Reason = Annotated[str, Field(max_length=limits.MAX_REASON_CHARACTERS)]
Unsigned = Annotated[int, Field(ge=0, lt=2**64)]
Codec = Annotated[str, Field(min_length=1, max_length=limits.MAX_CODEC_CHARACTERS)]
ChunkBytes = Annotated[
    int,
    Field(
        ge=limits.MIN_CHUNK_BYTES,
        le=limits.CHUNK_BYTES,
        multiple_of=limits.CHUNK_MULTIPLE_BYTES,
    ),
]
Fingerprint = Annotated[bytes, Field(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]

Transaction = Annotated[
    bytes, Field(min_length=limits.TRANSACTION_BYTES, max_length=limits.TRANSACTION_BYTES)
]
Incarnation = Annotated[
    bytes, Field(min_length=limits.INCARNATION_BYTES, max_length=limits.INCARNATION_BYTES)
]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
TrainingClock = Annotated[float, Field(ge=0, le=MAX_CLOCK)]  # NaN fails the comparison
Updates = Annotated[int, Field(ge=0, le=limits.MAX_UPDATES)]
# Node, group, running loss, incarnation, version, age in seconds: a `LossReport`.
# Not strict, because msgpack turns tuples into lists.
NewsItem = Annotated[
    tuple[
        Name,
        OptionalName,
        Annotated[float, Field(allow_inf_nan=False)] | None,
        Count,
        Updates,
        Seconds,
    ],
    Field(strict=False),
]
News = Annotated[tuple[NewsItem, ...], Field(strict=False, max_length=limits.MAX_NEWS)]


MESSAGE_TYPES: dict[str, type[BaseMessage]] = {}  # the loaded message classes, by `type`


class BaseMessage(StrictModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    max_payload_bytes: ClassVar[int | None] = None  # `None`: the message has no payload
    is_for_onlookers: ClassVar[bool] = False  # for processes that watch a run, and are no nodes

    type: str
    request: Count  # a number that the asking node chooses, and that every answer repeats

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        name = cls.model_fields["type"].default
        if isinstance(name, str):  # otherwise, it is a base class of messages
            MESSAGE_TYPES[name] = cls
