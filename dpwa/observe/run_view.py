"""RunView: what is known of a run at one moment, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass

from dpwa.observe.answers import HistoryAnswer, PeerEntry
from dpwa.observe.events import RunEvent
from dpwa.observe.history import SampleHistory


@dataclass(frozen=True)
class Followed:
    """One node of a run at one moment.

    Attributes:
        name: of the node; its address as long as it has not told its name.
        endpoint: where it is asked.
        answer: the newest; `None`: it has never answered.
        silent_s: for how long it has not answered; 0 while it answers.
        problem: why it cannot be reached, in words, if that is known.
        history: of its figures; belongs to the watch, which adds to it on its own thread.
        told: what another node has told of it, by `OTHER_NAMES`; likewise.
    """

    name: str
    endpoint: str
    answer: HistoryAnswer | None
    silent_s: float
    problem: str
    history: SampleHistory
    told: SampleHistory

    @property
    def peers(self) -> tuple[PeerEntry, ...]:
        """What it has told last of its peers."""
        return () if self.answer is None else self.answer.peers

    @property
    def ending(self) -> tuple[bool, tuple[str, ...]] | None:
        """Whether it has finished, and whom it waits for; `None`: it trains, or is silent."""
        return None if self.answer is None or self.silent_s else self.answer.ending


@dataclass(frozen=True)
class RunView:
    """All that is known of a run at one moment.

    Attributes:
        time: in seconds since the epoch.
        through: the node that tells who is there, and of those that do not answer; empty: none.
        nodes: in the order in which they were found.
        events: oldest first; the newest of all nodes, and of this watch (whose `node` is empty).
    """

    time: float
    through: str
    nodes: tuple[Followed, ...]
    events: tuple[RunEvent, ...]
