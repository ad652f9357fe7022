"""Joining: where a node asks for admission, the answers, and the messages while it waits."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dpwa.config.endpoints import Seed
from dpwa.runtime import Runtime
from dpwa.transport.addresses import is_of_this_machine


class JoinAnswer(NamedTuple):
    """The answer to a request for admission at one address."""

    problem: str  # why it did not let this node in
    # undecided: ask again soon; waiting: the node there waits to be let in; self: it is this node
    kind: Literal["undecided", "waiting", "self", "no"] = "no"


NOT_YET = JoinAnswer("no answer yet", "undecided")


class JoinOutcome:
    """The results of all requests for admission so far. Any thread may call every method.

    A place is an endpoint as it was given. With a host name it may have several addresses.
    """

    def __init__(self, places: Iterable[str], runtime: Runtime) -> None:
        self.is_in = False  # somebody has let this node in
        self.refused = ""  # why it can never be let in
        self.changed = runtime.condition()  # notified at each change
        self._addresses: dict[str, tuple[str, ...]] = {place: (place,) for place in places}
        self._answers: dict[str, JoinAnswer] = {}

    def located(self, place: str, addresses: tuple[str, ...]) -> None:
        """Take note of the addresses that a host name has just now."""
        with self.changed:
            if place in self._addresses:
                self._addresses[place] = addresses
                self._answers.pop(place, None)

    def addresses(self, place: str) -> tuple[str, ...]:
        with self.changed:
            return self._addresses.get(place, (place,))

    def has_asked(self, address: str) -> bool:
        with self.changed:
            return any(address in addresses for addresses in self._addresses.values())

    def record_answer(self, address: str, answer: JoinAnswer) -> None:
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
        with self.changed:
            self.is_in = True
            self.changed.notify_all()

    def is_own(self, place: str) -> bool:
        """Return whether only this node is at a place. Other loopback addresses do not count."""
        with self.changed:
            answers = [(at, self._answers.get(at, NOT_YET)) for at in self.addresses(place)]
        others = [address for address, answer in answers if answer.kind != "self"]
        return len(others) < len(answers) and all(map(is_of_this_machine, others))

    @property
    def answers(self) -> Mapping[str, tuple[JoinAnswer, ...]]:
        """The answers at each place, for each of its addresses."""
        with self.changed:
            return {
                place: tuple(self._answers.get(address, NOT_YET) for address in addresses)
                for place, addresses in self._addresses.items()
            }

    @property
    def problems(self) -> Mapping[str, str]:
        """Why it was not admitted, by place, without its own places."""
        return {
            place: " and ".join(dict.fromkeys(answer.problem for answer in answers))
            for place, answers in self.answers.items()
            if not self.is_own(place)
        }

    @property
    def is_clear(self) -> bool:
        """Whether a node has admitted this one, or all have answered without doing so."""
        return self.is_in or bool(self.refused) or not self._any("undecided")

    @property
    def is_undecided(self) -> bool:
        return any(
            answer.kind == "undecided" and answer is not NOT_YET
            for answers in self.answers.values()
            for answer in answers
        )

    @property
    def has_tried(self) -> bool:
        """Whether an attempt has ended at each address."""
        return not any(a is NOT_YET for answers in self.answers.values() for a in answers)

    @property
    def all_wait(self) -> bool:
        return all(a.kind == "waiting" for answers in self.answers.values() for a in answers)

    @property
    def someone_waits(self) -> bool:
        return self._any("waiting")

    def _any(self, kind: str) -> bool:
        return any(a.kind == kind for answers in self.answers.values() for a in answers)


FIRST_LINE_WITHIN_S = 3.0  # though some of the first tries have not come to an end
LINE_EVERY_S = 10.0
MAX_SHOWN = 8  # places, in one line

_CYCLE = "if all wait for each other, give one of them `join: []` or `alone: true`"
_ADVICE = (
    "start a node at one of them, or put the address of a living one into `join`; `join: []` "
    "begins a new cluster, `alone: true` begins alone and keeps asking"
)


class Wait:
    """The time for which a node waits to be admitted, and its messages meanwhile.

    When the time is over it gives up or, without `gives_up`, begins alone.

    >>> wait = Wait("a", now=0.0, timeout_s=300.0, gives_up=True)
    >>> place = "h:7"
    >>> wait.line(0.1, {place: f"nothing answers at {place}"}, has_tried=True)
    'a: not let in yet, asks for 300 s more (join_timeout_s): h:7: nothing answers [DPWA-W041]'
    >>> wait.line(9.9, {}, has_tried=True)
    >>> wait.line(10.2, {place: "no answer yet"}, has_tried=True)
    'a: not let in yet, asks for 290 s more (join_timeout_s): h:7: no answer yet [DPWA-W041]'
    """

    def __init__(self, name: str, now: float, timeout_s: float, *, gives_up: bool) -> None:
        self._name = name
        self._began = now
        self._timeout_s = timeout_s
        self._gives_up = gives_up
        self._line_due: float | None = None

    def is_over(self, now: float) -> bool:
        return now - self._began >= self._timeout_s

    def line(self, now: float, problems: Mapping[str, str], *, has_tried: bool) -> str | None:
        """Return the message to log now: one when the first tries fail, then one every 10 s."""
        if self._line_due is None:
            is_due = has_tried or now - self._began >= FIRST_LINE_WITHIN_S
            self._line_due = now if is_due else None
        if self._line_due is None or now < self._line_due:
            return None
        self._line_due += LINE_EVERY_S
        left_s = max(0.0, self._began + self._timeout_s - now)
        left = f"for {left_s:.0f} s more"
        if self._gives_up:
            return (
                f"{self._name}: not let in yet, asks {left} (join_timeout_s): {told(problems)}"
                " [DPWA-W041]"
            )
        return (
            f"{self._name}: asks the members that it remembers {left}: {told(problems)} [DPWA-W042]"
        )

    def last_words(self, problems: Mapping[str, str], *, someone_waits: bool) -> str:
        advice = f"{_CYCLE}; else {_ADVICE}" if someone_waits else _ADVICE
        within = f"within {self._timeout_s:g} s (join_timeout_s)"
        return (
            f"{self._name}: gives up, nobody has let it in {within}: {told(problems)}; {advice}"
            " [DPWA-E226]"
        )


def told(problems: Mapping[str, str]) -> str:
    shown = [
        f"{place}: {problem.removesuffix(f' at {place}')}"
        for place, problem in list(problems.items())[:MAX_SHOWN]
    ]
    left = len(problems) - len(shown)
    return "; ".join([*shown, f"and {left} more"] if left > 0 else shown)


FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_ALONE_S = 2.0  # as long as nobody is known
LONGEST_PAUSE_S = 5.0  # for as long as the node lives: others may be there that nobody knows
MAX_SEEDS = 256


@dataclass
class _Attempts:
    seed: Seed
    due: float
    pause_s: float = FIRST_PAUSE_S


class Seeds:
    """Where to ask, with a pause that doubles each time, of which some is chance."""

    def __init__(self, seeds: Iterable[Seed], rng: random.Random) -> None:
        self._attempts = [_Attempts(seed, due=0.0) for seed in seeds]
        self._rng = rng

    def add_seed(self, seed: Seed) -> None:
        """Ask there, too, if that is a new place and there are not too many of them."""
        is_new = all(attempts.seed.endpoint != seed.endpoint for attempts in self._attempts)
        if is_new and len(self._attempts) < MAX_SEEDS:
            self._attempts.append(_Attempts(seed, due=0.0))

    def keep_only(self, endpoints: Collection[str]) -> None:
        self._attempts = [each for each in self._attempts if each.seed.endpoint in endpoints]

    def pop_due(self, now: float, known: Collection[str], *, is_alone: bool) -> list[Seed]:
        """Return where to ask now, except at `known` endpoints, and note that it is done."""
        longest_s = LONGEST_PAUSE_ALONE_S if is_alone else LONGEST_PAUSE_S
        found = []
        for attempts in self._attempts:
            if attempts.seed.endpoint in known:
                attempts.pause_s = FIRST_PAUSE_S
                continue
            if is_alone:
                attempts.due = min(attempts.due, now + longest_s)
            if now >= attempts.due:
                attempts.due = now + self._rng.uniform(0.5, 1.0) * attempts.pause_s
                attempts.pause_s = min(longest_s, 2.0 * attempts.pause_s)
                found.append(attempts.seed)
        return found
