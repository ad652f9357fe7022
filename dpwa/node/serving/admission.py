"""AdmissionControl limits the time that a node spends on requests, and counts refusals.

Requests slow down the trainer, because the threads of a Python process take turns. So requests get
a share of one core. When the share is used up, the node reads no message for a moment. ZeroMQ
serves connections in turn, so other peers wait for at most one message of a greedy peer. While the
trainer waits in a collective, there is no limit.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict

from dpwa.config.model import Limits
from dpwa.policy.token_buckets import ServingBudget
from dpwa.runtime import SYSTEM, Runtime
from dpwa.transport.authorizer import Authorizer
from dpwa.transport.sockets import ReceivedMessage, Socket, drop_frames, receive_from
from dpwa.types import JsonObject
from dpwa.wire.messages import Message

LUMP_S = 0.005  # minimum pause: a few long pauses cost the trainer less than many short ones
MAX_CHARGED_S = 0.002  # for a message: sending snapshots has limits of its own
MAX_DROPPING_S = 0.1  # for one message, because no other peer is served meanwhile
MAX_PAUSE_S = 0.05  # after a dropped message, for the same reason
COPIED_PER_S = 2e9  # bytes: ZeroMQ's own thread copies what arrives, and uses the same memory bus


class AdmissionControl:
    """The checks between the listening socket and the services. It belongs to the RxThread."""

    def __init__(self, authorizer: Authorizer, limits: Limits, runtime: Runtime = SYSTEM) -> None:
        self.authorizer = authorizer
        self.limits = limits
        self._now, self._thread_time = runtime.now, runtime.thread_time
        self._budget = ServingBudget(limits.serving_share, limits.serving_burst_ms / 1000)
        self._current_thread = runtime.current_thread
        self._lulls: dict[threading.Thread, float] = {}  # threads that wait for peers, since when
        self._resume_at = 0.0
        self._started_s = 0.0  # seconds of processor time
        self._over_budget = self._forged = self._revoked = self._clogged = 0
        self._dropping_since: float | None = None  # for a message with too many frames
        self.is_clogged = False  # whether only a new socket can end an endless message

    def begin_unthrottled(self) -> bool:
        """Lift the serving-time limit while the trainer waits for peers. Any thread may call this.

        Returns:
            Whether this is the thread's first call since its last `end_unthrottled`.
        """
        thread = self._current_thread()
        is_first = thread not in self._lulls
        self._lulls.setdefault(thread, self._now())
        return is_first

    def end_unthrottled(self) -> None:
        """Restore the serving-time limit after this thread's wait, even an interrupted wait."""
        self._lulls.pop(self._current_thread(), None)

    def lull_s(self, thread: threading.Thread) -> float:
        """Return the seconds for which a thread has been waiting for peers, or 0 if not waiting."""
        return max(0.0, self._now() - self._lulls.get(thread, math.inf))

    def paused_s(self) -> float:
        """Return the seconds for which no message may be read, or 0."""
        if not self._resume_at or self._lulls or self._dropping_since is not None:
            return 0.0
        return max(0.0, self._resume_at - self._now())

    def take_message(self, router: Socket) -> ReceivedMessage | None:
        """Read one waiting message. Return `None` if there is none, or if it must wait.

        Call `served` after each message. If a message has too many frames, each call drops a part
        of the rest. If that takes too long, the socket `is_clogged`.
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
        """Return whether a message is accepted. A message with a revoked key is refused."""
        is_allowed = self.authorizer.is_allowed(received.user_id)
        self._revoked += not is_allowed
        return is_allowed

    def is_forged(self, received: ReceivedMessage, message: Message) -> bool:
        """Return whether the node name in a message does not match the sender's key."""
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
    """The peers that are connected to this node, at most `most`. It belongs to the RxThread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._senders: OrderedDict[bytes, None] = OrderedDict()  # the longest silent peer is first

    def note_sender(self, sender: bytes) -> bytes | None:
        """Note a request of a peer. If there are too many peers, return the one that must close its
        connection.
        """
        self._senders[sender] = None
        self._senders.move_to_end(sender)
        return None if len(self._senders) <= self._most else self._senders.popitem(last=False)[0]
