"""EndedCollectives: how the last collectives have ended, for members who have not heard of it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dpwa.collectives.group_sender import GroupSender, Key
from dpwa.policy.groups.views import ViewRank
from dpwa.wire.collecting import CollectiveOutcome

REMEMBERED = 16  # collectives whose outcome is told to whoever asks


@dataclass(frozen=True)
class _Ended:
    outcome: CollectiveOutcome
    lives: dict[str, bytes]


class EndedCollectives:
    """The outcomes of the last collectives; used under the lock of its group.

    Args:
        sender: of the group.
    """

    def __init__(self, sender: GroupSender) -> None:
        self._sender = sender
        self._ended: OrderedDict[Key, _Ended] = OrderedDict()

    @property
    def last(self) -> CollectiveOutcome | None:
        """The outcome of the last one; `None`: there was none."""
        return next(reversed(self._ended.values())).outcome if self._ended else None

    def add(self, outcome: CollectiveOutcome, lives: dict[str, bytes]) -> None:
        """Remember an outcome, and the lives of those who were members."""
        self._ended[outcome.view, outcome.number] = _Ended(outcome, lives)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def answer(self, name: str, incarnation: bytes, key: Key, rank: ViewRank) -> bool:
        """Tell a node how the collective has ended that it is in; return whether it has.

        A process that was not a member of it is told of this view, with its rank, instead.
        """
        ended = self._ended.get(key)
        if ended is None:
            return False
        if ended.lives.get(name) in (b"", incarnation):
            self._sender.tell(name, ended.outcome)
        else:
            self._sender.evicted(name, rank, key)
        return True
