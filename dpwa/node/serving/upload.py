"""Upload: the rate at which a node sends payloads. All readers share it fairly."""

from __future__ import annotations

from dpwa.clock import Clock
from dpwa.node.serving.service import Reply
from dpwa.policy.token_buckets import FairBucket, TokenBucket
from dpwa.transport.sockets import Receipt
from dpwa.types import Frame
from dpwa.wire.messages import Message

BYTES_PER_MBIT = 125_000
BURST_S = 0.1  # burst in seconds of the rate; blocked services must try again within this time


class Upload:
    """Limits the rate at which one node sends payloads. It belongs to the RxThread."""

    def __init__(self, limit_mbps: float | None, clock: Clock) -> None:
        self._clock = clock
        self.is_limited = limit_mbps is not None
        self._bucket: FairBucket | None = None
        if limit_mbps is not None:
            rate = limit_mbps * BYTES_PER_MBIT
            self._bucket = FairBucket(TokenBucket(rate, rate * BURST_S))

    def shared(self, reader: str, reply: Reply) -> Reply:
        """Return a `Reply` that limits lent payloads to the fair share of the peer `reader`.

        While `reader` must wait, it returns `None`, as if the socket were full. The caller tries
        again with each tick, until the reader is forgotten. Other messages always pass.
        """
        bucket, clock = self._bucket, self._clock
        if bucket is None:
            return reply

        def reply_in_turn(
            message: Message, payload: Frame | None = None, *, is_lent: bool = False
        ) -> Receipt | None:
            nbytes = 0 if payload is None or not is_lent else len(payload)
            if nbytes and not bucket.claim(reader, nbytes, clock.now()):
                return None
            receipt = reply(message, payload, is_lent=is_lent)
            if receipt is None:
                bucket.give_back(nbytes)
            return receipt

        return reply_in_turn

    def forget_reader(self, reader: str) -> None:
        """Stop sharing the upload rate with a peer. Other peers no longer wait for its turns."""
        if self._bucket is not None:
            self._bucket.forget_reader(reader)
