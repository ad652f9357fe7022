"""Intake: reads the listening socket no faster than the limits allow, and counts what is refused.

Whoever sends too much is not read for a moment. ZeroMQ lets connections take turns, so that others
wait for one message of it at most; and what it sends meanwhile is held up in its own kernel (see
`dpwa.transport.brakes`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dpwa.config.limits import Limits
from dpwa.policy.request_budget import RequestBudget
from dpwa.transport.brakes import Brakes
from dpwa.transport.gate import Gate
from dpwa.transport.sockets import Received, Socket, receive_from
from dpwa.types import JsonObject
from dpwa.wire.messages import Message

SHARE_OF_TIME = 0.05  # for looking at connections
LUMP_S = 0.005  # to be behind: reading in lumps costs the trainer less than a message now and then
FRAME_BYTES = 9  # that a frame has on the wire beside its own, and
SEALED_BYTES = 33  # more when it is encrypted
LONGEST_LOOK_S = 1.0
COSTLY_BYTES = 1024 * 1024  # to read so many costs as much as another request
UNHEARD_COST = 0.5  # of a message that nobody looks at
MIB = 1024 * 1024


class Intake:
    """What stands between the listening socket and the services; belongs to the RxThread.

    Args:
        gate: who may be heard.
        limits: how much.
        peers: returns how many peers are in view.

    Attributes:
        gate, limits: as given.
    """

    def __init__(self, gate: Gate, limits: Limits, peers: Callable[[], int]) -> None:
        self.gate = gate
        self.limits = limits
        self._peers = peers
        self._budget = RequestBudget(limits.requests_per_s, limits.burst)
        self._brakes: Brakes | None = None
        self._look_at = 0.0
        self._resume_at = 0.0
        self._is_drained = True
        self._is_left_over = False
        self._over_budget = self._forged = self._revoked = 0

    def watch(self, endpoint: str) -> None:
        """Watch the connections to the endpoint from now on."""
        limits = self.limits
        self._brakes = Brakes(endpoint, limits.connections, limits.unread_mb * MIB)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be read just now."""
        return time.monotonic() < self._resume_at

    def patience_ms(self, limit_ms: int) -> int:
        """Return how long to wait for messages at most."""
        now = time.monotonic()
        until = self._look_at if self._resume_at <= now else min(self._look_at, self._resume_at)
        return min(limit_ms, max(0, int((until - now) * 1000) + 1))

    def take(self, router: Socket) -> Received | None:
        """Take one waiting message, or return `None`: there is none, or not so soon."""
        now = time.monotonic()
        if now < self._resume_at:
            return None
        received = receive_from(router)
        self._is_drained = received is None
        if received is not None:
            self._charge(received, now)
        return received

    def is_heard(self, received: Received) -> bool:
        """Tell whether a message may be heard; the key of its sender may have been revoked."""
        if self._is_left_over:
            return False
        is_allowed = self.gate.is_allowed(received.user_id)
        self._revoked += not is_allowed
        return is_allowed

    def is_forged(self, received: Received, message: Message) -> bool:
        """Tell whether a message names another node than its sender's key is of."""
        name = getattr(message, "name", "")
        is_own = not name or self.gate.speaks_for(received.user_id, name)
        self._forged += not is_own
        return not is_own

    def look(self) -> None:
        """Look at the connections, if it is time to."""
        now = time.monotonic()
        if self._brakes is not None and now >= self._look_at:
            self._look_at = now + LONGEST_LOOK_S  # whatever happens meanwhile
            again_s = self._brakes.look(is_drained=self._is_drained)
            # A process with very many files spends a small share of its time on this.
            took_s = time.monotonic() - now
            self._look_at = now + max(again_s, took_s / SHARE_OF_TIME)

    def report(self) -> JsonObject:
        """Count what was refused, by reason."""
        brakes = self._brakes
        return {
            "over_budget": self._over_budget,
            "forged": self._forged,
            "revoked": self._revoked,
            "unread": 0 if brakes is None else brakes.pauses,
            "unfinished": 0 if brakes is None else brakes.unfinished,
            "connections": 0 if brakes is None else brakes.over_capacity,
        }

    def _charge(self, received: Received, now: float) -> None:
        overhead = FRAME_BYTES if received.user_id is None else FRAME_BYTES + SEALED_BYTES
        nbytes = sum(len(frame) + overhead for frame in received.frames[1:])
        if self._brakes is not None:
            self._brakes.took(received.descriptor, nbytes)
        whose = received.user_id or received.descriptor  # -1: of old ZeroMQ, all together
        # What a connection that was too greedy has left behind is thrown away as it comes.
        is_gone = self._brakes is not None and self._brakes.is_gone(received.descriptor)
        cost = UNHEARD_COST if is_gone else 1 + nbytes / COSTLY_BYTES
        wait_s = self._budget.charge(whose, self._peers(), now, cost)
        self._is_left_over = is_gone and wait_s > 0
        if wait_s > 0:
            self._over_budget += 1
        if wait_s >= LUMP_S:
            self._resume_at = now + wait_s
