"""GroupState: what a node knows of one group, and what becomes of its collectives and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.ended import EndedCollectives
from dpwa.collectives.group_sender import GroupSender
from dpwa.collectives.phase_records import PhaseRecords
from dpwa.collectives.view_discovery import ViewDiscovery
from dpwa.collectives.view_progress import ViewProgress
from dpwa.collectives.voting import Voting
from dpwa.message_codes import get_log
from dpwa.policy.groups.ballots import Decision
from dpwa.policy.groups.views import GroupView, Member
from dpwa.runtime import Runtime
from dpwa.wire.collecting import CollectiveOutcome

log = get_log("dpwa.collectives")

Watcher = Callable[[GroupView], None]


class GroupState:
    """The state of one group; every method is called with the lock of the group held.

    Args:
        tag: of its collectives.
        ranks: names of all nodes in the order of the configuration, if there are any.
        contacts: of this node.
        runtime: of the node.

    Attributes:
        own: this node.
        ranks: as given.
        lock, changed: see `Group`.
        sender, records, progress, around, voting, ended: the parts.
        is_evicted: whether this node was left behind, and must be let in again.
        is_answered: whether it has heard of a view since then.
        asks_to_join: whether it has asked to be let in.
        exits: how often it has been outside.
        called: number of the collective that the training thread calls next.
        decided: what became of those that it has not ended yet.
        has_part: whether it has ever ended a collective in this view.
        is_untold: that it was left behind, after it had part.
        is_used: whether this node calls anything: messages of others make a group, too, and until
            then it is of no view.
        admits_at_once: whether a ballot lets in who asks for it.
        watchers: are told of every view.
    """

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
        self.around = ViewDiscovery(contacts, self.sender, self.ranks, runtime)
        self.voting = Voting(
            self.own.name, self.progress, self.sender, self.around.join_requests, runtime
        )
        self.ended = EndedCollectives(self.sender)
        self.is_evicted = self.is_answered = self.asks_to_join = False
        self.exits = self.called = 0
        self.decided: dict[int, Decision] = {}
        self.has_part = self.is_untold = self.admits_at_once = False
        self.is_used = bool(ranks)
        self.watchers: list[Watcher] = []

    @property
    def view(self) -> GroupView:
        """Who takes part."""
        return self.progress.view

    @property
    def number(self) -> int:
        """Which collective comes next, or is under way."""
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
        """Do what the ballot has come to, if it has."""
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
        self.around.let_in(decision.joiners)
        self.decided[self.number] = decision
        self._start(view, self.number + 1)

    def enter_view(self, view: GroupView, number: int) -> None:
        """Take part in a view from this collective on."""
        self.has_part = self.is_evicted = self.asks_to_join = False
        self.around.forget_views()
        self._start(view, number)
        self.skip()

    def _start(self, view: GroupView, number: int) -> None:
        has_changed = view != self.view
        self.progress.begin(view, number)
        self.voting.close()
        if has_changed:
            log.info("%s: collectives among %s", self.own.name, ", ".join(view.names))
            self.around.forget_views()
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
