"""AdmissionControl: reads no faster than the limits allow, and counts what is refused.

Requests cost the trainer: threads of one Python take turns. So they get a share of a core, and when
that is used up, nothing is read for a moment. ZeroMQ lets connections take turns, so that others
wait for one message of a greedy one at most; and what that sends meanwhile is held up in its own
kernel (see `dpwa.transport.backpressure`). While the trainer waits for its peers in a collective,
there is nothing to protect, and no limit.
"""

from __future__ import annotations

import threading
import time

from dpwa.config.limits import Limits
from dpwa.policy.serving_budget import ServingBudget
from dpwa.transport.authorizer import Authorizer
from dpwa.transport.backpressure import Backpressure
from dpwa.transport.sockets import ReceivedMessage, Socket, receive_from
from dpwa.types import JsonObject
from dpwa.wire.messages import Message

LOOKING_SHARE = 0.02  # of a core
LUMP_S = 0.005  # to be behind: reading in lumps costs the trainer less than a message now and then
MOST_CHARGED_S = 0.002  # for a message: what it takes to send a snapshot has limits of its own
COPIED_PER_S = 2e9  # bytes: ZeroMQ's own thread copies what comes, at the cost of the same memory
FRAME_BYTES = 9  # that a frame has on the wire beside its own, and
SEALED_BYTES = 33  # more when it is encrypted
LONGEST_LOOK_S = 1.0
MIB = 1024 * 1024


class AdmissionControl:
    """What stands between the listening socket and the services; belongs to the RxThread.

    Args:
        authorizer: who may be heard.
        limits: how much.

    Attributes:
        authorizer, limits: as given.
    """

    def __init__(self, authorizer: Authorizer, limits: Limits) -> None:
        self.authorizer = authorizer
        self.limits = limits
        self._budget = ServingBudget(limits.serving_share, limits.serving_burst_ms / 1000)
        # Reentrant: a signal handler may close the tables while its thread is in here.
        self._lulls_lock = threading.RLock()
        self._lulls = 0
        self._backpressure: Backpressure | None = None
        self._look_at = 0.0
        self._resume_at = 0.0
        self._started_s = 0.0  # seconds of a core
        self._is_drained = True
        self._is_overdrawn = self._is_left_over = False
        self._over_budget = self._forged = self._revoked = 0

    def watch(self, endpoint: str) -> None:
        """Watch the connections to the endpoint from now on."""
        limits = self.limits
        self._backpressure = Backpressure(endpoint, limits.connections, limits.unread_mb * MIB)

    def begin_unthrottled(self) -> None:
        """Forget the budget for now: the trainer does nothing but wait for peers; any thread."""
        with self._lulls_lock:
            self._lulls += 1

    def end_unthrottled(self) -> None:
        """Mind the budget again."""
        with self._lulls_lock:
            self._lulls -= 1

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be read just now."""
        return not self._lulls and time.monotonic() < self._resume_at

    def patience_ms(self, limit_ms: int) -> int:
        """Return how long to wait for messages at most."""
        until = min(self._look_at, self._resume_at) if self.is_paused else self._look_at
        return min(limit_ms, max(0, int((until - time.monotonic()) * 1000) + 1))

    def take(self, router: Socket) -> ReceivedMessage | None:
        """Take one waiting message, or return `None`: there is none, or not so soon.

        Whoever takes one says so when it is `served`.
        """
        if self.is_paused:
            return None
        self._started_s = time.thread_time()
        received = receive_from(router, is_named=self.authorizer.keyring is not None)
        self._is_drained = received is None
        if received is not None:
            self._note(received)
        return received

    def served(self, received: ReceivedMessage) -> None:
        """Charge what it has cost to receive and to answer a message."""
        if self._lulls:
            self._is_overdrawn = False
            return
        cost_s = min(time.thread_time() - self._started_s, MOST_CHARGED_S)
        copying_s = sum(map(len, received.frames)) / COPIED_PER_S
        now = time.monotonic()
        wait_s = self._budget.charge(cost_s + copying_s, now)
        self._is_overdrawn = wait_s > 0
        self._over_budget += self._is_overdrawn
        if wait_s >= LUMP_S:
            self._resume_at = now + wait_s

    def is_heard(self, received: ReceivedMessage) -> bool:
        """Tell whether a message may be heard; the key of its sender may have been revoked."""
        if self._is_left_over:
            return False
        is_allowed = self.authorizer.is_allowed(received.user_id)
        self._revoked += not is_allowed
        return is_allowed

    def is_forged(self, received: ReceivedMessage, message: Message) -> bool:
        """Tell whether a message names another node than its sender's key is of."""
        name = getattr(message, "name", "")
        is_own = not name or self.authorizer.speaks_for(received.user_id, name)
        self._forged += not is_own
        return not is_own

    def look(self) -> None:
        """Look at the connections, if it is time to."""
        now = time.monotonic()
        if self._backpressure is not None and now >= self._look_at:
            self._look_at = now + LONGEST_LOOK_S  # whatever happens meanwhile
            started_s = time.thread_time()
            again_s = self._backpressure.look(
                is_drained=self._is_drained, comings=self.authorizer.comings
            )
            # A process with very many files spends a small share of a core on this.
            took_s = time.thread_time() - started_s
            self._look_at = now + max(again_s, took_s / LOOKING_SHARE)

    def report(self) -> JsonObject:
        """Count what was refused, by reason."""
        backpressure = self._backpressure
        return {
            "over_budget": self._over_budget,
            "forged": self._forged,
            "revoked": self._revoked,
            "unread": 0 if backpressure is None else backpressure.pauses,
            "unfinished": 0 if backpressure is None else backpressure.unfinished,
            "connections": 0 if backpressure is None else backpressure.over_capacity,
        }

    def _note(self, received: ReceivedMessage) -> None:
        if self._backpressure is None:
            return
        overhead = FRAME_BYTES if received.user_id is None else FRAME_BYTES + SEALED_BYTES
        nbytes = sum(len(frame) + overhead for frame in received.frames[1:])
        self._backpressure.took(received.descriptor, nbytes)
        # What a connection that was too greedy has left behind is thrown away as it comes.
        self._is_left_over = self._is_overdrawn and self._backpressure.is_gone(received.descriptor)
