"""A group of nodes that call collectives with one tag, and this node's state in the group.

A view is a list of the members, and a ballot is their vote on a collective and on lost members. The
state of this node in the current collective is its `Phase`. One table has the effect of each
`Event` on the phase. The training thread calls a collective, and waits. The RxThread receives the
messages of the others. Both threads use a `Group` under its lock, so a node still votes while its
training thread runs other code.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from enum import Enum, IntEnum
from itertools import starmap

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.memory import ValueMemory
from dpwa.collectives.views import (
    ENTERED,
    NOWHERE,
    READY,
    GroupMessage,
    Key,
    PhaseRecords,
    ViewDiscovery,
)
from dpwa.data.shared_records import Posted
from dpwa.errors import ClosedError, UserError
from dpwa.policy.ballots import Ballot, Decision, Silence, Stand
from dpwa.policy.group_views import GroupView, Member, ViewRank, has_precedence
from dpwa.runtime import CallLock, Runtime
from dpwa.wire.collecting import AskToJoinView, CollectiveOutcome, Evicted, Post, Vote

log = logging.getLogger("dpwa.collectives")


class Phase(IntEnum):
    """The state of a node in the current or next collective of its group."""

    OUTSIDE = 0  # not a member: the node has left, or the others have continued without the node
    LEFT_BEHIND = 1  # the others have continued without the node, and its caller was not told yet
    ASKING = 2  # not a member, and the node requests admission
    REFUSED = 3  # as ASKING, but a member has answered that it waits in a different collective
    UNUSED = 4  # the only member of a view that a peer's message created. It announces no view
    IDLE = 5  # a member that has not called the collective yet
    ENTERED = 6  # the node has called the collective, and has notified the others
    READY = 7  # the node has exchanged its values, has notified the others, and waits for them
    VOTING = 8  # the node takes part in a ballot. If it was not ready before, it cannot become so


class Event(str, Enum):
    """The events that change the phase of a node. The training thread causes the first three.

    These three belong to the collective that the thread calls. After the collective has ended,
    these events have no effect.
    """

    CALLS = "this node calls the collective"
    HAS_DONE = "this node has done its part"
    ALL_READY = "this node knows that all members have done their parts"
    DOUBTS = "a member is missing, or votes, or the time is over"
    DECIDED = "the outcome is decided, and this node continues with the next collective"
    IS_LEFT = "the others continue without this node, or this node gives up"
    IS_TOLD = "the caller learns that the others have continued without this node"
    LEAVES = "this node leaves, or has taken no part in this view yet"
    ASKS = "this node asks to be admitted"
    IS_REFUSED = "a member answers that it waits in a different collective"
    IS_LET_IN = "this node is admitted"
    IS_USED = "this node begins to look for others"


_OUTSIDE, _LEFT_BEHIND, _ASKING, _REFUSED, _UNUSED, _IDLE, _ENTERED, _READY, _VOTING = Phase
_MEMBER = _UNUSED, _IDLE, _ENTERED, _READY, _VOTING

# The phase after an event, by the phase before. In all other phases, the event changes nothing.
_TABLE: dict[Event, dict[Phase, Phase]] = {
    Event.CALLS: {_UNUSED: _ENTERED, _IDLE: _ENTERED, _VOTING: _VOTING},
    Event.HAS_DONE: {_ENTERED: _READY},
    # If a ballot is under way, it can only have the same outcome, so this node waits for it.
    Event.ALL_READY: {_READY: _IDLE},
    Event.DOUBTS: dict.fromkeys((_UNUSED, _IDLE, _ENTERED, _READY), _VOTING),
    Event.DECIDED: dict.fromkeys(_MEMBER, _IDLE),
    Event.IS_LEFT: dict.fromkeys(_MEMBER, _LEFT_BEHIND),
    Event.IS_TOLD: {_LEFT_BEHIND: _OUTSIDE},
    Event.LEAVES: dict.fromkeys((_ASKING, _REFUSED, *_MEMBER), _OUTSIDE),
    Event.ASKS: dict.fromkeys((_OUTSIDE, _LEFT_BEHIND, _ASKING, _REFUSED), _ASKING),
    Event.IS_REFUSED: {_ASKING: _REFUSED},
    Event.IS_LET_IN: dict.fromkeys(Phase, _IDLE),
    Event.IS_USED: {_UNUSED: _IDLE},
}


REMEMBERED = 16  # past collectives whose outcomes this node can still send to members
ASK_AGAIN_S = 0.5  # between two requests for admission, while this node trains
REPEAT_S = 0.1  # between two messages with the same vote
CALL_AGAIN_S = 0.5  # between two messages with the same record, to missing members
ELSEWHERE_S = 0.1  # after this wait in a different call, peers may be waiting for this thread
GIVE_WAY_S = 0.2  # the longest time that these peers then wait for this thread
SEEK_AT_FIRST_EVERY_S = 0.1


class Group:
    """The state of one group on this node: its members (view), current collective and ballot.

    `ranks` are the names of all nodes in the order of the configuration. `ranks` is empty if nodes
    can come and go. Then each node begins alone and discovers the others. `are_known` returns
    whether this node knows all other nodes yet.

    A signal can interrupt the training thread, but not between assignments that call nothing.
    """

    def __init__(
        self,
        tag: str,
        ranks: Sequence[str],
        contacts: Contacts,
        runtime: Runtime,
        are_known: Callable[[], bool] = lambda: True,
    ) -> None:
        self.tag = tag
        self.ranks = tuple(ranks)
        self.own = contacts.own
        self.runtime = runtime
        self.memory = ValueMemory(contacts)
        self._contacts = contacts
        self._are_known = are_known
        # Reentrant: a signal handler may close the node while its thread is in here.
        self.lock = self.changed = runtime.condition()
        self._records = PhaseRecords(tag, contacts)
        self.discovery = ViewDiscovery(tag, contacts, self.ranks, runtime)
        self._watchers: list[Callable[[GroupView], None]] = []

        # The collective that comes next, or is under way
        self.view = GroupView(tuple(Member(name) for name in self.ranks) or (self.own,))
        self.number = 0
        # A peer's message can also create a group. Its phase is UNUSED until this node uses it.
        self.phase = Phase.IDLE if ranks else Phase.UNUSED
        self.ballot: Ballot | None = None  # while the phase is VOTING
        self._posted: dict[int, bytes] = {}  # this node's records, by phase
        self._called_at = 0.0  # when this node last sent its records to missing members
        self._lives: dict[str, bytes] = {}  # incarnations of members that the view does not have
        self._told_at = 0.0  # when this node last sent its vote
        # The members' calls when this node opened a ballot: the number of the collective, and the
        # records of the members that had entered, by name. `None`: no ballot since this node has
        # entered.
        self.calls_at_ballot: tuple[int, dict[str, bytes]] | None = None

        # The earlier collectives
        self.called = 0  # the collective that the training thread calls next, or is in
        self.inside: int | None = None  # the collective of the training thread, also after a signal
        self._call_lock = runtime.call_lock()
        self._decided: dict[int, Decision] = {}  # decisions that the training thread has not read
        # The decision of each collective, the view after it, and its members' incarnations
        self._ended: OrderedDict[Key, tuple[Decision, GroupView, dict[str, bytes]]] = OrderedDict()

        self.silence = Silence()  # the limits for silent members in ballots
        self.exits = 0  # how often this node has left or was excluded
        self._came_at = 0  # the number of the first collective since this node was admitted
        self._ask_at = math.inf  # when the RxThread requests admission again
        # Returns for how many seconds the thread that calls these collectives has waited for peers
        # anywhere. `None`: members wait for this thread wherever it is.
        self.lull_s: Callable[[], float] | None = None
        self._awaited_at = math.inf  # since when members wait for this node, which waits elsewhere
        self._admits_at_once = False  # whether a ballot admits nodes at their request
        self._work = 0  # changes of data that depend on views, without collectives

    @property
    def is_evicted(self) -> bool:
        """Whether this node is no member of the group."""
        return self.phase <= Phase.REFUSED

    @property
    def _asks(self) -> bool:
        """Whether this node has requested admission, and is no member yet."""
        return self.phase in (Phase.ASKING, Phase.REFUSED)

    @property
    def _is_away(self) -> bool:
        """Whether this node is no member of the group, and has not requested admission."""
        return self.phase <= Phase.LEFT_BEHIND

    @property
    def has_boards(self) -> bool:
        """Whether members can write records to shared memory on this host without a message."""
        return self._records.has_boards

    @property
    def others(self) -> tuple[str, ...]:
        """The names of all known nodes except this node, members or not."""
        return self.discovery.others

    @property
    def key(self) -> Key:
        return self.view.identity, self.number

    # The training thread

    @property
    def call_lock(self) -> CallLock:
        """The lock that each call of a collective holds. A call within a call raises `UserError`.

        Such a call would never end.
        """
        if self._call_lock.is_own:  # such as in a signal handler
            raise UserError(
                "this thread is already in a collective with the same tag. Use a different tag"
                " [DPWA-E149]"
            )
        return self._call_lock

    def may_meet(self) -> bool:
        """Look for other nodes before the first collective. Return whether more nodes may arrive.

        This is for a node that begins alone. Other nodes may make their first call at about the
        same time.
        """
        with self.lock:
            self._take(Event.IS_USED)
            if not self._is_first():
                return False
            self.discovery.seek(self.view, self._rank(), SEEK_AT_FIRST_EVERY_S)
            have_all_asked = self.discovery.have_asked_to_join()
        return not (have_all_asked and self._are_known())

    def meet(self) -> None:
        """Admit the nodes that have requested admission, if this node has run no collective yet."""
        with self.lock:
            if self._is_first() and self.discovery.join_requests():
                self._open_ballot()
                self._skip()

    def prepare_call(self) -> None:
        """Before a call, leave this view if peers have a different view that takes precedence."""
        with self.lock:
            if self.is_outranked and self.called == self.number:
                self.give_up()

    def give_up(self) -> None:
        """Leave the group. The next call of a collective raises `LeftBehindError`."""
        with self.lock:
            if not self.is_evicted:
                self._vote_against_itself()
                self._step_outside()

    def enter(self, record: bytes) -> None:
        """Announce this node's call of the next collective, unless that collective is over."""
        with self.lock:
            phase = self._after(Event.CALLS)
            if self.called < self.number or phase is None:
                return
            self._records.open()
            self.calls_at_ballot, self.phase, self._called_at = None, phase, -math.inf
            if phase is not Phase.VOTING:
                self._post(ENTERED, record)
            self.discovery.seek(self.view, self._rank())

    def post_ready(self, record: bytes) -> None:
        """Announce that this node has exchanged its values, unless it takes part in a vote."""
        with self.lock:
            if self.called == self.number and self._take(Event.HAS_DONE):
                self._called_at = self.runtime.now()
                self._post(READY, record)

    def end_call(self, joiners: Iterable[Member]) -> None:
        """End the collective as a success, because all members have exchanged their values."""
        with self.lock:
            if self.called == self.number and self._after(Event.ALL_READY) is not None:
                self._conclude(Decision(holds=True, joiners=tuple(sorted(joiners))))

    @property
    def decision(self) -> Decision | None:
        """The decision on the collective that this node has called, or `None` if not known yet."""
        with self.lock:
            if self.phase <= Phase.REFUSED and self.called == self.number:
                return Decision(holds=False, lost=(self.own.name,))
            return self._decided.get(self.called)

    def leave_call(self) -> Decision | None:
        """Leave the group if the current collective is not over. Return its decision."""
        with self.lock:
            if self.number == self.inside:
                self.leave_group()
            return self.decision

    def finish(self) -> None:
        """Continue with the next collective, if the current collective of this node is decided."""
        with self.lock:
            if self.inside == self.called < self.number:
                self._decided.pop(self.called, None)
                self.called += 1
            self.inside = None

    def told(self) -> bool:
        """Return whether this node was excluded, but only once after each exclusion."""
        with self.lock:
            return self._take(Event.IS_TOLD)

    def expire(self) -> None:
        """Open a ballot, because this node's time limit for the collective is over."""
        with self.lock:
            if self.called == self.number:
                self._open_ballot(expired=True)

    def look_around(self) -> None:
        """Open a ballot if a member is gone, or has continued without this node."""
        with self.lock:
            may_open = self.called == self.number and self._after(Event.DOUBTS) is not None
            if may_open and any(map(self._is_missing, self._other_members())):
                self._open_ballot()
            elif self.runtime.now() - self._called_at >= CALL_AGAIN_S:
                self._call()

    def _call(self) -> None:
        """Send this node's records again to the members whose records have not arrived.

        These members may read no board, or wait elsewhere. Or these members have continued in a
        different view since they received the record, and answer the repeated record.
        """
        self._called_at = self.runtime.now()
        missing = {*self.view.names}.difference(self.records(max(self._posted, default=ENTERED)))
        for phase, record in self._posted.items():
            self._records.send_record(sorted(missing), self.key, phase, record)

    def call_of(self, name: str) -> tuple[int, bytes] | None:
        """Return the number of a member's current collective, and the member's record.

        Returns `None` if the member is in no collective.
        """
        with self.lock:
            record = self.records(ENTERED).get(name)
            return None if record is None else (self.number, record)

    @property
    def _waits_elsewhere(self) -> bool:
        """Whether the thread that calls these collectives waits for peers in a different call."""
        is_free = self._asks or self.phase in (Phase.UNUSED, Phase.IDLE)
        return is_free and self.lull_s is not None and self.lull_s() >= ELSEWHERE_S

    def _gives_way(self, now: float) -> bool:
        """Leave the group if members wait for this node while its thread waits in another call.

        Returns:
            Whether members are in a collective that this node has not called yet.
        """
        is_awaited = bool(self.phase is Phase.IDLE and self.lull_s and self.records(ENTERED))
        if not (is_awaited and self._waits_elsewhere):
            self._awaited_at = math.inf
            return is_awaited
        self._awaited_at = min(self._awaited_at, now)
        if now - self._awaited_at >= GIVE_WAY_S:
            self.give_up()
        return True

    def check_open(self) -> None:
        if self._contacts.is_closed:
            raise ClosedError(f"node {self.own.name!r} is closed [DPWA-E058]")

    def ask_to_join(self, *, again: bool = False) -> list[str]:
        """Request admission from all reachable nodes, and return their names.

        With `again`, the RxThread repeats the requests while the training thread runs other code.
        """
        with self.lock:
            if not self._take(Event.ASKS):
                return []
            self._ask_at = self.runtime.now() + ASK_AGAIN_S if again else math.inf
            self._records.clear()  # the numbers may be higher than at this node's admission
            return self.discovery.ask_to_join()

    def start_alone(self) -> None:
        """Continue as the only member of a new view, because no other node is reachable."""
        with self.lock:
            self.enter_view(GroupView((self.own,), self.number), self.number)

    def start_anew(self) -> None:
        """Start a new group if all reachable nodes ask to join, and this name sorts first."""
        with self.lock:
            requests = self.discovery.join_requests()
            reached = {name for name in self.others if self._contacts.is_up(name)}
            asked = {member.name for member in requests}
            if self.is_evicted and asked >= reached and self.own.name < min(asked, default=""):
                self.start_alone()
                self._open_ballot()
                self._skip()

    def forget_answers(self) -> None:
        """Forget all views that peers have announced until now."""
        with self.lock:
            self.discovery.forget_views()

    def join_requests(self) -> tuple[Member, ...]:
        with self.lock:
            return self.discovery.join_requests()

    # For code that uses the views of a group, but calls no collectives

    def doubt(self) -> None:
        """Open a ballot on a member that does not answer, although no collective is running."""
        with self.lock:
            self._open_ballot()

    def look_out(self) -> bool:
        """Look for nodes outside this view, without a collective. Return whether this node left.

        The node leaves the group if a peer has announced a larger view.
        """
        with self.lock:
            self._take(Event.IS_USED)
            self._skip()
            has_to_leave = self.is_outranked
            if has_to_leave:
                self.leave_group()
            elif not self.is_evicted:
                self.discovery.seek(self.view, self._rank())
        return has_to_leave

    def note_work(self) -> None:
        """Count a change of a shared table or of other data that depend on the group's members.

        If this node is alone, its view then takes precedence over the view of a new lone node.
        """
        with self.lock:
            self._work += 1

    def admit_at_once(self) -> None:
        """From now on, admit nodes by a ballot at their request, outside of collectives."""
        with self.lock:
            self._admits_at_once = True
            self._take(Event.IS_USED)

    def watch(self, watcher: Callable[[GroupView], None]) -> None:
        """From now on, call `watcher` with every new view, under the lock of the group."""
        with self.lock:
            self._watchers.append(watcher)

    # Members, and their incarnations

    @property
    def is_outranked(self) -> bool:
        """Whether a peer's view takes precedence, so that this node must leave its own view.

        This is checked again when no collective is under way, because a collective that ends in
        this view raises its precedence.
        """
        with self.lock:
            return not self.is_evicted and self.discovery.is_outranked(self._rank())

    def lost(self) -> tuple[str, ...]:
        """Return the names of the members that were connected, and are now gone or restarted."""
        with self.lock:
            return tuple(name for name in self._other_members() if self._is_lost(name))

    def is_member(self, name: str, incarnation: bytes) -> bool:
        """Return whether this incarnation of a node is a member, and this node is a member too."""
        with self.lock:
            return not self.is_evicted and self._knows(name, incarnation)

    def _knows(self, name: str, incarnation: bytes) -> bool:
        """Return whether an incarnation of a node is a member.

        If the view names no incarnation, the first incarnation that sends a message is the member.
        """
        if name not in self.view.names:
            return False
        return (self._life_of(name) or self._lives.setdefault(name, incarnation)) == incarnation

    def _life_of(self, name: str) -> bytes:
        """Return a member's incarnation, or b"" while the incarnation is unknown."""
        return self.view.incarnation_of(name) or self._lives.get(name, b"")

    def _is_lost(self, name: str) -> bool:
        return self._contacts.is_lost(name, self._life_of(name))

    def _is_missing(self, name: str) -> bool:
        """Return whether a member is gone, or is in a later collective than this node.

        Until the member is ready in the later collective, its board still has its record of this
        collective. If the member has sent a message, a third node stopped before it sent its own
        message to this node.
        """
        if self._is_lost(name):
            return True
        heard = self._records.posted_by(name, ENTERED)
        if heard is not None and heard.view == self.view.identity and heard.number > self.number:
            return True
        posted = self._on_board(name, READY)
        return posted is not None and posted.number > self.number

    def _other_members(self) -> list[str]:
        return [name for name in self.view.names if name != self.own.name]

    def _is_first(self) -> bool:
        """Return whether this node is alone, has run no collective, and knows no view to join."""
        return not (self.ranks or self.number or self.is_evicted or self.is_outranked)

    def _rank(self) -> ViewRank:
        """Return this view's precedence, by which nodes decide which of two views continues."""
        size = len(self.view.names)
        # Only a lone node counts its work, because the counts of several members would differ.
        ended = self.number + (self._work if size == 1 else 0)
        return ViewRank(size, ended, self.view.names[0])

    # Records

    def records(self, phase: int) -> dict[str, bytes]:
        """Return the members' records of a phase of this collective, by name in order of rank."""
        with self.lock:
            found: dict[str, bytes] = {}
            for name in self.view.names:
                is_own = name == self.own.name
                record = self._posted.get(phase) if is_own else self._record(name, phase)
                if record is not None:
                    found[name] = record
            return found

    def say_missing(self, left_s: float) -> None:
        """Warn of the members that have not entered the collective, or are not connected."""
        up, entered = self._contacts.is_up, self.records(ENTERED)
        missing = [n for n in self._other_members() if n not in entered or not up(n)]
        told = [n + " (not connected)" * (not up(n)) for n in missing]
        text = "%s: a collective waits for %s, at most %.0f s more [DPWA-W099]"
        if told:
            log.warning(text, self.own.name, ", ".join(told), left_s)

    def contact_changed(self, peer: str) -> None:
        """Send this node's records to a peer that has connected for the first time or again."""
        with self.lock:
            if peer in self.view.names:
                for phase, record in self._posted.items():
                    self._records.repeat([peer], self.key, phase, record)
            self.changed.notify_all()

    def _post(self, phase: int, record: bytes) -> None:
        self._posted[phase] = record
        self._records.post(self.view.names, self.key, phase, record)

    def _record(self, name: str, phase: int) -> bytes | None:
        posted = self._records.posted_by(name, phase)
        if posted is None or (posted.view, posted.number) != self.key:
            posted = self._on_board(name, phase)
            if posted is None or (posted.view, posted.number) != self.key:
                return None
            self._records.record_post(name, phase, posted)  # so that the board is read only once
        return posted.record

    def _on_board(self, name: str, phase: int) -> Posted | None:
        posted = self._records.on_board(name, phase)
        is_member = posted is not None and self._knows(name, self._records.life_of_board(name))
        return posted if is_member else None

    # Ballots

    def tick(self, now: float) -> bool:
        """Continue this node's ballot. Return whether a ballot continues, or members wait for it.

        This node suspects a member that is silent for too long, and repeats its vote.
        """
        with self.lock:
            ballot = self.ballot
            is_awaited = self._gives_way(now)
            if now >= self._ask_at and self._asks and not self._waits_elsewhere:
                self._ask_at = now + ASK_AGAIN_S
                self.discovery.ask_to_join()
            if ballot is None:
                return is_awaited
            has_changed = ballot.pass_time(now, self.lost(), self.records(ENTERED))
            if has_changed or now - self._told_at >= REPEAT_S:
                self._tell_vote(ballot)
            self._decide()
            return self.ballot is not None

    def _open_ballot(self, *, expired: bool = False) -> None:
        """Open a ballot, unless one is under way. `expired`: this node's time limit is over."""
        phase = self._after(Event.DOUBTS)
        if phase is not None:
            ballot = self._new_ballot(expired=expired)
            self.phase, self.ballot = phase, ballot
            self._tell_vote(ballot)
            self._decide()

    def _new_ballot(self, *, expired: bool) -> Ballot:
        self.calls_at_ballot = self.number, self.records(ENTERED)
        has_entered = self.phase in (Phase.ENTERED, Phase.READY)
        seen, requests = tuple(self.records(READY)), self.discovery.join_requests()
        stand = Stand(has_entered, self.phase is Phase.READY, expired, seen, requests)
        now, silence = self.runtime.now(), self.silence
        return Ballot(self.own.name, self.view.names, stand, now, silence=silence)

    def _suspects(self, name: str) -> bool:
        """Return whether this node suspects a member in a ballot, and so ignores its messages."""
        return self.ballot is not None and name in self.ballot.suspects

    def _decide(self) -> None:
        ballot = self.ballot
        decision = None if ballot is None else ballot.decision()
        if ballot is not None and ballot.is_left_behind:
            self._step_outside()
        elif decision is not None:
            self._conclude(decision)

    def _tell_vote(self, ballot: Ballot) -> None:
        self._told_at = self.runtime.now()
        self._vote(self.view.names, self.key, ballot)

    def _vote(self, names: Iterable[str], key: Key, ballot: Ballot) -> None:
        fields = {"tag": self.tag, "view": key[0], "number": key[1], **vars(ballot.stand)}
        self._contacts.send(names, Vote, suspects=tuple(sorted(ballot.suspects)), **fields)

    # Continuing in a view, and leaving a view

    def leave_group(self) -> None:
        """Leave the group, and notify the members, so that no member waits for this node."""
        with self.lock:
            if self.is_evicted:
                self._take(Event.LEAVES)
            else:
                self._vote_against_itself()
                self._step_outside(Event.LEAVES)

    def say_goodbye(self) -> None:
        """Send the last collective's outcome to the members before this node closes.

        Afterwards, members can no longer read this node's board. A thread that is in a collective
        now, or calls a collective later, gets `ClosedError`.
        """
        with self.lock:
            self.changed.notify_all()
            if self._ended:
                key, (decision, view, _) = next(reversed(self._ended.items()))
                self._send_outcome(self.view.names, key, decision, view)

    def enter_view(self, view: GroupView, number: int) -> None:
        """Become a member of a view, from collective `number` on. Called with the lock held."""
        self._came_at = number
        self.discovery.forget_views()
        self._start(Event.IS_LET_IN, view, number)
        self._skip()

    def _vote_against_itself(self) -> None:
        ballot = self.ballot or self._new_ballot(expired=False)
        ballot.suspects.add(self.own.name)
        self._tell_vote(ballot)

    def _conclude(self, decision: Decision) -> None:
        """End a collective. Notify the admitted nodes and, if there was a ballot, all members."""
        view = self.view.after(self.number, decision.lost, decision.joiners, self.ranks)
        voters = self.view.names if self.ballot is not None else ()
        told = [*voters, *(joiner.name for joiner in decision.joiners)]
        self._send_outcome(told, self.key, decision, view)
        self._go_on(decision, view)

    def _go_on(self, decision: Decision, view: GroupView) -> None:
        """After a decision, continue in `view`, or leave the group if `view` excludes this node."""
        lives = {name: self._life_of(name) for name in self.view.names}
        self._ended[self.key] = decision, view, lives
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        if self.own.name in decision.lost or self.own.name not in view.names:
            self._step_outside()
            return
        self.discovery.forget_members(Member(name, self._life_of(name)) for name in view.names)
        self._decided[self.number] = decision
        self._start(Event.DECIDED, view, self.number + 1)

    def _start(self, event: Event, view: GroupView, number: int) -> None:
        phase, has_changed = self._after(event), view != self.view
        if phase is None:
            return
        if has_changed:
            self._lives = {name: life for name, life in self._lives.items() if name in view.names}
            self._records.keep_only(view.names)
        self.view, self.number, self._posted = view, number, {}
        self.phase, self.ballot = phase, None
        if has_changed:
            log.info("%s: collectives among %s", self.own.name, ", ".join(view.names))
            self.discovery.forget_views()
            for watcher in self._watchers:
                watcher(view)
        self.changed.notify_all()

    def _step_outside(self, event: Event | None = None) -> None:
        """Change to a phase in which this node is no member of the group."""
        has_part = self.number > self._came_at
        phase = self._after(event or (Event.IS_LEFT if has_part else Event.LEAVES))
        if phase is not None:
            self.phase, self.ballot, self._posted = phase, None, {}
            self.exits += 1
            self.discovery.forget_views()
            self.changed.notify_all()

    def _after(self, event: Event) -> Phase | None:
        """Return the phase that follows an event, or `None` if the event has no effect."""
        return _TABLE[event].get(self.phase)

    def _take(self, event: Event) -> bool:
        """Change to the phase that follows an event. Return whether the event has an effect."""
        phase = _TABLE[event].get(self.phase)
        if phase is not None:
            self.phase = phase
        return phase is not None

    def _skip(self) -> None:
        """Continue at the group's current collective, and forget the decisions on earlier ones."""
        self._decided.clear()
        self.called = self.number

    def _send_outcome(
        self, names: Iterable[str], key: Key, decision: Decision, view: GroupView
    ) -> None:
        """Send the message with a collective's outcome and the view that follows."""
        self._contacts.send(
            names,
            CollectiveOutcome,
            tag=self.tag,
            view=key[0],
            number=key[1],
            holds=decision.holds,
            lost=decision.lost,
            members=view.members,
            since=view.since,
            before=view.before,
        )

    # Messages of others, on the RxThread

    def receive_message(self, message: GroupMessage) -> None:
        with self.lock:
            match message:
                case Post():
                    self._hear_post(message)
                case Vote():
                    self._hear_vote(message)
                case CollectiveOutcome():
                    self._hear_outcome(message)
                case AskToJoinView() if not message.size:
                    self._hear_join_request(message)
                case _:
                    self._hear_of_view(message)

    def _hear_post(self, post: Post) -> None:
        """Record the record of a member that has entered a collective, or is ready."""
        if self._is_away and (post.view, post.number) not in self._ended:
            self._stay_out(post)
            return
        if self._answers_late(post):
            return
        if post.view == self.view.identity and not self._knows(post.name, post.incarnation):
            self._tell_evicted(post.name, (post.view, post.number))
            return
        self._records.record_post(
            post.name, post.phase, Posted(post.number, post.view, post.record)
        )
        self.changed.notify_all()

    def _hear_vote(self, vote: Vote) -> None:
        key = vote.view, vote.number
        if self.is_evicted and key not in self._ended:
            if self._is_away or vote.view == self.view.identity:
                self._stay_out(vote)
            return
        is_own = vote.view == self.view.identity and self._knows(vote.name, vote.incarnation)
        has_left = is_own and vote.name in vote.suspects
        if has_left:
            # Otherwise, an earlier request of this node would admit it again.
            self.discovery.forget_members([Member(vote.name, vote.incarnation)])
        if self._answers_late(vote):
            if has_left:
                self._open_ballot()  # the node has left, and will not call the next collective
            return
        if key != self.key:
            return  # the vote is repeated until this node has reached this collective
        if not is_own:
            self._tell_evicted(vote.name, self.key)
            return
        self._open_ballot()
        ballot = self.ballot
        if ballot is not None:
            asks = tuple(starmap(Member, vote.join_requests))
            stand = Stand(vote.entered, vote.ready, vote.expired, vote.seen, asks)
            if ballot.record_vote(vote.name, vote.suspects, stand, self.runtime.now()):
                self._tell_vote(ballot)
        self._decide()

    def _stay_out(self, said: Post | Vote) -> None:
        """Vote against this node itself, to tell a waiting member that this node has left."""
        own, suspects = self.own.name, said.suspects if isinstance(said, Vote) else ()
        if own not in suspects and said.name not in suspects:
            stand = Stand(entered=False, ready=False)
            ballot = Ballot(own, self.view.names, stand, self.runtime.now(), {own})
            self._vote([said.name], (said.view, said.number), ballot)

    def _hear_outcome(self, outcome: CollectiveOutcome) -> None:
        members = tuple(starmap(Member, outcome.members))
        view, name = GroupView(members, outcome.since, outcome.before), outcome.name
        if self._asks:
            if self.own in members and view != self.view:
                self.enter_view(view, outcome.since)
            return
        is_it = (outcome.view, outcome.number) == self.key and not self.is_evicted
        if is_it and self._knows(name, outcome.incarnation) and not self._suspects(name):
            joiners = tuple(m for m in members if m.name not in self.view.names)
            self._go_on(Decision(outcome.holds, outcome.lost, joiners), view)

    def _hear_join_request(self, request: AskToJoinView) -> None:
        """Answer a node that requests admission, which may be a member of this view already."""
        member = Member(request.name, request.incarnation)
        if not self._contacts.knows(member.name):
            return
        self.discovery.hear_join_request(member)
        if self.phase <= Phase.UNUSED:
            return
        self._tell_evicted(member.name)
        is_new_view = self.number == self.view.since
        if member in self.view.members and is_new_view and not self._suspects(member.name):
            # The node has missed this outcome. If it has left again, it ignores the message.
            self._send_outcome([member.name], NOWHERE, Decision(holds=True), self.view)
        if self._admits_at_once:
            self._open_ballot()

    def _hear_of_view(self, message: Evicted | AskToJoinView) -> None:
        """Process a peer's report that its view does not include this node."""
        name, is_of_view = message.name, message.name in self.view.names
        theirs = ViewRank(message.size, message.ended, message.first)
        if self.is_evicted:
            self.discovery.hear_of_view(name, theirs)
            if isinstance(message, Evicted) and message.waits:
                self._take(Event.IS_REFUSED)
            self.changed.notify_all()
        elif is_of_view and isinstance(message, Evicted):
            if (message.view, message.number) == self.key and not self._suspects(name):
                self._step_outside()
        elif not is_of_view and message.size:
            self.discovery.hear_of_view(name, theirs)
            is_behind = not has_precedence(theirs, self._rank(), self.ranks)
            if isinstance(message, AskToJoinView) and is_behind and self.phase > Phase.UNUSED:
                self._tell_evicted(name)

    def _answers_late(self, said: Post | Vote) -> bool:
        """Answer a message if its collective has ended on this node, and return whether it has.

        The answer is the outcome. A process that was not a member gets this view instead.
        """
        key = said.view, said.number
        if key in self._ended:
            decision, view, lives = self._ended[key]
            if lives.get(said.name) in (b"", said.incarnation):
                self._send_outcome([said.name], key, decision, view)
            else:
                self._tell_evicted(said.name, key)
            return True
        own, is_rival = self.view.identity, key[1] == self.number and key[0] != self.view.identity
        # Two views may contain each other's members. The view with the greater identity stays.
        stays = is_rival and key[0] > own and self._knows(said.name, said.incarnation)
        is_past = not self.is_evicted and (key[1] < self.number or (is_rival and not stays))
        if is_past:
            self._tell_evicted(said.name, key)
        return is_past

    def _tell_evicted(self, name: str, key: Key = NOWHERE) -> None:
        """Notify the node `name` that this view excludes it. `key` names the node's collective."""
        fields = asdict(self._rank()) | {"tag": self.tag, "view": key[0], "number": key[1]}
        self._contacts.send([name], Evicted, waits=self._waits_elsewhere, **fields)
