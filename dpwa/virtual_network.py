"""A network of nodes in one process, on a virtual clock, with delays, losses, and partitions.

It is for objects that exchange messages, and take time and randomness as arguments, such as the
rules of `dpwa/policy/`. Nothing is sent, and no thread sleeps. The clock jumps to the next event.
All randomness comes from one seed, so the same program always does the same.

>>> network = VirtualNetwork(seed=1, link=Link(delay_s=0.5))
>>> def answer(sender, message):
...     network.send("b", sender, message + "!")
>>> def tell(sender, message):
...     print(f"{network.clock.now():.1f} s: {sender} says {message}")
>>> network.add("a", tell)
>>> network.add("b", answer)
>>> network.send("a", "b", "hello")
>>> network.run_for(5.0)
1.0 s: b says hello!
>>> network.partition({"a"}, {"b"})
>>> network.send("a", "b", "are you there")
>>> network.run_for(5.0)
>>> network.counts
Counts(sent=3, delivered=2, dropped=1, duplicated=0)
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count
from typing import Any

Handler = Callable[[str, Any], None]
"""Receives the address of the sender, and the message."""


class VirtualClock:
    """Time that stands still until it is moved. It is a `dpwa.clock.Clock`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        """Return the seconds since the start of the clock."""
        return self._now_s

    def move_to(self, now_s: float) -> None:
        """Move the time forward to a moment. An earlier moment changes nothing."""
        self._now_s = max(self._now_s, now_s)


@dataclass(frozen=True)
class Link:
    """The properties of the messages from one node to another, in one direction.

    A message takes `delay_s` + u seconds, with u uniform in [0, `jitter_s`]. So with a jitter,
    messages overtake each other. A duplicated message arrives twice, with two separate delays.

    Attributes:
        delay_s: the minimum delay of a message, in seconds.
        jitter_s: the maximum additional delay, in seconds.
        drop: the probability that a message is lost.
        duplicate: the probability that a message that is not lost arrives twice.
    """

    delay_s: float = 0.001
    jitter_s: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0


@dataclass
class Counts:
    """Counts of messages since the network was created."""

    sent: int = 0  # calls of `VirtualNetwork.send`
    delivered: int = 0  # passed to a node, including duplicates
    dropped: int = 0  # by chance, by a partition, or because a node was down
    duplicated: int = 0  # sent a second time by the network


class Timer:
    """A function call that is due at a later time."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def cancel(self) -> None:
        """Cancel the call. After the call was made, this has no effect."""
        self._act = None

    def fire(self) -> None:
        """Make the call, at most once."""
        act, self._act = self._act, None
        if act is not None:
            act()


class VirtualNetwork:
    """Nodes by address, the links between them, and their time.

    One thread does everything. Handlers and timers run inside of `run_until`. They may send
    messages, set timers and change faults.

    Args:
        seed: the seed of all randomness.
        link: the properties of all links that `set_link` has not changed.

    Attributes:
        clock: the virtual clock.
        rng: the source of all randomness. Nodes should use it, so that the run is repeatable.
        counts: the numbers of messages so far.
    """

    def __init__(self, seed: int, link: Link | None = None) -> None:
        self.clock = VirtualClock()
        self.rng = random.Random(seed)
        self.counts = Counts()
        self._link = link or Link()
        self._links: dict[tuple[str, str], Link] = {}
        self._handlers: dict[str, Handler] = {}
        self._down: set[str] = set()
        self._group_of: dict[str, int] = {}
        self._watchers: list[Callable[[], None]] = []
        self._is_stopped = False
        self._order = count()
        self._queue: list[tuple[float, int, Timer]] = []

    def add(self, address: str, handler: Handler) -> None:
        """Put a node at an address, and replace a former node there. The new node is up."""
        self._handlers[address] = handler
        self._down.discard(address)

    def set_link(self, link: Link, sender: str | None = None, to: str | None = None) -> None:
        """Set the properties of one directed link, or of all links if no nodes are named.

        Raises:
            ValueError: only one of both nodes is named.
        """
        if (sender is None) != (to is None):
            raise ValueError("pass both `sender` and `to`, or neither to set all links")
        if sender is None or to is None:
            self._link = link
            self._links.clear()
        else:
            self._links[sender, to] = link

    def partition(self, *groups: Collection[str]) -> None:
        """Cut all links between nodes of different groups. Nodes in no group form one more group.

        Messages in flight across a cut are lost. A later partition replaces this one.
        """
        self._group_of = {name: index for index, group in enumerate(groups) for name in group}
        self._tell_watchers()

    def heal(self) -> None:
        """End the partition."""
        self._group_of = {}
        self._tell_watchers()

    def set_down(self, address: str) -> None:
        """Cut a node off, so that it neither sends nor receives. Its timers continue."""
        self._down.add(address)
        self._tell_watchers()

    def set_up(self, address: str) -> None:
        """End `set_down`. Messages that were sent meanwhile are lost."""
        self._down.discard(address)
        self._tell_watchers()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call a function whenever links were cut or restored."""
        self._watchers.append(watcher)

    def is_cut(self, sender: str, to: str) -> bool:
        """Tell whether a node is down, or both are in different parts of a partition."""
        is_down = sender in self._down or to in self._down
        return is_down or self._group_of.get(sender) != self._group_of.get(to)

    def is_open(self, sender: str, to: str) -> bool:
        """Tell whether both nodes are up, and in the same part of a partition."""
        are_there = sender in self._handlers and to in self._handlers
        return are_there and not self.is_cut(sender, to)

    def send(self, sender: str, to: str, message: Any) -> None:
        """Send a message. It may be lost."""
        self.counts.sent += 1
        link = self._links.get((sender, to), self._link)
        if not self.is_open(sender, to) or self.rng.random() < link.drop:
            self.counts.dropped += 1
            return
        copies = 1
        if self.rng.random() < link.duplicate:
            self.counts.duplicated += 1
            copies = 2
        for _ in range(copies):
            delay_s = link.delay_s + self.rng.uniform(0.0, link.jitter_s)
            self.call_later(delay_s, lambda: self._deliver(sender, to, message))

    def call_later(self, delay_s: float, act: Callable[[], None]) -> Timer:
        """Call a function after a delay. Calls that are due at the same time run in order."""
        timer = Timer(act)
        due_s = self.clock.now() + max(0.0, delay_s)
        heapq.heappush(self._queue, (due_s, next(self._order), timer))
        return timer

    def run_until(self, end_s: float) -> None:
        """Run all events that are due until a time (inclusive), or until `stop`."""
        self._is_stopped = False
        while not self._is_stopped and self._queue and self._queue[0][0] <= end_s:
            due_s, _, timer = heapq.heappop(self._queue)
            self.clock.move_to(due_s)
            timer.fire()
        if not self._is_stopped:
            self.clock.move_to(end_s)

    def stop(self) -> None:
        """Make `run_until` return after the current event. The next call runs later events."""
        self._is_stopped = True

    def forget_all(self) -> None:
        """Forget all events that are due."""
        self._queue.clear()

    def run_for(self, duration_s: float) -> None:
        """Run all events that are due within this many seconds."""
        self.run_until(self.clock.now() + duration_s)

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher()

    def _deliver(self, sender: str, to: str, message: Any) -> None:
        # The sender may be down by now, but a message on the wire still arrives.
        is_cut = self._group_of.get(sender) != self._group_of.get(to)
        if is_cut or to in self._down:
            self.counts.dropped += 1
            return
        self.counts.delivered += 1
        self._handlers[to](sender, message)
