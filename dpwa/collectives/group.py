"""The members that call collectives with one tag, and how far each of them has come.

The training thread enters a collective, and waits; the RxThread brings what the others say. Both
work on this state under its lock, and a node whose training thread is elsewhere still votes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.records import (
    ENTERED,
    NOWHERE,
    READY,
    EndedCollectives,
    GroupSender,
    PhaseRecords,
)
from dpwa.collectives.views import ViewDiscovery, ViewProgress, Voting
from dpwa.data.boards import Posted
from dpwa.errors import ClosedError
from dpwa.policy.ballots import Decision
from dpwa.policy.group_views import GroupView, Member, ViewRank, has_precedence
from dpwa.runtime import Runtime
from dpwa.wire.collecting import AskToJoinView, CollectiveOutcome, Evicted, Post, Vote

log = logging.getLogger("dpwa.collectives")

Watcher = Callable[[GroupView], None]


class GroupState:
    """The state of one group; every method is called with the lock of the group held."""

    def __init__(
        self,
        tag: str,
        ranks: Sequence[str],
        contacts: Contacts,
        runtime: Runtime,
    ) -> None:
        self.own = contacts.own
        self.ranks = tuple(ranks)
        # Reentrant: a signal handler may close the node while its thread is in here.
        self.lock = self.changed = runtime.condition()
        self.sender = GroupSender(tag, contacts)
        self.records = PhaseRecords(tag, contacts, self.sender)
        view = GroupView(tuple(Member(name) for name in self.ranks) or (self.own,))
        self.progress = ViewProgress(view, contacts, self.records)
        self.discovery = ViewDiscovery(contacts, self.sender, self.ranks, runtime)
        self.voting = Voting(
            self.own.name, self.progress, self.sender, self.discovery.join_requests, runtime
        )
        self.ended = EndedCollectives(self.sender)
        # was left behind; has heard of a view since then; has asked to be let in
        self.is_evicted = self.is_answered = self.asks_to_join = False
        self.exits = self.called = 0  # times outside; the collective that is called next
        self.decided: dict[int, Decision] = {}  # those that the training thread has not ended yet
        # has ended a collective in this view; its caller does not know yet that it was left behind
        # after that; a ballot lets in who asks for it
        self.has_part = self.is_untold = self.admits_at_once = False
        # it calls something; messages of others make a group, too, which is of no view until then
        self.is_used = bool(ranks)
        self.watchers: list[Watcher] = []

    @property
    def view(self) -> GroupView:
        return self.progress.view

    @property
    def number(self) -> int:
        return self.progress.number

    def leave(self) -> None:
        """Tell the others that this node takes no part any more, so that nobody waits for it."""
        if self.is_evicted:
            return
        self.voting.leave()
        self.has_part = False
        self.step_outside()

    def skip(self) -> None:
        """Take no notice of what has been decided without this node's calling it."""
        self.decided.clear()
        self.called = self.number

    def open_ballot(self, *, expired: bool = False) -> None:
        """Hold a ballot, unless one is under way."""
        if self.voting.ballot is None and not self.is_evicted:
            self.voting.open(expired=expired)
            self.decide()

    def decide(self) -> None:
        ballot = self.voting.ballot
        decision = None if ballot is None else ballot.decision()
        if ballot is not None and ballot.is_left_behind:
            self.step_outside()
        elif decision is not None:
            self.conclude(decision)

    def conclude(self, decision: Decision) -> None:
        """End a collective as was decided, and tell who has to know."""
        after = self.view.after(self.number, decision.lost, decision.joiners, self.ranks)
        outcome = self.sender.outcome(self.progress.key, decision, after)
        if self.voting.ballot is not None:
            self.sender.tell_all(self.view.names, outcome)
        for joiner in decision.joiners:
            self.sender.tell(joiner.name, outcome)
        self.ended.add(outcome, self.progress.lives())
        if self.own.name in decision.lost:
            self.step_outside()
        else:
            self._go_on(decision, after)

    def adopt(self, outcome: CollectiveOutcome, view: GroupView) -> None:
        """End a collective as others have decided."""
        self.ended.add(self.sender.in_own_name(outcome), self.progress.lives())
        if self.own.name in view.names:
            joiners = tuple(m for m in view.members if m.name not in self.view.names)
            self._go_on(Decision(outcome.holds, outcome.lost, joiners), view)
        else:
            self.step_outside()

    def _go_on(self, decision: Decision, view: GroupView) -> None:
        self.has_part = True
        self.discovery.let_in(decision.joiners)
        self.decided[self.number] = decision
        self._start(view, self.number + 1)

    def enter_view(self, view: GroupView, number: int) -> None:
        """Take part in a view from this collective on."""
        self.has_part = self.is_evicted = self.asks_to_join = False
        self.discovery.forget_views()
        self._start(view, number)
        self.skip()

    def _start(self, view: GroupView, number: int) -> None:
        has_changed = view != self.view
        self.progress.begin(view, number)
        self.voting.close()
        if has_changed:
            log.info("%s: collectives among %s", self.own.name, ", ".join(view.names))
            self.discovery.forget_views()
            for watcher in self.watchers:
                watcher(view)
        self.changed.notify_all()

    def step_outside(self) -> None:
        """Take note that the others go on without this node."""
        self.voting.close()
        self.progress.withdraw()
        self.exits += not self.is_evicted
        self.is_evicted, self.is_answered = True, False
        self.is_untold |= self.has_part
        self.has_part = False
        self.changed.notify_all()


class Hearing:
    """Takes in messages of one group, on the RxThread."""

    def __init__(self, state: GroupState, contacts: Contacts) -> None:
        self._state = state
        self._contacts = contacts

    def post(self, post: Post) -> None:
        """Take in that a member has entered, or is ready."""
        state = self._state
        with state.lock:
            if self._answers_late(post.name, post.incarnation, post.view, post.number):
                return
            if post.view == state.view.identity and not state.progress.knows(
                post.name, post.incarnation
            ):
                state.sender.evicted(post.name, state.progress.rank, (post.view, post.number))
                return
            posted = Posted(post.number, post.view, post.record)
            state.records.hear(post.name, post.phase, posted)
            state.changed.notify_all()

    def vote(self, vote: Vote) -> None:
        state = self._state
        with state.lock:
            if self._answers_late(vote.name, vote.incarnation, vote.view, vote.number):
                has_left = vote.name in vote.suspects and vote.view == state.view.identity
                if has_left and state.progress.knows(vote.name, vote.incarnation):
                    state.open_ballot()  # it has given up since, and will not call the next
                return
            if state.is_evicted and vote.view == state.view.identity:
                state.voting.stay_out(vote)
            if (vote.view, vote.number) != state.progress.key or state.is_evicted:
                return  # told again when this node has come so far
            if not state.progress.knows(vote.name, vote.incarnation):
                state.sender.evicted(vote.name, state.progress.rank, (vote.view, vote.number))
                return
            state.open_ballot()
            state.voting.hear(vote)
            state.decide()

    def outcome(self, outcome: CollectiveOutcome) -> None:
        state = self._state
        with state.lock:
            members = tuple(Member(name, life) for name, life in outcome.members)
            view = GroupView(members, outcome.since)
            if state.is_evicted:
                has_left = view == state.view
                if state.own in members and state.asks_to_join and not has_left:
                    state.enter_view(view, outcome.since)
            elif (outcome.view, outcome.number) == state.progress.key:
                if not state.progress.knows(outcome.name, outcome.incarnation):
                    return
                if not state.voting.suspects(outcome.name):
                    state.adopt(outcome, view)

    def evicted(self, message: Evicted | AskToJoinView) -> None:
        state = self._state
        with state.lock:
            is_of_view = message.name in state.view.names
            state.is_answered |= state.is_evicted
            if isinstance(message, Evicted) and is_of_view and not state.is_evicted:
                key = message.view, message.number
                if key == state.progress.key and not state.voting.suspects(message.name):
                    state.step_outside()
            elif not is_of_view and message.size and not state.is_evicted:
                theirs = ViewRank(message.size, message.ended, message.first)
                state.discovery.hear_of_view(message.name, theirs)
                is_behind = not has_precedence(theirs, state.progress.rank, state.ranks)
                if isinstance(message, AskToJoinView) and is_behind and state.is_used:
                    state.sender.evicted(message.name, state.progress.rank)

    def join_request(self, request: AskToJoinView) -> None:
        state = self._state
        with state.lock:
            if request.size:
                self.evicted(request)
            elif not state.is_evicted and self._contacts.knows(request.name):
                member = Member(request.name, request.incarnation)
                state.discovery.hear_join_request(member)
                if state.is_used:
                    self._answer_join_request(member)

    def _answers_late(self, name: str, incarnation: bytes, view: bytes, number: int) -> bool:
        """Answer a node that is in a collective which has ended here; tell whether it was one."""
        state = self._state
        if state.ended.answer(name, incarnation, (view, number), state.progress.rank):
            return True
        is_past = number < state.number or (number == state.number and view != state.view.identity)
        if is_past and not state.is_evicted:
            state.sender.evicted(name, state.progress.rank, (view, number))
        return is_past

    def _answer_join_request(self, member: Member) -> None:
        """Tell a node that wants to be let in of this view, which may have let it in already."""
        state = self._state
        state.sender.evicted(member.name, state.progress.rank)
        is_new_view = state.number == state.view.since
        if member in state.view.members and is_new_view and not state.voting.suspects(member.name):
            # It was not told, or has left again: then it takes no notice.
            state.sender.tell(
                member.name, state.sender.outcome(NOWHERE, Decision(True), state.view)
            )
        if state.admits_at_once:
            state.open_ballot()


SEEK_AT_FIRST_EVERY_S = 0.1


class Group:
    """The state of one group, as this node sees it.

    `ranks` are the names of all nodes in the order of the configuration; none where nodes come and
    go, so that each begins alone and meets the others. `are_known` tells whether this node knows
    yet all others that are there.
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
        self._are_known = are_known
        self._own = contacts.own
        self._state = GroupState(tag, ranks, contacts, runtime)
        self.lock, self.changed = self._state.lock, self._state.changed
        self.hearing = Hearing(self._state, contacts)
        self._is_closed = False

    @property
    def is_evicted(self) -> bool:
        return self._state.is_evicted

    @property
    def is_answered(self) -> bool:
        """Whether it has heard of a view since it was left behind."""
        return self._state.is_answered

    @property
    def exits(self) -> int:
        """How often it has been outside."""
        return self._state.exits

    @property
    def view(self) -> GroupView:
        return self._state.progress.view

    @property
    def number(self) -> int:
        return self._state.progress.number

    @property
    def called(self) -> int:
        """Which collective the training thread calls next, or is in."""
        return self._state.called

    @property
    def has_boards(self) -> bool:
        """Whether members of this host may post records that no message tells of."""
        return self._state.records.has_boards

    # The training thread

    def may_meet(self) -> bool:
        """Look for others before the first collective; tell whether more of them may still come.

        For a node that begins alone: others may be about to call their first one, too.
        """
        with self.lock:
            self._state.is_used = True
            if self.ranks or self.number or self.is_evicted or self.is_outranked:
                return False
            self._state.discovery.seek(self.view, self._state.progress.rank, SEEK_AT_FIRST_EVERY_S)
            have_all_asked = self._state.discovery.have_asked_to_join()
        return not (have_all_asked and self._are_known())

    def meet(self) -> None:
        """Let in, before the first collective, who has asked for it by now."""
        with self.lock:
            is_first = not (self.ranks or self.number or self.is_evicted or self.is_outranked)
            if is_first and self.join_requests():
                self._state.open_ballot()
                self._state.skip()

    def begin(self) -> None:
        """Make ready for a collective."""
        with self.lock:
            if self.is_outranked and self._state.called == self.number:
                had_part = self._state.has_part
                self.leave()
                self._state.is_untold |= had_part

    def enter(self, record: bytes) -> None:
        """Say that this node has called the next collective, unless that is over already."""
        with self.lock:
            if self._state.called < self.number or self.is_evicted:
                return
            self._state.records.open()
            self._state.voting.calls = None
            self._state.progress.has_entered = True
            if self._state.voting.ballot is None:
                self._state.progress.post(ENTERED, record)
            self._state.discovery.seek(self.view, self._state.progress.rank)

    def ready(self, record: bytes) -> None:
        """Say that this node has done its part, unless it has voted already."""
        with self.lock:
            if (
                self._state.voting.ballot is None
                and self._state.called == self.number
                and not self.is_evicted
            ):
                self._state.progress.is_ready = True
                self._state.progress.post(READY, record)

    def records(self, phase: int) -> dict[str, bytes]:
        """Return what members have posted of the collective, by name; this node's too."""
        with self.lock:
            return self._state.progress.records(phase)

    def end(self, joiners: Iterable[Member]) -> None:
        """End a collective of which all members are known to be ready.

        If a ballot is under way, it can only decide likewise, and is to be waited for.
        """
        with self.lock:
            if (
                self._state.voting.ballot is None
                and self._state.called == self.number
                and not self.is_evicted
            ):
                self._state.conclude(Decision(holds=True, joiners=tuple(joiners)))

    @property
    def decision(self) -> Decision | None:
        """What became of the collective that this node has called; `None` if it is not known."""
        with self.lock:
            if self.is_evicted and self._state.called == self.number:
                return Decision(holds=False, lost=(self._own.name,))
            return self._state.decided.get(self._state.called)

    def calls_at_ballot(self) -> tuple[int, dict[str, bytes]] | None:
        """Return what members had called when this one found that the collective may fail.

        Its number, and the records of those who had entered it, by name; `None`: no ballot was held
        since this node has entered.
        """
        with self.lock:
            return self._state.voting.calls

    def call_of(self, name: str) -> tuple[int, bytes] | None:
        """Return which collective a member waits in, and its record; `None` if in none."""
        with self.lock:
            record = self._state.progress.records(ENTERED).get(name)
            return None if record is None else (self.number, record)

    def finish(self, number: int) -> None:
        """Go on to the next collective, once, after the decision on this one was taken note of."""
        with self.lock:
            if self._state.called == number < self.number:
                self._state.decided.pop(self._state.called, None)
                self._state.called += 1

    def told(self) -> bool:
        """Return, once, whether this node has lost its part in a view."""
        with self.lock:
            was_untold, self._state.is_untold = self._state.is_untold, False
            return was_untold

    def expire(self) -> None:
        """Hold a ballot, as the time of this node is over."""
        with self.lock:
            if self._state.called == self.number:
                self._state.open_ballot(expired=True)

    def look_around(self) -> None:
        """Hold a ballot if a member is gone, or has gone on without this node."""
        with self.lock:
            if (
                self._state.voting.ballot is not None
                or self._state.called < self.number
                or self.is_evicted
            ):
                return
            if any(map(self._state.progress.is_missing, self._state.progress.others)):
                self._state.open_ballot()

    def doubt(self) -> None:
        """Hold a ballot although no collective is under way: somebody does not answer."""
        with self.lock:
            self._state.open_ballot()

    def look_out(self) -> bool:
        """Do what a collective does first, for what stands on views and calls no collectives.

        Look for nodes that are in no view with this one; leave for a larger one that was heard of,
        and return whether that was done.
        """
        with self.lock:
            self._state.is_used = True
            self._state.skip()
            has_to_leave = self.is_outranked
            if has_to_leave:
                self.leave()
            elif not self.is_evicted:
                self._state.discovery.seek(self.view, self._state.progress.rank)
        return has_to_leave

    def note_work(self) -> None:
        """Take note that something has changed in what stands on the views of this group.

        So who is alone gives up nothing for a newcomer who is alone, too.
        """
        with self.lock:
            self._state.progress.work += 1

    def admit_at_once(self) -> None:
        """Let in by a ballot who asks for it, not only when the next collective ends."""
        with self.lock:
            self._state.admits_at_once = self._state.is_used = True

    @property
    def others(self) -> tuple[str, ...]:
        return self._state.discovery.others

    @property
    def is_outranked(self) -> bool:
        """Whether this view is to be given up for another, as soon as no collective is under way.

        It is looked at again at that moment: what this view has ended meanwhile counts.
        """
        with self.lock:
            return not self.is_evicted and self._state.discovery.is_outranked(
                self._state.progress.rank
            )

    def lost(self) -> tuple[str, ...]:
        """Return which members were there, and are not any more."""
        with self.lock:
            return self._state.progress.lost()

    def is_member(self, name: str, incarnation: bytes) -> bool:
        """Tell whether this life of a node is a member, and this node is one too."""
        with self.lock:
            return not self.is_evicted and self._state.progress.knows(name, incarnation)

    def watch(self, watcher: Watcher) -> None:
        """Have a function told of every view from now on; it is called with the lock held."""
        with self.lock:
            self._state.watchers.append(watcher)

    def leave(self) -> None:
        with self.lock:
            self._state.leave()

    def say_goodbye(self) -> None:
        """Tell the members how the last collective has ended: they may not be able to read it.

        Whoever is in one now, or calls one, gets `ClosedError`.
        """
        with self.lock:
            self._is_closed = True
            self.changed.notify_all()
            if self._state.ended.last is not None:
                self._state.sender.tell_all(self.view.names, self._state.ended.last)

    def check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"node {self._own.name!r} is closed [DPWA-E058]")

    def ask_to_join(self) -> list[str]:
        """Ask all who can be reached to be let in; return whom."""
        with self.lock:
            if not self.is_evicted:
                return []
            self._state.asks_to_join = True
            self._state.records.clear()  # its numbers may be ahead of those it will be let in at
            return self._state.discovery.ask_to_join()

    def start_alone(self) -> None:
        """Go on in a view of this node only: there is nobody else."""
        with self.lock:
            self._state.enter_view(GroupView((self._own,), self.number), self.number)

    def join_requests(self) -> tuple[Member, ...]:
        with self.lock:
            return self._state.discovery.join_requests()

    def contact_changed(self, peer: str) -> None:
        """Tell a peer that has been met, or has come back, where this node is."""
        with self.lock:
            self._state.progress.repeat(peer)
            self.changed.notify_all()

    def tick(self, now: float) -> bool:
        """Go on with a ballot; return whether there is one."""
        with self.lock:
            self._state.voting.pass_time(now)
            self._state.decide()
            return self._state.voting.ballot is not None
