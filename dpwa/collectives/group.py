"""Group: the members that call collectives with one tag, and how far each of them has come.

The training thread enters a collective, and waits; the RxThread brings what the others say. Both
work on this state under its lock, and a node whose training thread is elsewhere still votes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from dpwa.clock import Clock
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.ended import EndedCollectives
from dpwa.collectives.group_sender import NOWHERE, GroupSender
from dpwa.collectives.phase_records import ENTERED, READY, PhaseRecords
from dpwa.collectives.view_discovery import ViewDiscovery
from dpwa.collectives.view_progress import ViewProgress
from dpwa.collectives.voting import Voting
from dpwa.data.boards import Posted
from dpwa.errors import ClosedError
from dpwa.policy.groups.ballots import Decision
from dpwa.policy.groups.views import GroupView, Member, ViewRank, has_precedence
from dpwa.wire.collecting import AskToJoinView, CollectiveOutcome, Evicted, Post, Vote

log = logging.getLogger("dpwa.collectives")

SEEK_AT_FIRST_EVERY_S = 0.1

Watcher = Callable[[GroupView], None]


class Group:
    """The state of one group, as this node sees it.

    Args:
        tag: of its collectives.
        ranks: names of all nodes in the order of the configuration; none where nodes come and go,
            so that each begins alone and meets the others.
        contacts: of this node.
        clock: time source.
        are_known: tells whether this node knows yet all others that are there.

    Attributes:
        is_evicted: whether this node was left behind, and must be let in again.
        is_answered: whether it has heard of a view since then.
        exits: how often it has been outside.
    """

    def __init__(
        self,
        tag: str,
        ranks: Sequence[str],
        contacts: Contacts,
        clock: Clock,
        are_known: Callable[[], bool] = lambda: True,
    ) -> None:
        self.tag = tag
        self._admits_at_once = False
        # Messages of others make a group, too: until this node calls something, it is of no view.
        self._is_used = bool(ranks)
        self._are_known = are_known
        self.ranks = tuple(ranks)
        self._contacts = contacts
        self._own = contacts.own
        self._clock = clock
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self.is_evicted = False
        self.exits = 0
        self._called = 0  # number of the collective that the training thread calls next
        self._decided: dict[int, Decision] = {}  # what became of those that it has not ended yet
        self._asks_to_join = False
        self.is_answered = False
        self._has_part = False  # whether it has ever ended a collective in this view
        self._is_untold = False  # that it was left behind, after it had part
        self._sender = GroupSender(tag, contacts)
        self._records = PhaseRecords(tag, contacts, self._sender)
        view = GroupView(tuple(Member(name) for name in self.ranks) or (contacts.own,))
        self._progress = ViewProgress(view, contacts, self._records)
        self._around = ViewDiscovery(contacts, self._sender, self.ranks, clock)
        self._voting = Voting(
            self._own.name, self._progress, self._sender, self.join_requests, clock
        )
        self._ended = EndedCollectives(self._sender)
        self._watchers: list[Watcher] = []
        self._is_closed = False

    @property
    def view(self) -> GroupView:
        """Who takes part."""
        return self._progress.view

    @property
    def number(self) -> int:
        """Which collective comes next, or is under way."""
        return self._progress.number

    # The training thread

    def may_meet(self) -> bool:
        """Look for others before the first collective; tell whether more of them may still come.

        For a node that begins alone: others may be about to call their first one, too.
        """
        with self._lock:
            self._is_used = True
            if self.ranks or self.number or self.is_evicted or self.is_outranked:
                return False
            self._around.seek(self.view, self._progress.rank, SEEK_AT_FIRST_EVERY_S)
            have_all_asked = self._around.have_asked_to_join()
        return not (have_all_asked and self._are_known())

    def meet(self) -> None:
        """Let in, before the first collective, who has asked for it by now."""
        with self._lock:
            is_first = not (self.ranks or self.number or self.is_evicted or self.is_outranked)
            if is_first and self.join_requests():
                self._open_ballot()
                self._skip()

    def begin(self) -> None:
        """Make ready for a collective."""
        with self._lock:
            if self.is_outranked and self._called == self.number:
                had_part = self._has_part
                self.leave()
                self._is_untold |= had_part

    def enter(self, record: bytes) -> None:
        """Say that this node has called the next collective, unless that is over already."""
        with self._lock:
            if self._called < self.number or self.is_evicted:
                return
            self._records.open()
            self._voting.calls = None
            self._progress.has_entered = True
            if self._voting.ballot is None:
                self._progress.post(ENTERED, record)
            self._around.seek(self.view, self._progress.rank)

    def ready(self, record: bytes) -> None:
        """Say that this node has done its part, unless it has voted already."""
        with self._lock:
            if self._voting.ballot is None and self._called == self.number and not self.is_evicted:
                self._progress.is_ready = True
                self._progress.post(READY, record)

    def records(self, phase: int) -> dict[str, bytes]:
        """Return what members have posted of the collective, by name; this node's too."""
        with self._lock:
            return self._progress.records(phase)

    def end(self, joiners: Iterable[Member]) -> None:
        """End a collective of which all members are known to be ready.

        If a ballot is under way, it can only decide likewise, and is to be waited for.
        """
        with self._lock:
            if self._voting.ballot is None and self._called == self.number and not self.is_evicted:
                self._conclude(Decision(holds=True, joiners=tuple(joiners)))

    @property
    def decision(self) -> Decision | None:
        """What became of the collective that this node has called; `None` if it is not known."""
        with self._lock:
            if self.is_evicted and self._called == self.number:
                return Decision(holds=False, lost=(self._own.name,))
            return self._decided.get(self._called)

    def calls_at_ballot(self) -> tuple[int, dict[str, bytes]] | None:
        """Return what members had called when this one found that the collective may fail.

        Returns:
            Its number, and the records of those who had entered it, by name; `None`: no ballot
            was held since this node has entered.
        """
        with self._lock:
            return self._voting.calls

    def call_of(self, name: str) -> tuple[int, bytes] | None:
        """Return which collective a member waits in, and its record; `None` if in none."""
        with self._lock:
            record = self._progress.records(ENTERED).get(name)
            return None if record is None else (self.number, record)

    def finish(self) -> None:
        """Go on to the next collective, after the decision was taken note of."""
        with self._lock:
            if self._called < self.number:
                self._decided.pop(self._called, None)
                self._called += 1

    def told(self) -> bool:
        """Return, once, whether this node has lost its part in a view."""
        with self._lock:
            was_untold, self._is_untold = self._is_untold, False
            return was_untold

    def expire(self) -> None:
        """Hold a ballot, as the time of this node is over."""
        with self._lock:
            if self._called == self.number:
                self._open_ballot(expired=True)

    def look_around(self) -> None:
        """Hold a ballot if a member is gone, or has gone on without this node."""
        with self._lock:
            if self._voting.ballot is not None or self._called < self.number or self.is_evicted:
                return
            if any(map(self._progress.is_missing, self._progress.others)):
                self._open_ballot()

    def doubt(self) -> None:
        """Hold a ballot although no collective is under way: somebody does not answer."""
        with self._lock:
            self._open_ballot()

    def look_out(self) -> bool:
        """Do what a collective does first, for what stands on views and calls no collectives.

        Look for nodes that are in no view with this one; leave for a larger one that was heard of.

        Returns:
            Whether this node has left its view.
        """
        with self._lock:
            self._is_used = True
            self._skip()
            has_to_leave = self.is_outranked
            if has_to_leave:
                self.leave()
            elif not self.is_evicted:
                self._around.seek(self.view, self._progress.rank)
        return has_to_leave

    def note_work(self) -> None:
        """Take note that something has changed in what stands on the views of this group.

        So who is alone gives up nothing for a newcomer who is alone, too.
        """
        with self._lock:
            self._progress.work += 1

    def admit_at_once(self) -> None:
        """Let in by a ballot who asks for it, not only when the next collective ends."""
        with self._lock:
            self._admits_at_once = self._is_used = True

    @property
    def others(self) -> tuple[str, ...]:
        """Names of all other nodes, members or not."""
        return self._around.others

    @property
    def is_outranked(self) -> bool:
        """Whether this view is to be given up for another, as soon as no collective is under way.

        It is looked at again at that moment: what this view has ended meanwhile counts.
        """
        with self._lock:
            return not self.is_evicted and self._around.is_outranked(self._progress.rank)

    def gone(self) -> tuple[str, ...]:
        """Return which members were there, and are not any more."""
        with self._lock:
            return self._progress.gone()

    def is_member(self, name: str, incarnation: bytes) -> bool:
        """Tell whether this life of a node is a member, and this node is one too."""
        with self._lock:
            return not self.is_evicted and self._progress.knows(name, incarnation)

    def watch(self, watcher: Watcher) -> None:
        """Have a function told of every view from now on; it is called with the lock held."""
        with self._lock:
            self._watchers.append(watcher)

    def leave(self) -> None:
        """Tell the others that this node takes no part any more, so that nobody waits for it."""
        with self._lock:
            if self.is_evicted:
                return
            self._voting.leave()
            self._has_part = False
            self._step_outside()

    def say_goodbye(self) -> None:
        """Tell the members how the last collective has ended: they may not be able to read it.

        Whoever is in one now, or calls one, gets `ClosedError`.
        """
        with self._lock:
            self._is_closed = True
            self.changed.notify_all()
            if self._ended.last is not None:
                self._sender.tell_all(self.view.names, self._ended.last)

    def check_open(self) -> None:
        """Check that the node was not closed meanwhile.

        Raises:
            ClosedError: it was.
        """
        if self._is_closed:
            raise ClosedError(f"node {self._own.name!r} is closed")

    def ask_to_join(self) -> list[str]:
        """Ask all who can be reached to be let in; return whom."""
        with self._lock:
            if not self.is_evicted:
                return []
            self._asks_to_join = True
            self._records.clear()  # its numbers may be ahead of those it will be let in at
            return self._around.ask_to_join()

    def start_alone(self) -> None:
        """Go on in a view of this node only: there is nobody else."""
        with self._lock:
            self._enter_view(GroupView((self._own,), self.number), self.number)

    def join_requests(self) -> tuple[Member, ...]:
        """Return who wants to be let in."""
        with self._lock:
            return self._around.join_requests()

    # What the others say

    def hear_post(self, post: Post) -> None:
        """Take in that a member has entered, or is ready."""
        with self._lock:
            if self._answers_late(post.name, post.incarnation, post.view, post.number):
                return
            if post.view == self.view.identity and not self._progress.knows(
                post.name, post.incarnation
            ):
                self._sender.evicted(post.name, self._progress.rank, (post.view, post.number))
                return
            posted = Posted(post.number, post.view, post.record)
            self._records.hear(post.name, post.phase, posted)
            self.changed.notify_all()

    def hear_vote(self, vote: Vote) -> None:
        """Take in a vote, and vote too."""
        with self._lock:
            if self._answers_late(vote.name, vote.incarnation, vote.view, vote.number):
                has_left = vote.name in vote.suspects and vote.view == self.view.identity
                if has_left and self._progress.knows(vote.name, vote.incarnation):
                    self._open_ballot()  # it has given up since, and will not call the next one
                return
            if (vote.view, vote.number) != self._progress.key or self.is_evicted:
                return  # told again when this node has come so far
            if not self._progress.knows(vote.name, vote.incarnation):
                self._sender.evicted(vote.name, self._progress.rank, (vote.view, vote.number))
                return
            self._open_ballot()
            self._voting.hear(vote)
            self._decide()

    def hear_outcome(self, outcome: CollectiveOutcome) -> None:
        """Adopt what others have decided, if this node has not."""
        with self._lock:
            members = tuple(Member(name, life) for name, life in outcome.members)
            view = GroupView(members, outcome.since)
            if self.is_evicted:
                has_left = view == self.view
                if self._own in members and self._asks_to_join and not has_left:
                    self._enter_view(view, outcome.since)
            elif (outcome.view, outcome.number) == self._progress.key:
                if not self._progress.knows(outcome.name, outcome.incarnation):
                    return
                if not self._voting.suspects(outcome.name):
                    self._adopt(outcome, view)

    def hear_evicted(self, message: Evicted | AskToJoinView) -> None:
        """Take note of a view that this node has no part in."""
        with self._lock:
            is_of_view = message.name in self.view.names
            self.is_answered |= self.is_evicted
            if isinstance(message, Evicted) and is_of_view and not self.is_evicted:
                key = message.view, message.number
                if key == self._progress.key and not self._voting.suspects(message.name):
                    self._step_outside()
            elif not is_of_view and message.size and not self.is_evicted:
                theirs = ViewRank(message.size, message.ended, message.first)
                self._around.hear_of_view(message.name, theirs)
                is_behind = not has_precedence(theirs, self._progress.rank, self.ranks)
                if isinstance(message, AskToJoinView) and is_behind and self._is_used:
                    self._sender.evicted(message.name, self._progress.rank)

    def hear_join_request(self, request: AskToJoinView) -> None:
        """Take note of a node that wants to be let in."""
        with self._lock:
            if request.size:
                self.hear_evicted(request)
            elif not self.is_evicted and self._contacts.knows(request.name):
                member = Member(request.name, request.incarnation)
                self._around.hear_join_request(member)
                if self._is_used:
                    self._answer_join_request(member)

    def contact_changed(self, peer: str) -> None:
        """Tell a peer that has been met, or has come back, where this node is."""
        with self._lock:
            self._progress.repeat(peer)
            self.changed.notify_all()

    def tick(self, now: float) -> bool:
        """Go on with a ballot; return whether there is one."""
        with self._lock:
            self._voting.pass_time(now)
            self._decide()
            return self._voting.ballot is not None

    def _skip(self) -> None:
        """Take no notice of what has been decided without this node's calling it."""
        self._decided.clear()
        self._called = self.number

    # Ballots

    def _open_ballot(self, *, expired: bool = False) -> None:
        if self._voting.ballot is None and not self.is_evicted:
            self._voting.open(expired=expired)
            self._decide()

    def _decide(self) -> None:
        """Do what the ballot has come to, if it has."""
        ballot = self._voting.ballot
        decision = None if ballot is None else ballot.decision()
        if ballot is not None and ballot.is_left_behind:
            self._step_outside()
        elif decision is not None:
            self._conclude(decision)

    def _conclude(self, decision: Decision) -> None:
        after = self.view.after(self.number, decision.lost, decision.joiners, self.ranks)
        outcome = self._sender.outcome(self._progress.key, decision, after)
        if self._voting.ballot is not None:
            self._sender.tell_all(self.view.names, outcome)
        for joiner in decision.joiners:
            self._sender.tell(joiner.name, outcome)
        self._ended.add(outcome, self._progress.lives())
        if self._own.name in decision.lost:
            self._step_outside()
        else:
            self._go_on(decision, after)

    def _adopt(self, outcome: CollectiveOutcome, view: GroupView) -> None:
        self._ended.add(self._sender.in_own_name(outcome), self._progress.lives())
        if self._own.name in view.names:
            joiners = tuple(m for m in view.members if m.name not in self.view.names)
            self._go_on(Decision(outcome.holds, outcome.lost, joiners), view)
        else:
            self._step_outside()

    def _go_on(self, decision: Decision, view: GroupView) -> None:
        self._has_part = True
        self._around.let_in(decision.joiners)
        self._decided[self.number] = decision
        self._start(view, self.number + 1)

    def _enter_view(self, view: GroupView, number: int) -> None:
        self._has_part = self.is_evicted = self._asks_to_join = False
        self._around.forget_views()
        self._start(view, number)
        self._skip()

    def _start(self, view: GroupView, number: int) -> None:
        has_changed = view != self.view
        self._progress.begin(view, number)
        self._voting.close()
        if has_changed:
            log.info("%s: collectives among %s", self._own.name, ", ".join(view.names))
            self._around.forget_views()
            for watcher in self._watchers:
                watcher(view)
        self.changed.notify_all()

    def _step_outside(self) -> None:
        """Take note that the others go on without this node."""
        self._voting.close()
        self._progress.withdraw()
        self.exits += not self.is_evicted
        self.is_evicted, self.is_answered = True, False
        self._is_untold |= self._has_part
        self._has_part = False
        self.changed.notify_all()

    # Messages

    def _answers_late(self, name: str, incarnation: bytes, view: bytes, number: int) -> bool:
        """Answer a node that is in a collective which has ended here; tell whether it was one."""
        if self._ended.answer(name, incarnation, (view, number), self._progress.rank):
            return True
        is_past = number < self.number or (number == self.number and view != self.view.identity)
        if is_past and not self.is_evicted:
            self._sender.evicted(name, self._progress.rank, (view, number))
        return is_past

    def _answer_join_request(self, member: Member) -> None:
        """Tell a node that wants to be let in of this view, which may have let it in already."""
        self._sender.evicted(member.name, self._progress.rank)
        is_new_view = self.number == self.view.since
        if member in self.view.members and is_new_view and not self._voting.suspects(member.name):
            # It was not told, or has left again: then it takes no notice.
            self._sender.tell(member.name, self._sender.outcome(NOWHERE, Decision(True), self.view))
        if self._admits_at_once:
            self._open_ballot()
