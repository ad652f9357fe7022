"""Joining: the places where a node asks for admission, the answers, and the log messages."""

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

    problem: str  # why this node was not admitted
    # undecided: ask again soon; waiting: the other node waits, too; self: it is this node itself
    kind: Literal["undecided", "waiting", "self", "no"] = "no"


NOT_YET = JoinAnswer("no answer yet", "undecided")


class JoinOutcome:
    """The results of all requests for admission so far. Any thread may call every method.

    A place is an endpoint in the configuration. A host name may have several addresses.
    """

    def __init__(self, places: Iterable[str], runtime: Runtime) -> None:
        self.is_in = False  # whether a node has admitted this node
        self.refused = ""  # why this node can never be admitted
        self.changed = runtime.condition()  # notified after each change
        self._addresses: dict[str, tuple[str, ...]] = {place: (place,) for place in places}
        self._answers: dict[str, JoinAnswer] = {}

    def located(self, place: str, addresses: tuple[str, ...]) -> None:
        """Note the current addresses of a host name."""
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
        """If this node is not yet admitted, record that no node will ever admit it."""
        with self.changed:
            if not self.is_in:
                self.refused = reason
                self.changed.notify_all()

    def let_in(self) -> None:
        with self.changed:
            self.is_in = True
            self.changed.notify_all()

    def is_own(self, place: str) -> bool:
        """Return whether only this node answers at an endpoint. Ignore other loopback addresses."""
        with self.changed:
            answers = [(at, self._answers.get(at, NOT_YET)) for at in self.addresses(place)]
        others = [address for address, answer in answers if answer.kind != "self"]
        return len(others) < len(answers) and all(map(is_of_this_machine, others))

    @property
    def answers(self) -> Mapping[str, tuple[JoinAnswer, ...]]:
        """The answers by endpoint: one from each address of the endpoint, or `NOT_YET`."""
        with self.changed:
            return {
                place: tuple(self._answers.get(address, NOT_YET) for address in addresses)
                for place, addresses in self._addresses.items()
            }

    @property
    def problems(self) -> Mapping[str, str]:
        """The reasons why nodes did not admit this node, by endpoint, except its own endpoints."""
        return {
            place: " and ".join(dict.fromkeys(answer.problem for answer in answers))
            for place, answers in self.answers.items()
            if not self.is_own(place)
        }

    @property
    def is_clear(self) -> bool:
        """Whether a node admitted or finally refused this one, or no answer is still to come."""
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
        """Whether at least one attempt has ended at each address."""
        return not any(a is NOT_YET for answers in self.answers.values() for a in answers)

    @property
    def all_wait(self) -> bool:
        return all(a.kind == "waiting" for answers in self.answers.values() for a in answers)

    @property
    def someone_waits(self) -> bool:
        return self._any("waiting")

    def _any(self, kind: str) -> bool:
        return any(a.kind == kind for answers in self.answers.values() for a in answers)


FIRST_LINE_WITHIN_S = 3.0  # even if some of the first attempts have not ended
LINE_EVERY_S = 10.0
MAX_SHOWN = 8  # places in a message

_CYCLE = "If all nodes wait for each other, set `join: []` or `alone: true` for one of them"
_ADVICE = (
    "Start a node at one of these addresses, or put the address of a running node into `join`. "
    "With `join: []`, a node begins a new cluster. With `alone: true`, the node "
    "begins a new cluster and continues to ask"
)


class Wait:
    """The time for which a node waits to be admitted, and its log messages meanwhile.

    When the time is over, the node gives up. Without `gives_up`, it begins alone.

    >>> wait = Wait("a", now=0.0, timeout_s=300.0, gives_up=True)
    >>> place = "h:7"
    >>> wait.line(0.1, {place: f"nothing answers at {place}"}, has_tried=True)
    'a: not admitted yet, asks for 300 s more (join_timeout_s): h:7: nothing answers [DPWA-W041]'
    >>> wait.line(9.9, {}, has_tried=True)
    >>> wait.line(10.2, {place: "no answer yet"}, has_tried=True)
    'a: not admitted yet, asks for 290 s more (join_timeout_s): h:7: no answer yet [DPWA-W041]'
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
        """Return the message to log now, or `None`. After the first, there is one every 10 s."""
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
                f"{self._name}: not admitted yet, asks {left} (join_timeout_s): {told(problems)}"
                " [DPWA-W041]"
            )
        return (
            f"{self._name}: asks the members that it remembers {left}: {told(problems)} [DPWA-W042]"
        )

    def last_words(self, problems: Mapping[str, str], *, someone_waits: bool) -> str:
        advice = f"{_CYCLE}. Otherwise: {_ADVICE}" if someone_waits else _ADVICE
        within = f"within {self._timeout_s:g} s (join_timeout_s)"
        return (
            f"{self._name}: gives up, because no node has admitted it {within}: {told(problems)}. "
            f"{advice} [DPWA-E226]"
        )


def told(problems: Mapping[str, str]) -> str:
    shown = [
        f"{place}: {problem.removesuffix(f' at {place}')}"
        for place, problem in list(problems.items())[:MAX_SHOWN]
    ]
    left = len(problems) - len(shown)
    return "; ".join([*shown, f"and {left} more"] if left > 0 else shown)


FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_ALONE_S = 2.0  # while this node knows no other node
LONGEST_PAUSE_S = 5.0  # later, because there may be nodes that no member knows
MAX_SEEDS = 256


@dataclass
class _Attempts:
    seed: Seed
    due: float
    pause_s: float = FIRST_PAUSE_S


class Seeds:
    """The endpoints to ask for admission, each with random exponential backoff up to a limit."""

    def __init__(self, seeds: Iterable[Seed], rng: random.Random) -> None:
        self._attempts = [_Attempts(seed, due=0.0) for seed in seeds]
        self._rng = rng

    def add_seed(self, seed: Seed) -> None:
        """Add an endpoint to ask for admission, if it is new and fewer than `MAX_SEEDS` exist."""
        is_new = all(attempts.seed.endpoint != seed.endpoint for attempts in self._attempts)
        if is_new and len(self._attempts) < MAX_SEEDS:
            self._attempts.append(_Attempts(seed, due=0.0))

    def keep_only(self, endpoints: Collection[str]) -> None:
        self._attempts = [each for each in self._attempts if each.seed.endpoint in endpoints]

    def pop_due(self, now: float, known: Collection[str], *, is_alone: bool) -> list[Seed]:
        """Return the endpoints to ask now, except `known` ones, and note that they are asked."""
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
