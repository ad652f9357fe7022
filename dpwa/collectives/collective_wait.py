"""CollectiveWait: the training thread in the middle of one collective, waiting for the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from dpwa.clock import Clock, Deadline
from dpwa.collectives.group import Group
from dpwa.policy.groups.ballots import Decision

T = TypeVar("T")

SPIN_S = 150e-6  # while peers on this host are probably about to answer
SHORTEST_SLEEP_S = 50e-6
LONGEST_SLEEP_S = 5e-3
LOOK_EVERY_S = 0.02


class DecidedError(Exception):
    """The collective is over; raised to leave the middle of it."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("decision")
        self.decision = decision


class CollectiveWait:
    """Waits, until the collective is over or its time is.

    Args:
        group: whose collective.
        clock: time source.
        deadline: after which whoever is missing is left behind.
    """

    def __init__(self, group: Group, clock: Clock, deadline: Deadline) -> None:
        self._group = group
        self._clock = clock
        self._deadline = deadline
        self._looked = clock.now()

    def collect(self, phase: int) -> dict[str, bytes]:
        """Return the records of all members, by name in order of rank.

        Raises:
            DecidedError: the collective is over, one way or the other.
        """
        wanted = self._group.view.names

        def complete() -> dict[str, bytes] | None:
            records = self._group.records(phase)
            return records if len(records) == len(wanted) else None

        records = self.wait(complete)
        return {name: records[name] for name in wanted}

    def decision(self) -> Decision:
        """Return what became of the collective."""
        try:
            return self.wait(lambda: None)
        except DecidedError as over:
            return over.decision

    def wait(self, check: Callable[[], T | None]) -> T:
        """Return the first value of `check` that is not `None`.

        Raises:
            DecidedError: the collective is over, one way or the other.
        """
        began = self._clock.now()
        while True:
            self.look()
            found = check() if self._group.has_boards else self._doze(check)
            if found is not None:
                return found
            if not self._group.has_boards:
                continue
            waited_s = self._clock.now() - began
            if waited_s < SPIN_S:
                os.sched_yield()
                continue
            patience_s = min(max(waited_s / 16, SHORTEST_SLEEP_S), LONGEST_SLEEP_S)
            with self._group.lock:
                self._group.changed.wait(patience_s)

    def _doze(self, check: Callable[[], T | None]) -> T | None:
        """Check, and wait for a message: without boards, all that others say comes in one."""
        with self._group.lock:
            found = check()
            if found is None and self._group.decision is None:
                self._group.changed.wait(LOOK_EVERY_S)
            return found

    def look(self) -> None:
        """Do what has become due meanwhile.

        Raises:
            DecidedError: the collective is over.
            ClosedError: the node was closed.
        """
        decision = self._group.decision
        if decision is not None:
            raise DecidedError(decision)
        self._group.check_open()
        now = self._clock.now()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            self._group.look_around()
            if self._deadline.expired():
                self._group.expire()
            self._group.tick(now)
