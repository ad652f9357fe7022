"""Takes a collective of one group from the call to its result, or to the error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dpwa import fault_points
from dpwa.clock import Deadline
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.entries import (
    Contribution,
    Entries,
    calls_in_words,
    contributors,
    mismatch,
    pack_join_requests,
    unpack_join_requests,
)
from dpwa.collectives.group import Group
from dpwa.collectives.operations import Operation
from dpwa.collectives.pulling import LOOK_EVERY_S, PullListener, PullSource
from dpwa.collectives.views import ENTERED, READY
from dpwa.collectives.workspace import CollectiveWait, DecidedError, RoundLimits, Workspace
from dpwa.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    LeftBehindError,
    MismatchError,
    PeerError,
    PeerLost,
    UserError,
)
from dpwa.policy.ballots import Decision
from dpwa.runtime import CallLock, Runtime

ASK_EVERY_S = 0.2
MEET_S = 5.0  # for others to begin, too, where each begins alone: joining may take seconds


class _EvictedError(Exception):
    """This node is not part of the others' collective."""


class Runner:
    """The collectives of one group, one after the other.

    `groups` returns the groups of all tags, for messages about members that wait in other tags.
    """

    def __init__(
        self,
        group: Group,
        contacts: Contacts,
        listener: PullListener,
        pull_source: PullSource,
        runtime: Runtime,
        groups: Callable[[], list[Group]] = list,
    ) -> None:
        self.group = group
        self._own = contacts.own.name
        self._runtime = runtime
        self._groups = groups
        self._call_lock = runtime.call_lock()  # one at a time
        self._inside: int | None = None  # the collective it is in, or was when an interrupt came
        # what all have called in it, once that is known, and how that differs
        self._entries: Entries | None = None
        self._mismatch: str | None = None
        self.space = Workspace(group, contacts, listener, pull_source, runtime)

    def run_operation(
        self, operation: Operation, timeout_s: float, limits: RoundLimits | None = None
    ) -> tuple[str, ...]:
        """Take part in a collective, and return the names of the nodes that have contributed.

        It ends at the latest at its `limits`, with those that have entered. With limits, this node
        leaves the others if it is still in the collective after `timeout_s`.

        Raises:
            MismatchError: members made different calls.
            PeerLost: members are gone.
            CollectiveTimeoutError: all members are there, but it did not end in time.
            LeftBehindError: the others have continued without this node, or do not admit it.
        """
        with self._call():
            if self._inside is not None:
                self._give_up()
            deadline = Deadline(self._runtime, timeout_s)
            self._meet(Deadline(self._runtime, min(MEET_S, timeout_s / 2)))
            while True:
                self.group.prepare_call()
                if self.group.told():
                    raise LeftBehindError(
                        (self._own,),
                        f"the others have continued without {self._own}, which was silent for too "
                        "long. Its next collective waits to be admitted again [DPWA-E240]",
                    )
                if self.group.is_evicted:
                    self._get_in(deadline, timeout_s)
                    if limits is None:  # or one let in late would take those who did it for late
                        deadline = Deadline(self._runtime, timeout_s)
                try:
                    return self._attempt(operation, deadline, timeout_s, limits)
                except _EvictedError:
                    continue  # to tell, or to ask to join

    def get_in(self, timeout_s: float) -> None:
        """Take part again, if this node was left behind, without calling a collective.

        Raises PeerLost if there is no other node (this one continues alone), LeftBehindError if the
        others do not admit it.
        """
        with self._call():
            self.group.told()
            if self.group.is_evicted:
                self._get_in(Deadline(self._runtime, timeout_s), timeout_s)

    def ask_in(self, patience_s: float) -> bool:
        """Ask to be admitted, if this node was left behind. Return whether it is a member.

        This waits for `patience_s` at most, and no longer once a member says that it waits
        elsewhere, maybe for this node. Afterwards the RxThread continues to ask.
        """
        with self._call():
            group, deadline = self.group, Deadline(self._runtime, patience_s)
            group.told()
            group.is_refused = False
            while group.is_evicted:
                group.check_open()
                group.ask_to_join(again=True)
                if deadline.expired() or group.is_refused:
                    return False
                with group.lock:
                    patience_s = min(ASK_EVERY_S, deadline.remaining_s())
                    group.changed.wait_for(self._is_answered, patience_s)
            return True

    def _is_answered(self) -> bool:
        return not self.group.is_evicted or self.group.is_refused

    def _call(self) -> CallLock:
        """Return the lock of the current call, because a call within a call would never end."""
        if self._call_lock.is_own:  # such as that of a signal handler
            raise UserError(
                "this thread is in a collective with this tag already; expected a different tag"
                " [DPWA-E149]"
            )
        return self._call_lock

    def _attempt(
        self, operation: Operation, deadline: Deadline, timeout_s: float, limits: RoundLimits | None
    ) -> tuple[str, ...]:
        self._entries, self._mismatch = None, None
        wait = CollectiveWait(self.group, self._runtime, deadline, limits)
        self._inside = self.group.called
        try:
            decision = self._take_part(operation, wait, limits)
        except BaseException as error:
            ended = self._give_up()
            if ended is not None and ended.holds:
                with suppress(PeerError):
                    operation.complete()  # the others have all of it
            else:
                operation.undo()
            if isinstance(error, PeerError):
                raise LeftBehindError(
                    (self._own,), f"a member said nonsense: {error} [DPWA-E148]"
                ) from None
            raise
        self._finish()
        return self._end(operation, decision, timeout_s)

    def _give_up(self) -> Decision | None:
        """Leave the current collective, so that no node waits for this one. Return how it ended."""
        with self.group.lock:
            if self.group.number == self._inside:
                self.group.leave_group()
            decision = self.group.decision
        self._finish()
        return decision

    def _finish(self) -> None:
        self.space.pull_source.hide(self.group.tag)
        if self._inside is not None:
            self.group.finish(self._inside)
            self._inside = None

    def _take_part(
        self, operation: Operation, wait: CollectiveWait, limits: RoundLimits | None
    ) -> Decision:
        group = self.group
        try:
            fault_points.reached("collective.called")
            group.enter(operation.enter(self.space).pack())
            fault_points.reached("collective.entered")
            records = wait.collect(ENTERED)
            fault_points.reached("collective.met")
            entries = {name: Contribution.unpack(record) for name, record in records.items()}
            self._entries = entries
            self.space.keep_only(entries)
            self.space.came_along(entries)
            self._mismatch = mismatch(entries)
            if self._mismatch is None:
                operation.exchange(self.space, entries, wait)
            fault_points.reached("collective.exchanged")
            lets_in = limits is None or limits.lets_in
            group.post_ready(pack_join_requests(group.join_requests() if lets_in else ()))
            fault_points.reached("collective.ready")
            ready = wait.collect(READY).values()
            group.end_call({joiner for record in ready for joiner in unpack_join_requests(record)})
            fault_points.reached("collective.ended")
            return wait.wait_for(lambda: None)  # until it is over
        except DecidedError as over:
            return over.decision

    def _end(self, operation: Operation, decision: Decision, timeout_s: float) -> tuple[str, ...]:
        if not decision.holds:
            operation.undo()
        if self._own in decision.lost:
            raise _EvictedError
        entries = self._entries
        if not decision.holds or entries is None:
            raise self._failure(decision, timeout_s)
        if self._mismatch is not None:
            raise MismatchError(self._mismatch)
        try:
            operation.complete()
        except KeyboardInterrupt:
            operation.complete()  # the others have all of it, too
            raise
        except PeerError as error:
            raise CollectiveError(f"a member has sent nonsense: {error} [DPWA-E148]") from None
        return contributors(entries)

    def _failure(self, decision: Decision, timeout_s: float) -> Exception:
        lost, (calls, clash) = ", ".join(decision.lost), self._calls_in_words(decision)
        if decision.lost:
            told = f" ({calls})" if calls else ""
            detail = f"{clash}lost {lost} in a collective; others continue{told} [DPWA-E228]"
            return PeerLost(decision.lost, detail)
        return CollectiveTimeoutError(
            f"{clash}a collective did not end within {timeout_s:g} s, or a connection broke; "
            f"all nodes are still there{calls and ': '}{calls} [DPWA-E229]"
        )

    def _calls_in_words(self, decision: Decision) -> tuple[str, str]:
        """Describe which node was in which call when the collective failed, as far as this node
        knows.

        Returns words for the end of a message, and words for its beginning if calls clash.
        """
        known = self.group.calls_at_ballot
        if known is None:
            return "", ""
        number, records = known
        names = {*self.group.view.names, *decision.lost, *records}
        calls = {name: self._call_elsewhere(name) for name in sorted(names, key=self._place)}
        clashes = any(call for name, call in calls.items() if name not in records)
        tag = _with_tag(self.group) if clashes else ""
        calls |= {name: _call(number, record) + tag for name, record in records.items()}
        is_up = self.space.contacts.is_up
        away = " (not connected)"
        words = calls_in_words({n + away * (not (c or is_up(n))): c for n, c in calls.items()})
        return ("", f"{words}: calls with different tags never meet; ") if clashes else (words, "")

    def _call_elsewhere(self, name: str) -> str:
        """Return the call with a different tag in which a member waits, or "" if none is known."""
        for group in self._groups():
            found = None if group is self.group else group.call_of(name)
            if found is not None:
                return _call(*found) + _with_tag(group)
        return ""

    def _place(self, name: str) -> tuple[int, str]:
        ranks = self.group.ranks
        return ranks.index(name) if name in ranks else len(ranks), name

    def _meet(self, deadline: Deadline) -> None:
        """Begin together with other nodes that begin, if they arrive in time."""
        while self.group.may_meet() and not deadline.expired():
            self.group.check_open()
            with self.group.lock:
                self.group.changed.wait(LOOK_EVERY_S)
        self.group.meet()

    def _get_in(self, deadline: Deadline, timeout_s: float) -> None:
        """Ask to be admitted until a node does so. Continue alone if there is none."""
        group = self.group
        while group.is_evicted:
            group.check_open()
            reached = group.ask_to_join()
            group.start_anew()
            with group.lock:
                patience_s = min(ASK_EVERY_S, deadline.remaining_s())
                group.changed.wait_for(lambda: not group.is_evicted, patience_s)
            if group.is_evicted and deadline.expired():
                if not group.is_answered:
                    group.start_alone()
                    others = group.others
                    raise PeerLost(
                        others, "no other node answers, so this one continues alone [DPWA-E146]"
                    )
                own, bound = self._own, f"within {timeout_s:g} s"
                if reached:
                    asked = ", ".join(reached)
                    raise LeftBehindError(
                        (own,), f"no collective of {asked} admitted {own} {bound} [DPWA-E147]"
                    )
                raise LeftBehindError(
                    (own,),
                    f"{own} was not admitted again {bound}, and no other node can be reached now"
                    " [DPWA-E167]",
                )


def _with_tag(group: Group) -> str:
    return f" with the tag {group.tag!r}" if group.tag else " with no tag"


def _call(number: int, record: bytes) -> str:
    try:
        return f"{Contribution.unpack(record).call} #{number + 1}"
    except PeerError:
        return f"a call that cannot be read (#{number + 1})"
