"""AdmissionControl reads no faster than the limits allow, and counts refusals.

Requests slow down the trainer, because threads of one Python process take turns. So they get a
share of a core. When it is used up, nothing is read for a moment. ZeroMQ serves connections in
turn, so others wait for at most one message of a greedy one. While the trainer waits in a
collective, there is no limit.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict

from dpwa.config.model import Limits
from dpwa.policy.rates import ServingBudget
from dpwa.runtime import SYSTEM, Runtime
from dpwa.transport.authorizer import Authorizer
from dpwa.transport.sockets import ReceivedMessage, Socket, drop_frames, receive_from
from dpwa.types import JsonObject
from dpwa.wire.messages import Message

LUMP_S = 0.005  # to be behind: reading in lumps costs the trainer less than a message now and then
MAX_CHARGED_S = 0.002  # for a message: what it takes to send a snapshot has limits of its own
MAX_DROPPING_S = 0.1  # of one message: nobody else is heard meanwhile
MAX_PAUSE_S = 0.05  # for what was dropped, for the same reason
COPIED_PER_S = 2e9  # bytes: ZeroMQ's own thread copies what comes, at the cost of the same memory


class AdmissionControl:
    """The checks between the listening socket and the services. Belongs to the RxThread."""

    def __init__(self, authorizer: Authorizer, limits: Limits, runtime: Runtime = SYSTEM) -> None:
        self.authorizer = authorizer
        self.limits = limits
        self._now, self._thread_time = runtime.now, runtime.thread_time
        self._budget = ServingBudget(limits.serving_share, limits.serving_burst_ms / 1000)
        self._current_thread = runtime.current_thread
        self._lulls: dict[threading.Thread, float] = {}  # that wait for peers, since when
        self._resume_at = 0.0
        self._started_s = 0.0  # seconds of a core
        self._over_budget = self._forged = self._revoked = self._clogged = 0
        self._dropping_since: float | None = None  # of a message with too many frames
        self.is_clogged = False  # the socket must be made anew, to be rid of an endless message

    def begin_unthrottled(self) -> bool:
        """Ignore the budget while the trainer only waits for peers. Any thread may call this.

        Returns:
            Whether this is the thread's first call since its last `end_unthrottled`.
        """
        thread = self._current_thread()
        is_first = thread not in self._lulls
        self._lulls.setdefault(thread, self._now())
        return is_first

    def end_unthrottled(self) -> None:
        """Apply the budget again, even after an interrupted call."""
        self._lulls.pop(self._current_thread(), None)

    def lull_s(self, thread: threading.Thread) -> float:
        """Return the seconds for which a thread has been waiting for peers, or 0 if it does not
        wait.
        """
        return max(0.0, self._now() - self._lulls.get(thread, math.inf))

    def paused_s(self) -> float:
        """Return the seconds for which no message may be read, or 0."""
        if not self._resume_at or self._lulls or self._dropping_since is not None:
            return 0.0
        return max(0.0, self._resume_at - self._now())

    def take_message(self, router: Socket) -> ReceivedMessage | None:
        """Read one waiting message. `None` if there is none, or it must wait.

        The caller then reports that it is `served`. If a message has too many frames, the rest is
        dropped, a part with each call. If that takes too long, the socket `is_clogged`.
        """
        if self.is_clogged or (self._resume_at and self.paused_s()):
            return None
        if self._dropping_since is not None:
            self._drop(router, self._dropping_since)
            return None
        self._started_s = self._thread_time()
        received = receive_from(router, is_named=self.authorizer.keyring is not None)
        if received is not None and received.goes_on:
            self._dropping_since = self._now()
        return received

    def _drop(self, router: Socket, since: float) -> None:
        goes_on = drop_frames(router)
        now = self._now()
        if goes_on and now - since < MAX_DROPPING_S:
            return
        self._dropping_since, self.is_clogged = None, goes_on
        self._clogged += goes_on
        cost_s = min(now - since, MAX_PAUSE_S) * self.limits.serving_share
        self._resume_at = now + self._budget.charge(cost_s, now)

    def served(self, received: ReceivedMessage) -> None:
        if self._lulls:
            return
        cost_s = min(self._thread_time() - self._started_s, MAX_CHARGED_S)
        copying_s = sum(map(len, received.frames)) / COPIED_PER_S
        now = self._now()
        wait_s = self._budget.charge(cost_s + copying_s, now)
        self._over_budget += wait_s > 0
        if wait_s >= LUMP_S:
            self._resume_at = now + wait_s

    def is_heard(self, received: ReceivedMessage) -> bool:
        """Return whether a message is accepted, as the key of its sender may have been revoked."""
        is_allowed = self.authorizer.is_allowed(received.user_id)
        self._revoked += not is_allowed
        return is_allowed

    def is_forged(self, received: ReceivedMessage, message: Message) -> bool:
        """Return whether a message has a name that does not belong to the key of its sender."""
        name = getattr(message, "name", "")
        is_own = not name or self.authorizer.speaks_for(received.user_id, name)
        self._forged += not is_own
        return not is_own

    def report(self) -> JsonObject:
        return {
            "over_budget": self._over_budget,
            "forged": self._forged,
            "revoked": self._revoked,
            "clogged": self._clogged,
        }


class Clients:
    """Peers that are connected to this node, at most `most`. Belongs to the RxThread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._senders: OrderedDict[bytes, None] = OrderedDict()  # the longest silent one first

    def note_sender(self, sender: bytes) -> bytes | None:
        """Note a request of a peer. Return the peer that must close its connection if there are too
        many.
        """
        self._senders[sender] = None
        self._senders.move_to_end(sender)
        return None if len(self._senders) <= self._most else self._senders.popitem(last=False)[0]
