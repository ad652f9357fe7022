"""Hearing: what the members of a group and other nodes say, and what this node makes of it."""

from __future__ import annotations

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group_sender import NOWHERE
from dpwa.collectives.group_state import GroupState
from dpwa.data.boards import Posted
from dpwa.policy.groups.ballots import Decision
from dpwa.policy.groups.views import GroupView, Member, ViewRank, has_precedence
from dpwa.wire.collecting import AskToJoinView, CollectiveOutcome, Evicted, Post, Vote


class Hearing:
    """Takes in messages of one group, on the RxThread.

    Args:
        state: of the group.
        contacts: of this node.
    """

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
        """Take in a vote, and vote too."""
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
        """Adopt what others have decided, if this node has not."""
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
        """Take note of a view that this node has no part in."""
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
                state.around.hear_of_view(message.name, theirs)
                is_behind = not has_precedence(theirs, state.progress.rank, state.ranks)
                if isinstance(message, AskToJoinView) and is_behind and state.is_used:
                    state.sender.evicted(message.name, state.progress.rank)

    def join_request(self, request: AskToJoinView) -> None:
        """Take note of a node that wants to be let in."""
        state = self._state
        with state.lock:
            if request.size:
                self.evicted(request)
            elif not state.is_evicted and self._contacts.knows(request.name):
                member = Member(request.name, request.incarnation)
                state.around.hear_join_request(member)
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
