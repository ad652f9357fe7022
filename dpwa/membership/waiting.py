"""What a node says while it waits to be let in: pure, as the time is passed in.

>>> wait = Wait("w7", now=0.0, timeout_s=300.0, gives_up=True)
>>> place = "tcp://10.0.0.1:7000"
>>> wait.line(0.1, {place: f"nothing answers at {place}"}, has_tried=True)
'w7: not let in yet, asks for 300 s more (join_timeout_s): tcp://10.0.0.1:7000: nothing answers'
>>> wait.line(9.9, {}, has_tried=True)
>>> wait.line(10.2, {place: "no answer yet"}, has_tried=True)
'w7: not let in yet, asks for 290 s more (join_timeout_s): tcp://10.0.0.1:7000: no answer yet'
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST_LINE_WITHIN_S = 3.0  # though some of the first tries have not come to an end
LINE_EVERY_S = 10.0
MOST_SHOWN = 8  # places, in one line

_CYCLE = "if all wait for each other, give one of them `join: []` or `alone: true`"
_ADVICE = (
    "start a node at one of them, or put the address of a living one into `join`; `join: []` "
    "begins a new cluster, `alone: true` begins alone and keeps asking"
)


class Wait:
    """How long a node waits to be let in, and what it says meanwhile.

    Args:
        name: of the node.
        now: when it begins to wait, in seconds.
        timeout_s: how long it waits.
        gives_up: whether it gives up then; else it begins alone.
    """

    def __init__(self, name: str, now: float, timeout_s: float, *, gives_up: bool) -> None:
        self._name = name
        self._began = now
        self._timeout_s = timeout_s
        self._gives_up = gives_up
        self._line_due: float | None = None

    def is_over(self, now: float) -> bool:
        """Tell whether it has waited long enough."""
        return now - self._began >= self._timeout_s

    def line(self, now: float, problems: Mapping[str, str], *, has_tried: bool) -> str | None:
        """Return what to say now, if anything: at once when the first tries fail, then every 10 s.

        Args:
            now: in seconds.
            problems: why it was not let in, by place.
            has_tried: whether an attempt has come to an end at each place.
        """
        if self._line_due is None:
            is_due = has_tried or now - self._began >= FIRST_LINE_WITHIN_S
            self._line_due = now if is_due else None
        if self._line_due is None or now < self._line_due:
            return None
        self._line_due += LINE_EVERY_S
        left_s = max(0.0, self._began + self._timeout_s - now)
        left = f"for {left_s:.0f} s more"
        if self._gives_up:
            return f"{self._name}: not let in yet, asks {left} (join_timeout_s): {told(problems)}"
        return f"{self._name}: asks the members that it remembers {left}: {told(problems)}"

    def last_words(self, problems: Mapping[str, str], *, someone_waits: bool) -> str:
        """Return what to say when it gives up."""
        advice = f"{_CYCLE}; else {_ADVICE}" if someone_waits else _ADVICE
        within = f"within {self._timeout_s:g} s (join_timeout_s)"
        return f"{self._name}: gives up, nobody has let it in {within}: {told(problems)}; {advice}"


def told(problems: Mapping[str, str]) -> str:
    """Return a line with what is wrong at each place."""
    shown = [
        f"{place}: {problem.removesuffix(f' at {place}')}"
        for place, problem in list(problems.items())[:MOST_SHOWN]
    ]
    left = len(problems) - len(shown)
    return "; ".join([*shown, f"and {left} more"] if left > 0 else shown)
