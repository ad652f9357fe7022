"""The rounds in which nodes in sync average gradients, and how a node leaves and rejoins."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dpwa.algorithms import Algorithm
from dpwa.algorithms.together import Together
from dpwa.clock import Deadline
from dpwa.collectives.admission import ask_in
from dpwa.collectives.collectives import Collectives
from dpwa.collectives.comparison import (
    DIGEST_BYTES,
    Comparison,
    Difference,
    History,
    Sample,
    difference,
)
from dpwa.collectives.objects import PackedObject, unpack_object
from dpwa.collectives.operations import Gather, Operation, Reduce
from dpwa.data.layout import Layout
from dpwa.data.payload import Payload
from dpwa.data.segments import ByteArray
from dpwa.errors import (
    CollectiveTimeoutError,
    LeftBehindError,
    MismatchError,
    PeerError,
    PeerLost,
    ProtocolError,
)
from dpwa.lifecycle import weakly
from dpwa.node.report import PaceReport
from dpwa.policy.ballots import GONE_S, LATE_S, STALLED_S, Silence
from dpwa.policy.beginners import SAME_BATCHES
from dpwa.policy.deadlines import FetchTimes
from dpwa.policy.group_views import GroupView, Member
from dpwa.policy.wait_budgets import MAX_STEPS, MAX_WAIT_S, Absence, Patience, RoundLimits
from dpwa.wire.fetching import other_model
from dpwa.wire.messages import pack_layout

log = logging.getLogger("dpwa.collectives")

GONE_IN_STEP_S = 0.05  # who is left out for nothing is back a step later
MAX_MISSING = 0.7  # of the time that is left to an update: others may be missing for so long
MAX_SILENCE = 0.15  # likewise, in a ballot; the rest is for one more try among those that are there
MIN_ANSWER_S = 0.05  # an answer may take, however fast the network is
MIN_EXCHANGE_S = 0.25
EXCHANGES = 2.0  # times as long as an exchange takes as a rule, one may take
COMPARED_BATCHES, MAX_SAME_BATCHES = 10, 3  # steps, at the beginning of a training
SAMPLES, SAMPLE_BYTES = 32, 64  # of the gradients that are compared
MISMATCHES, WITHIN_STEPS = 3, 10  # a newcomer may be the reason of fewer
WARNED_EVERY_S = 60.0
ALONE_S, ALONE_STEPS = 1.0, 3  # after which a node that trains alone says so
BYTES_PER_S = 2e6  # at which values come at least


def _packed(state: object) -> ByteArray:
    packed = PackedObject(state)
    data = np.zeros(packed.nbytes, np.uint8)
    packed.copy_into(data)
    return data


def _batch_digest(payload: Payload) -> bytes:
    """Return a digest of a part of the gradients, or b"" if the part is zero."""
    part, nbytes = np.zeros((SAMPLES, SAMPLE_BYTES), np.uint8), min(SAMPLE_BYTES, payload.nbytes)
    for row, target in enumerate(part):
        start = row * (payload.nbytes - nbytes) // SAMPLES
        payload.copy_into(start, start + nbytes, target[:nbytes])
    return hashlib.blake2b(part.data, digest_size=4).digest() if part.any() else b""


class _State(NamedTuple):
    """A member's summary of its training state, such as its step and a digest."""

    is_known: bool  # to the others
    step: int
    digest: bytes
    nbytes: Annotated[int, Field(ge=0)]
    layouts: list[object]  # their fingerprints
    history: History
    sample: Sample  # what was compared, if members differed in it


_STATES = TypeAdapter(dict[str, _State], config=ConfigDict(strict=True))


def _states(values: Mapping[str, object]) -> dict[str, _State]:
    """Return the members' summaries of their states. Raises `ProtocolError` if one is invalid."""
    try:
        return _STATES.validate_python(values)
    except ValidationError as error:
        name = error.errors()[0]["loc"][0]
        raise ProtocolError(f"{name} sent an invalid description of its state") from None


def _giver(said: Mapping[str, _State], differ: Difference | None) -> str:
    """Return the name of the member whose state all members copy.

    It is the first member in sync, because all members in sync are equal. If there is none, it is
    the first of those with the most steps, and if members differ, of those in the majority.
    """

    def rank(name: str) -> tuple[bool, bool, int]:
        state = said[name]
        is_usual = differ is not None and bool(state.sample) and name not in differ.odd
        return state.is_known, is_usual, state.step * (not state.is_known)

    return max(said, key=rank)


def _add(sums_s: dict[str, float], more_s: Mapping[str, float]) -> None:
    for name, s in more_s.items():
        sums_s[name] = sums_s.get(name, 0.0) + s


def _digest(data: ByteArray) -> bytes:
    return hashlib.blake2b(data.data, digest_size=16).digest()


class PacedRounds:
    """Averages values with the other nodes in sync, in each step, on one thread at a time.

    Each step calls `average`, then changes the state, then calls `stepped`. All nodes in a round
    have the same average, bit by bit. A node that missed the round continues with its own value,
    and rejoins after a step. The others admit it when they end a round, and in their `stepped` it
    gets their state. So all nodes in sync have the same state after each step.

    `_equal` are the members that are known to have this state. All others, such as new members, get
    the state first. All members know the same of each other, and new members know of no node.

    Args:
        collectives: of this node.
        tag: of its rounds.
        timeout_s: maximum time to wait for others in an update, without the time that values
            travel.
        step: returns the number of steps of this node.
        copy: returns a copy of the state, plain data for others.
        take_over: adopts the state, given the name of a peer and its copy.
        parted: called with the name of a peer that had the same state until now, on any thread.
        leaves_out: called if a value is not finite. Returns whether the mean leaves it out.
        sample: returns digests of a part of the state, as `Comparison` has it.
        others_have_ended: returns whether all others have taken their last step.
        layouts: returns the layouts of the gossiped tensors, and of the model in the state.
        compared: called with the name of a peer, and the difference of its layout of the gossiped
            tensors, or "".
    """

    def __init__(
        self,
        collectives: Collectives,
        tag: str,
        timeout_s: float,
        step: Callable[[], int],
        copy: Callable[[], object],
        take_over: Callable[[str, Any], None],
        parted: Callable[[str], None] = lambda _: None,
        leaves_out: Callable[[], bool] | None = None,
        sample: Callable[[int], Sample] = lambda _: {},
        others_have_ended: Callable[[], bool] = lambda: False,
        layouts: Callable[[], Sequence[Layout]] = tuple,
        compared: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._collectives = collectives
        self._own = collectives.name
        self._tag = tag
        self._timeout_s = timeout_s
        self._runtime = runtime = collectives.runtime
        self._step, self._copy, self._take_over, self._parted = step, copy, take_over, parted
        self._leaves_out, self._comparison = leaves_out, Comparison(sample)
        self._others_have_ended = others_have_ended
        self._layouts, self._compared = layouts, compared
        self._group = collectives.group(tag)
        self._group.watch(weakly(self._view_changed))
        self._patience = Patience(timeout_s)
        self._exchanges: dict[int, FetchTimes] = {}  # once all have entered, by size in bytes
        self.has_begun = False  # with what the others have
        self._steps = 0  # that it has taken itself
        # Since all were made equal: updates, and steps of the optimizers; rounds in this update
        self._place = self._taken = self._passes = 0
        self._differs = False  # in this step, from others
        self._differed_at: deque[int] = deque(maxlen=MISMATCHES)  # the last such steps
        self._warned_at: dict[tuple[str, str], float] = {}  # by text, and of which node
        # For which the node may still wait in this update, beside the time that values travel
        self._left_s = timeout_s
        self._deadline = Deadline(runtime, timeout_s)  # in this call
        self._absence = Absence()
        self._asked_at: float | None = None  # to be let in; it has not been yet
        self._only_looks = False  # whether it has been: it has waited for that in vain
        self._equal: frozenset[Member] = frozenset()
        self._exits = 0  # of the group, when these were noted
        self._alone: tuple[float, int] | None = None  # since when, and which of its steps
        self._ended_at = -math.inf  # those of the last step
        self._worked_s = 0.0  # between the last two steps' rounds
        self._missed_s: dict[str, float] = {}  # of this step: for how long others were missing
        self._same_batches = Counter[str]()  # in how many of the first steps, by peer
        self._seconds = 0.0  # in rounds
        self._rounds_with = Counter[str]()  # by member, its own name among them
        self._out_of_sync_at: float | None = None  # since when

    @property
    def is_apart(self) -> bool:
        """Whether this node is out of sync."""
        return self._absence.since is not None

    @property
    def others(self) -> list[str]:
        """The other nodes in sync, as far as this node knows."""
        return [name for name in self._group.view.names if name != self._own]

    @property
    def are_all_near(self) -> bool:
        """Whether this node shares memory with all other members, so that it needs no network."""
        return all(map(self._collectives.contacts.is_near, self.others))

    def begin_rounds(self) -> None:
        """Join the rounds once: adopt the state of nodes in sync, or of one node if all are new."""
        if not self.has_begun:
            self.has_begun, self._absence, self._out_of_sync_at = True, Absence(), None
            self._steps = 0
            self._differed_at.clear()
            self._collectives.give_way(self._tag)
            with self._waiting():
                self._make_equal()
            self._left_s = self._timeout_s
            self._comparison.sample_state()

    def update(self, algorithm: Algorithm) -> None:
        """Join the rounds before an update, and tell `algorithm` how many nodes are in sync."""
        self.begin_rounds()
        if isinstance(algorithm, Together):
            contacts, members = self._collectives.contacts, self._group.view.names
            there = [name for name in contacts.names if contacts.is_up(name)]
            algorithm.is_apart = self.is_apart
            algorithm.are_all_there = all(name in members for name in there)
            algorithm.mates = len(members) - 1
            algorithm.place = members.index(self._own) if self._own in members else 0

    def average(
        self,
        payload: Payload,
        settings: str = "",
        *,
        is_last: bool = True,
        waits_since: float | None = None,
    ) -> int:
        """Set a value in place to its mean over all nodes that take part in this round.

        A step may have several rounds, and the training waits for the last of them, since
        `waits_since` or from now on. At the end of the last round, nodes that ask to join are
        admitted.

        A node with different `settings`, or in a different step or pass, is not equal to the
        others. Then no node has a part in this round or the next ones, and all are made equal after
        the step. The first round of a step also compares a part of the state. If it differs, all
        have a part in the rounds, and are made equal after the step.

        Returns:
            The number of nodes, or 0 if this node is out of sync, and its value is unchanged.
        """
        if self.is_apart or not self.has_begun or self._differs:
            return 0
        began = self._runtime.now()
        waits_since = began if waits_since is None else waits_since
        self._passes += 1
        place = f"of step {self._place} ({self._taken} taken) pass {self._passes}"
        label = f"{place} {settings}".strip()
        digest = self._comparison.digest() if self._passes == 1 else b""
        if self._passes == 1 and self._steps < COMPARED_BATCHES:
            digest = digest.ljust(DIGEST_BYTES, b"\0") + _batch_digest(payload)
        with self._waiting():
            contributors = self._averaged(payload, label, digest, is_last)
        now = self._runtime.now()
        self._seconds += now - began
        if is_last:
            if self._ended_at != -math.inf and not self.is_apart:  # not of a step that was late
                self._worked_s = waits_since - self._ended_at
            waited_s = now - waits_since
            missed_s = {name: min(s, waited_s) for name, s in self._missed_s.items()}
            self._patience.took_part(missed_s, self._worked_s)
            self._missed_s, self._ended_at = {}, now
        return contributors

    def stepped(self, taken: int = 1) -> None:
        """After a step, give new members the common state, or rejoin if this node is out of sync.

        A node whose optimizers have `taken` a different number of steps is not equal to the others.
        """
        if not self.has_begun:
            return
        self._steps += 1
        self._place += 1
        self._taken += taken
        self._passes, self._differs = 0, False
        self._comparison.stepped()
        if not self.is_apart and self._group.is_evicted:
            self._fall_out("it has left")
        with self._waiting():
            if self.is_apart:
                if self._asked_at is not None or self._absence.may_enter(self._steps):
                    self._come_back()
            elif self._newcomers():
                self._make_equal()
        self._left_s = self._timeout_s
        self._say_if_alone()
        self._comparison.sample_state()

    def leave_rounds(self) -> None:
        """Leave the rounds, so that no node waits for this node until this node joins again."""
        if self.has_begun:
            self.has_begun, self._absence = False, self._absence.left(self._steps)
            self._out_of_sync_at = self._asked_at = None
            self._forget_all()
            self._group.leave_group()

    def report(self) -> PaceReport:
        names = () if self.is_apart else self._group.view.names
        patience_s = self._patience.allowances(self.others)
        rounds_with = dict(self._rounds_with)
        rounds, since = rounds_with.pop(self._own, 0), self._out_of_sync_at
        out_of_sync_s = None if since is None else self._runtime.now() - since
        return PaceReport(names, rounds, self._seconds, patience_s, out_of_sync_s, rounds_with)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Limit the wait for other nodes in a `with` block to the time left in this update."""
        self._deadline = Deadline(self._runtime, self._left_s)
        try:
            yield
        finally:
            self._left_s = self._deadline.remaining_s()

    def _averaged(self, payload: Payload, label: str, digest: bytes, is_last: bool) -> int:
        if self._exits != self._group.exits:  # such as after an interrupt in the last round
            self._fall_out("it has left")
        reduce = Reduce(payload, "mean", None, label, self._leaves_out, digest)
        missed_s: dict[str, float] = {}  # in this round
        while not self.is_apart:
            exchange = self._exchange(payload.nbytes)
            usual_s = exchange.deadline_s(self._timeout_s + self._travels_s(payload.nbytes))
            most_s = self._patience.allowances(self.others, missed_s)
            limits = self._limits(payload.nbytes, most_s, usual_s, lets_in=is_last)
            hasty: list[str] = []
            try:
                contributors = self._run(reduce, payload.nbytes, limits)
            except PeerLost:
                pass  # once more, without them
            except CollectiveTimeoutError as late:
                self._exchanges[payload.nbytes] = exchange.timed_out()
                hasty = limits.given_up
                self._patience.was_hasty(hasty)
                log.info("%s: %s: once more", self._own, late.text)
            except MismatchError as differs:
                self._note_mismatch(differs)
                return 0
            else:
                if len(contributors) > 1:  # alone, it would learn that exchanges take no time
                    self._rounds_with.update(contributors)
                    self._exchanges[payload.nbytes] = exchange.succeeded(limits.took_s)
                self._compare_batches(reduce.digests)
                if len({each[:DIGEST_BYTES].rstrip(b"\0") for each in reduce.digests.values()}) > 1:
                    self._forget_all()
                    self._comparison.note_difference()
                for name in reduce.left_out:
                    self._warn(
                        "%s: the gradients of %s are not finite, so the average excludes them. "
                        "Check the data and the learning rate of %s. If the node has a "
                        "GradScaler, use dpwa.connect(..., scheduler=scaler) [DPWA-W084]",
                        name,
                        name,
                        of=name,
                    )
                return len(contributors)
            finally:
                if not hasty:
                    _add(missed_s, limits.longest_s)
                    _add(self._missed_s, limits.longest_s)
        return 0

    def _compare_batches(self, digests: Mapping[str, bytes]) -> None:
        """Warn, once, of a peer whose gradients were the same in several steps."""
        own = digests.get(self._own, b"")[DIGEST_BYTES:]
        for name, digest in digests.items():
            if own and name != self._own and digest[DIGEST_BYTES:] == own:
                self._same_batches[name] += 1
                if self._same_batches[name] == MAX_SAME_BATCHES:
                    self._warn(SAME_BATCHES, name)

    def _note_mismatch(self, differs: MismatchError) -> None:
        """Treat all members as different in state, and warn if mismatches are frequent."""
        self._forget_all()
        self._differs = True
        log.info("%s: %s", self._own, differs.text)
        self._differed_at.append(self._steps)
        is_often = len(self._differed_at) == MISMATCHES
        if is_often and self._steps - self._differed_at[0] < WITHIN_STEPS:
            self._warn(
                "%s: nodes differ repeatedly, so some gradients are not averaged: %s. On all "
                "nodes, use the same model, learning rate, codec and GradScaler scale. Also, make "
                "equally many backward passes and optimizer steps on all nodes [DPWA-W079]",
                differs.text,
            )

    def _forget_all(self) -> None:
        with self._group.lock:
            self._keep(())

    def _keep(self, members: Iterable[Member]) -> None:
        """Forget which nodes have this node's state, except those in `members`."""
        kept = self._equal.intersection(members)
        for each in sorted(self._equal - kept):
            self._parted(each.name)
        self._equal = kept

    def _travels_s(self, nbytes: int) -> float:
        """Return the maximum seconds that the transfer of `nbytes` bytes may take."""
        return nbytes * self._runtime.bytes_scale / BYTES_PER_S

    def _limits(
        self, nbytes: int, most_s: Mapping[str, float], usual_s: float, *, lets_in: bool = True
    ) -> RoundLimits:
        """Return limits for a collective that usually takes `usual_s` once all have entered."""
        left_s = self._deadline.remaining_s()
        missing_s, silence_s = MAX_MISSING * left_s, MAX_SILENCE * left_s
        # Nobody's answer takes longer than an exchange does.
        gone_s = GONE_IN_STEP_S if self._steps else GONE_S
        late_s, stalled_s = min(LATE_S, usual_s), min(STALLED_S, EXCHANGES * usual_s)
        self._group.silence = Silence(gone_s, min(late_s, silence_s), min(stalled_s, silence_s))
        exchange_s = max(MIN_EXCHANGE_S, EXCHANGES * usual_s)
        exchange_s = min(exchange_s, missing_s + self._travels_s(nbytes))
        return RoundLimits(most_s, missing_s, exchange_s, lets_in=lets_in)

    def _run(self, operation: Operation, nbytes: int, limits: RoundLimits) -> tuple[str, ...]:
        """Run a collective, and return its contributors, or () if this node is now out of sync."""
        began, left_s = self._runtime.now(), self._deadline.remaining_s()
        is_late = left_s == 0.0 and bool(self.others)
        if is_late or (self._steps and self._group.is_evicted):
            self._group.leave_group()
            self._fall_out("it has left")
            return ()
        try:
            bound_s = (left_s or MIN_EXCHANGE_S) + self._travels_s(nbytes)
            contributors = self._collectives.run_operation(operation, bound_s, self._tag, limits)
        except LeftBehindError as behind:
            self._fall_out(behind.text)
            return ()
        limits.took_s = self._runtime.now() - max(began, limits.entered_at)
        if nbytes:  # values travel beside the timeout, messages within it
            self._deadline.end += limits.took_s
        return contributors

    def _fall_out(self, why: str) -> None:
        self._forget_all()
        self._out_of_sync_at = self._out_of_sync_at or self._runtime.now()
        self._absence = self._absence.left(self._steps)
        self._exits, self._asked_at = self._group.exits, None
        log.info("%s: this node is out of sync: %s", self._own, why)

    def _view_changed(self, view: GroupView) -> None:
        """Forget nodes that have left, because they must adopt the state again when they return."""
        self._keep(view.members)

    def _come_back(self) -> None:
        """Request admission, and wait for it at most as long as nodes wait for a late node.

        A node that is admitted while it trains rejoins after that step. Others may end no round by
        then, because they wait for this node elsewhere, or have ended their loop. After a first
        wait without success this node only checks.
        """
        group, now = self._group, self._runtime.now()
        if self._exits != group.exits:
            self._fall_out("this node was admitted, but came too late")
            return
        if self._asked_at is None:
            self._asked_at, self._only_looks = now, False
            group.forget_answers()
        wanted_s = max(MAX_WAIT_S, MAX_STEPS * self._worked_s)
        patience_s = 0.0 if self._only_looks else min(self._deadline.remaining_s(), wanted_s)
        if not ask_in(group, patience_s):
            self._only_looks |= self._runtime.now() - now >= patience_s
            if now - self._asked_at < self._timeout_s:
                return
            if group.discovery.knows_views:
                self._asked_at = now
                group.forget_answers()
                return
            group.start_alone()
        self._asked_at = None
        self._absence, self._out_of_sync_at = self._absence.returned(self._steps), None
        if self._newcomers():
            self._make_equal()

    def _newcomers(self) -> list[str]:
        known = self._known()
        return [name for name in self._group.view.names if name not in known]

    def _known(self) -> list[str]:
        """Return the members with this node's state, none if this node has left in between."""
        with self._group.lock:
            if self._exits != self._group.exits:
                self._exits = self._group.exits
                self._keep(())
            return [each.name for each in self._group.view.members if each in self._equal]

    def _make_equal(self) -> None:
        """Copy the state of the nodes in sync, or of the most trained node, to all new members."""
        try:
            while not self.is_apart and not self._are_equal():
                pass
        except PeerError as unfit:
            self._group.leave_group()
            self._fall_out(str(unfit))
            self._warn(
                "%s: this node stays out of sync, because it cannot use the state of a peer: %s. "
                "Use the same model and the same optimizer on all nodes [DPWA-W080]",
                str(unfit),
            )
        self._ended_at, self._missed_s = -math.inf, {}

    def _are_equal(self) -> bool:
        """Try once to give all members the same state. Return whether all members now have it."""
        known = self._known()
        gives = not known or known[0] == self._own
        state = _packed(self._copy()) if gives else np.empty(0, np.uint8)
        # Nodes that have not begun yet may have to be started first.
        missing_s = min(self._timeout_s, MAX_WAIT_S) if known or self._steps else self._timeout_s
        layouts = self._layouts()
        own = [bool(known), self._step(), _digest(state), state.nbytes]
        own += [[each.fingerprint for each in layouts]]
        gather = Gather([*own, [*self._comparison.history], dict(self._comparison.told())])
        if not self._has_worked(gather, 0, missing_s):
            return False
        exits, said = self._group.exits, _states(gather.values)
        differ = difference({name: state.sample for name, state in said.items()})
        giver = _giver(said, differ)
        unlike = self._differences(layouts, said, missing_s)
        if unlike is None:
            return False
        nbytes = said[giver].nbytes
        if differ is not None:
            self._warn_of(differ, giver)
        if any(not each.is_known and each.digest != said[giver].digest for each in said.values()):
            given = state if giver == self._own else np.empty(nbytes, np.uint8)
            if not self._has_worked(Reduce(Payload(given), "sum", giver), nbytes, missing_s):
                return False
            if giver != self._own and not known:
                if unlike.get(giver):
                    raise PeerError(f"{giver} has a different model: {unlike[giver]}")
                self._take_over(giver, unpack_object(given))
        self._patience.came_back(self._newcomers(), self._worked_s)
        self._exchanges = {}  # among more, it takes longer
        with self._group.lock:
            # Whoever has been let in at its end has had no part in it.
            members = (each for each in self._group.view.members if each.name in said)
            self._equal, self._exits = frozenset(members), exits
        self._place = self._taken = self._passes = 0
        self._differs = False
        self._comparison.made_equal(said[giver].history)
        return not self._newcomers()

    def _differences(
        self, layouts: Sequence[Layout], said: Mapping[str, _State], missing_s: float
    ) -> dict[str, str] | None:
        """Return how the layouts (tensors) of peers differ, or `None` if the exchange failed."""
        found: dict[str, str] = {}
        for place, layout in enumerate(layouts):
            own: list[object] = [layout.fingerprint]
            unlike = {name for name, each in said.items() if each.layouts[place : place + 1] != own}
            if unlike and not found:
                gather = Gather(pack_layout(layout))
                if not self._has_worked(gather, 0, missing_s):
                    return None
                told = gather.values.items()
                found = {n: other_model(layout, text) for n, text in told if n in unlike}
            if place == 0:
                for name in said:
                    self._compared(name, found.get(name, ""))
        return found

    def _warn_of(self, differ: Difference, giver: str) -> None:
        tensors = repr(differ.tensors[0])
        if len(differ.tensors) > 1:
            tensors += f" and {len(differ.tensors) - 1} others"
        odd = f"{', '.join(differ.odd)} in {tensors}"
        if self._comparison.is_often:
            self._warn(
                "%s: parameters differ repeatedly, now on %s. Gradients are still averaged, "
                "and all nodes copy the state of %s every 100 steps. Do not change parameters on "
                "one node alone. An optimizer must keep all of its state in its attribute `state` "
                "[DPWA-W083]",
                odd,
                giver,
            )
        else:
            self._warn(
                "%s: parameters differ on %s. All nodes copy the state of %s. Do not change "
                "parameters on one node alone. An optimizer must keep all of its state in its "
                "attribute `state` [DPWA-W082]",
                odd,
                giver,
            )

    def _has_worked(self, operation: Operation, nbytes: int, missing_s: float) -> bool:
        """Run a collective with the new members, which wait in it already, and return its success.

        `missing_s` is the time for which any member may be missing.
        """
        largest = max(self._exchanges, default=0)
        as_large = max(1.0, nbytes / largest) if largest else math.inf
        longest_s = self._timeout_s + self._travels_s(nbytes)
        usual_s = min(longest_s, as_large * self._exchange(largest).deadline_s(longest_s))
        limits = self._limits(nbytes, dict.fromkeys(self.others, missing_s), usual_s)
        try:
            return bool(self._run(operation, nbytes, limits))
        except PeerLost:
            self._took_too_long()  # unless somebody is dead
        except (CollectiveTimeoutError, MismatchError) as failed:
            log.info("%s: begins anew: %s", self._own, failed.text)
            self._took_too_long()
            self._forget_all()
        return False

    def _exchange(self, nbytes: int) -> FetchTimes:
        return self._exchanges.get(nbytes, FetchTimes(floor_s=MIN_ANSWER_S))

    def _took_too_long(self) -> None:
        self._exchanges = {size: each.timed_out() for size, each in self._exchanges.items()}

    def _say_if_alone(self) -> None:
        """Warn if this node trains alone for some time, and others neither join nor have ended."""
        now, group = self._runtime.now(), self._group
        if self.is_apart or len(group.view.names) > 1 or group.join_requests():
            self._alone = None
        elif self._alone is None:
            self._alone = now, self._steps
        elif now - self._alone[0] >= ALONE_S and self._steps - self._alone[1] >= ALONE_STEPS:
            self._alone = math.inf, 0  # once
            if not self._others_have_ended():
                self._warn(
                    "%s: no other node is in sync, so this node trains alone until a node joins "
                    "[DPWA-W078]"
                )

    def _warn(self, text: str, *more: str, of: str = "") -> None:
        """Log a warning, but not the same warning again within `WARNED_EVERY_S` seconds."""
        if self._runtime.now() - self._warned_at.get((text, of), -math.inf) >= WARNED_EVERY_S:
            self._warned_at[text, of] = self._runtime.now()
            log.warning(text, self._own, *more)
