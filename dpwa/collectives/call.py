"""One node's call of a collective: announce it, exchange values, and agree on the outcome.

The call runs on the thread of the caller. Meanwhile, the RxThread votes for this node in the
`Group`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from dpwa import fault_points
from dpwa.clock import Deadline
from dpwa.collectives.admission import begin_together, wait_to_get_in
from dpwa.collectives.entries import (
    Contribution,
    Entries,
    calls_in_words,
    contributors,
    mismatch,
    pack_join_requests,
    unpack_join_requests,
)
from dpwa.collectives.exchange import ReducedShard, cut
from dpwa.collectives.group import Group
from dpwa.collectives.pulling import LOOK_EVERY_S, Puller
from dpwa.collectives.views import ENTERED, READY
from dpwa.data.payload import Payload
from dpwa.data.segments import ByteArray
from dpwa.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    LeftBehindError,
    MismatchError,
    PeerError,
    PeerLost,
)
from dpwa.policy.ballots import Decision
from dpwa.policy.wait_budgets import RoundLimits

if TYPE_CHECKING:
    from dpwa.collectives.collectives import Collectives
    from dpwa.collectives.operations import Operation

T = TypeVar("T")

SAID_AFTER_S = 8.0  # then a message names the missing members
SPIN_S = 150e-6  # peers on this host probably answer within this time
SHORTEST_SLEEP_S = 50e-6
LONGEST_SLEEP_S = 5e-3
SETTLE_S = 0.2
SETTLE_POLL_S = 0.001


class Call:
    """One call of a collective by this node. Its `operation` uses the members with public names.

    After `timeout_s`, the others continue without the missing members. With `limits`, this node
    leaves the group after `timeout_s`. Before that, the collective ends at its limits, with the
    members that have entered.
    """

    def __init__(
        self,
        collectives: Collectives,
        group: Group,
        operation: Operation,
        timeout_s: float,
        limits: RoundLimits | None = None,
    ) -> None:
        self.group = group
        self.memory = group.memory
        self.contacts = collectives.contacts
        self.pull_source = collectives.pull_source
        self.own = group.own.name
        self.entries: Entries = {}  # the calls of all members, once all have entered
        self._mismatch: str | None = None  # how these calls differ
        self.is_over = False  # whether the outcome was decided when this thread looked last
        self._decision = Decision(holds=False)
        self._collectives = collectives
        self._runtime = collectives.runtime
        self._operation = operation
        self._timeout_s = timeout_s
        self._limits = limits
        self._deadline = Deadline(self._runtime, timeout_s)
        self._looked, self._says_at = -math.inf, math.inf

    def run(self) -> tuple[str, ...]:
        """Run the collective, and return the names of the nodes that have contributed a value.

        Raises:
            MismatchError: members made different calls.
            PeerLost: members are gone.
            CollectiveTimeoutError: no member is gone, but the collective did not end in time.
            LeftBehindError: the others have continued without this node, or do not admit it.
        """
        with self.group.call_lock:
            if self.group.inside is not None:  # a signal has interrupted the call before
                self._leave()
            begin_together(self.group, self._timeout_s)
            while True:
                self._get_in()
                decision = self._take_part()
                if not decision.holds:
                    self._operation.undo()
                if self.own not in decision.lost:
                    return self._copy_out(decision)

    def _get_in(self) -> None:
        """If this node was excluded, raise `LeftBehindError` once, and later wait for admission."""
        group = self.group
        group.prepare_call()
        if group.told():
            raise LeftBehindError(
                (self.own,),
                f"the other nodes have continued without {self.own}, which was silent for too "
                "long. The next collective waits until they admit this node again [DPWA-E240]",
            )
        if group.is_evicted:
            wait_to_get_in(group, self._deadline, self._timeout_s)
            if self._limits is None:  # else this late node would consider its admitters late
                self._deadline = Deadline(self._runtime, self._timeout_s)

    def _take_part(self) -> Decision:
        """Enter the collective, exchange values, and return the decision of the group.

        The decision may come before the exchange of values has ended.
        """
        self.entries, self._mismatch, self.is_over = {}, None, False
        self._looked = self._runtime.now()
        self._says_at = self._looked + SAID_AFTER_S
        self.group.inside = self.group.called
        try:
            self._enter()
            if not self.is_over and self._mismatch is None:
                self._operation.exchange(self)
            if not self.is_over:
                self._agree()
        except BaseException as error:
            ended = self._leave()
            if ended is not None and ended.holds:
                with suppress(PeerError):
                    self._operation.complete()  # the others have the whole result
            else:
                self._operation.undo()
            if isinstance(error, PeerError):
                raise LeftBehindError(
                    (self.own,),
                    f"the collective failed, because another node broke the protocol: {error} "
                    "[DPWA-E148]",
                ) from None
            raise
        self._finish()
        return self._decision

    def _enter(self) -> None:
        """Announce this node's call to the other members, and wait until all have entered."""
        fault_points.reached("collective.called")
        self.group.enter(self._operation.enter(self).pack())
        fault_points.reached("collective.entered")
        records = self._collect(ENTERED)
        if records is not None:
            fault_points.reached("collective.met")
            self.entries = {name: Contribution.unpack(record) for name, record in records.items()}
            self.memory.keep_only(self.entries)
            self._count_inline()
            self._mismatch = mismatch(self.entries)

    def _agree(self) -> None:
        """Tell the members that this node has exchanged its values, and wait for the decision."""
        group = self.group
        fault_points.reached("collective.exchanged")
        lets_in = self._limits is None or self._limits.lets_in
        group.post_ready(pack_join_requests(group.join_requests() if lets_in else ()))
        fault_points.reached("collective.ready")
        records = self._collect(READY)
        if records is not None:
            ready = records.values()
            group.end_call({joiner for record in ready for joiner in unpack_join_requests(record)})
            fault_points.reached("collective.ended")
            self.wait_for(lambda: None)

    def _copy_out(self, decision: Decision) -> tuple[str, ...]:
        """Store the result, and return the names of the contributors. Raise an error on failure."""
        if not (decision.holds and self.entries):
            raise self._failure(decision)
        if self._mismatch is not None:
            raise MismatchError(self._mismatch)
        try:
            self._operation.complete()
        except KeyboardInterrupt:
            self._operation.complete()  # the others have the whole result
            raise
        except PeerError as error:
            raise CollectiveError(
                f"the collective failed, because another node broke the protocol: {error} "
                "[DPWA-E148]"
            ) from None
        return contributors(self.entries)

    def _leave(self) -> Decision | None:
        """Leave the collective, so that no node waits for this node. Return the decision."""
        decision = self.group.leave_call()
        self._finish()
        return decision

    def _finish(self) -> None:
        self.pull_source.hide(self.group.tag)
        self.group.finish()

    # Waiting

    def wait_for(self, check: Callable[[], T | None]) -> T | None:
        """Return the first result of repeated `check` calls, or `None` if the collective ends."""
        began, group = self._runtime.now(), self.group
        while not self.look():
            found = check() if group.has_boards else self._doze(check)
            if found is not None:
                return found
            if not group.has_boards:
                continue
            waited_s = self._runtime.now() - began
            if waited_s < SPIN_S:
                os.sched_yield()
                continue
            patience_s = min(max(waited_s / 16, SHORTEST_SLEEP_S), LONGEST_SLEEP_S)
            with group.lock:
                group.changed.wait(patience_s)
        return None

    def look(self) -> bool:
        """Check for lost members and expired limits. Return whether the collective is over."""
        group = self.group
        decision = group.decision
        if decision is not None:
            self._decision, self.is_over = decision, True
            return True
        group.check_open()
        now = self._runtime.now()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            group.look_around()
            if self._limits is not None and self._deadline.expired():
                group.give_up()
            elif self._deadline.expired() or self._are_limits_over(now):
                group.expire()
            group.tick(now)
            if self._limits is None and now >= self._says_at:
                self._says_at = math.inf
                group.say_missing(self._deadline.remaining_s())
        return False

    def _collect(self, phase: int) -> dict[str, bytes] | None:
        """Wait for all members' records of a phase, and return them by name in order of rank.

        Returns `None` if the collective ends first.
        """

        def complete() -> dict[str, bytes] | None:
            records = self.group.records(phase)
            return records if len(records) == len(names) else None

        names = self.group.view.names
        return self.wait_for(complete)

    def _doze(self, check: Callable[[], T | None]) -> T | None:
        """Call `check` once, then wait for a message if it returned `None`.

        Without boards in shared memory, all records of others arrive in messages.
        """
        with self.group.lock:
            found = check()
            if found is None and self.group.decision is None:
                self.group.changed.wait(LOOK_EVERY_S)
            return found

    def _are_limits_over(self, now: float) -> bool:
        if self._limits is None:
            return False
        missing = {*self.group.view.names} - self.group.records(ENTERED).keys()
        return self._limits.are_over(missing, now)

    # Values of this node, and of others

    @property
    def others(self) -> list[str]:
        """The members of the group except this node."""
        return [name for name in self.group.view.names if name != self.own]

    def settle(self) -> None:
        """Wait up to `SETTLE_S` seconds for members on this host to map this node's memory.

        This is called before a large value is copied. A member that does not answer in time gets
        this value over a connection.
        """
        if not self.contacts.offer_memory():
            return
        others, end = self.others, Deadline(self._runtime, SETTLE_S)
        while not self.contacts.are_settled(others) and not end.expired():
            self._runtime.sleep(SETTLE_POLL_S)

    def room(self, brought: int, reduced: int) -> tuple[ByteArray, ByteArray]:
        return self.memory.room(self.group.view.identity, brought, reduced)

    def show(self, brought: Mapping[int, ByteArray], reduced: ByteArray, start: int = 0) -> None:
        """Make this node's value and its reduced shard available to members on other hosts."""
        self.pull_source.show(self.group.tag, self.group.key, brought, reduced, start)

    def cut(self, payload: Payload, owners: Sequence[str]) -> list[ReducedShard]:
        return cut(payload.layout, payload.nbytes, owners, self._runtime.bytes_scale)

    def connect(self, far: list[str]) -> bool:
        """Wait for connections to members on other hosts. Return `False` if the collective ends."""
        are_up = self.wait_for(lambda: all(map(self.contacts.is_up, far)) or None)
        return are_up is not None

    def puller(self) -> Puller:
        """Return a `Puller`, which fetches values of members on other hosts."""
        group, own = self.group, self.group.own
        header = {
            "type": "pull",
            "tag": group.tag,
            "name": own.name,
            "incarnation": own.incarnation,
            "view": group.view.identity,
            "number": group.number,
        }
        return Puller(self._collectives.listener, self.contacts, self._runtime.queue(), header)

    def count_mapped(self, peer: str, nbytes: int) -> None:
        """Add bytes that were read from a peer's shared memory to the traffic statistics."""
        self.contacts.count(peer, mapped=nbytes, taken=nbytes)

    def _count_inline(self) -> None:
        """Add the values that members sent inside their entries to the traffic statistics."""
        own = len(self.entries[self.own].inline) if self.own in self.entries else 0
        for name, entry in self.entries.items():
            nbytes = len(entry.inline)
            if name == self.own or not own + nbytes:
                continue
            is_mapped = self.contacts.is_near(name)
            self.contacts.count(
                name,
                sent=0 if self.contacts.reads_us(name) else own,
                received=0 if is_mapped else nbytes,
                mapped=nbytes if is_mapped else 0,
                taken=nbytes,
            )

    # Errors

    def _failure(self, decision: Decision) -> Exception:
        lost, (calls, clash) = ", ".join(decision.lost), self._calls_in_words(decision)
        if decision.lost:
            told = f" ({calls})" if calls else ""
            detail = f"{clash}lost {lost} in a collective. The others continue{told} [DPWA-E228]"
            return PeerLost(decision.lost, detail)
        return CollectiveTimeoutError(
            f"{clash}a collective did not end within {self._timeout_s:g} s, or a connection broke. "
            f"No node was excluded{calls and '. '}{calls} [DPWA-E229]"
        )

    def _calls_in_words(self, decision: Decision) -> tuple[str, str]:
        """Describe which collective call each node was in when the collective failed, if known.

        Returns the end of an error message, and the beginning of the message if calls clash.
        """
        known = self.group.calls_at_ballot
        if known is None:
            return "", ""
        number, records = known
        names = {*self.group.view.names, *decision.lost, *records}
        calls = {name: self._call_elsewhere(name) for name in sorted(names, key=self._place)}
        clashes = any(call for name, call in calls.items() if name not in records)
        tag = _with_tag(self.group) if clashes else ""
        calls |= {name: _named(number, record) + tag for name, record in records.items()}
        is_up, away = self.contacts.is_up, " (not connected)"
        words = calls_in_words({n + away * (not (c or is_up(n))): c for n, c in calls.items()})
        return ("", f"{words}. Calls with different tags never meet: ") if clashes else (words, "")

    def _call_elsewhere(self, name: str) -> str:
        """Return the call in which a member waits in another group, or "" if no call is known."""
        for group in self._collectives.groups():
            found = None if group is self.group else group.call_of(name)
            if found is not None:
                return _named(*found) + _with_tag(group)
        return ""

    def _place(self, name: str) -> tuple[int, str]:
        ranks = self.group.ranks
        return ranks.index(name) if name in ranks else len(ranks), name


def _with_tag(group: Group) -> str:
    return f" with the tag {group.tag!r}" if group.tag else " with no tag"


def _named(number: int, record: bytes) -> str:
    try:
        return f"{Contribution.unpack(record).call} #{number + 1}"
    except PeerError:
        return f"a call that cannot be read (#{number + 1})"
