"""Verdict: what became of asking to be let in, for the thread that waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from dpwa.runtime import Runtime
from dpwa.transport.addresses import is_of_this_machine


class JoinAnswer(NamedTuple):
    """What became of asking at one address.

    Attributes:
        problem: why it did not let this node in.
        kind: "undecided", if this node is to ask again soon; "waiting", if the node there waits to
            be let in itself; "self", if this node itself is there; "no" for all others.
    """

    problem: str
    kind: Literal["undecided", "waiting", "self", "no"] = "no"


NOT_YET = JoinAnswer("no answer yet", "undecided")


class JoinVerdict:
    """What became of asking to be let in so far; every method may be called from any thread.

    A place is an endpoint as it was told; with a host name it may have several addresses.

    Args:
        places: where this node asks because it was told to.
        runtime: of the node.

    Attributes:
        is_in: somebody has let this node in.
        refused: why it can never be let in; empty if nobody said so.
        changed: notified when something has changed.
    """

    def __init__(self, places: Iterable[str], runtime: Runtime) -> None:
        self.is_in = False
        self.refused = ""
        self.changed = runtime.condition()
        self._addresses: dict[str, tuple[str, ...]] = {place: (place,) for place in places}
        self._answers: dict[str, JoinAnswer] = {}

    def located(self, place: str, addresses: tuple[str, ...]) -> None:
        """Take note of the addresses that a host name has just now."""
        with self.changed:
            if place in self._addresses:
                self._addresses[place] = addresses
                self._answers.pop(place, None)

    def addresses(self, place: str) -> tuple[str, ...]:
        """Return the addresses of a place, as far as they are known."""
        with self.changed:
            return self._addresses.get(place, (place,))

    def has_asked(self, address: str) -> bool:
        """Tell whether an address is one of the places."""
        with self.changed:
            return any(address in addresses for addresses in self._addresses.values())

    def take(self, address: str, answer: JoinAnswer) -> None:
        """Take note of what became of asking at an address, if it is one of the places."""
        with self.changed:
            if self.has_asked(address):
                self._answers[address] = answer
                self.changed.notify_all()

    def refuse(self, reason: str) -> None:
        """Take note that this node can never be let in, unless it is already."""
        with self.changed:
            if not self.is_in:
                self.refused = reason
                self.changed.notify_all()

    def let_in(self) -> None:
        """Take note that somebody has let this node in."""
        with self.changed:
            self.is_in = True
            self.changed.notify_all()

    def is_own(self, place: str) -> bool:
        """Tell whether only this node is at a place; another loopback address is no other place."""
        with self.changed:
            answers = [(at, self._answers.get(at, NOT_YET)) for at in self.addresses(place)]
        others = [address for address, answer in answers if answer.kind != "self"]
        return len(others) < len(answers) and all(map(is_of_this_machine, others))

    @property
    def answers(self) -> Mapping[str, tuple[JoinAnswer, ...]]:
        """What came of asking at each place, for each of its addresses."""
        with self.changed:
            return {
                place: tuple(self._answers.get(address, NOT_YET) for address in addresses)
                for place, addresses in self._addresses.items()
            }

    @property
    def problems(self) -> Mapping[str, str]:
        """Why it was not let in, by place; its own are left out."""
        return {
            place: " and ".join(dict.fromkeys(answer.problem for answer in answers))
            for place, answers in self.answers.items()
            if not self.is_own(place)
        }

    @property
    def is_clear(self) -> bool:
        """Whether somebody has let this node in, or nobody does of those it has asked."""
        return self.is_in or bool(self.refused) or not self._any("undecided")

    @property
    def is_undecided(self) -> bool:
        """Whether somebody has said that this node is to ask again."""
        return any(
            answer.kind == "undecided" and answer is not NOT_YET
            for answers in self.answers.values()
            for answer in answers
        )

    @property
    def has_tried(self) -> bool:
        """Whether an attempt has come to an end at each address."""
        return not any(a is NOT_YET for answers in self.answers.values() for a in answers)

    @property
    def all_wait(self) -> bool:
        """Whether all nodes that were asked wait to be let in themselves."""
        return all(a.kind == "waiting" for answers in self.answers.values() for a in answers)

    @property
    def someone_waits(self) -> bool:
        """Whether a node that was asked waits to be let in itself."""
        return self._any("waiting")

    def _any(self, kind: str) -> bool:
        return any(a.kind == kind for answers in self.answers.values() for a in answers)
