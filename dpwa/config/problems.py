"""Mistakes in a configuration: where each one is, and how it is worded."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from dpwa.errors import without_codes

_PLAIN = re.compile(r"[^\s\"'(){}\[\],;]+(?: [^\s\"'(){}\[\],;]+)*")
_SHOWN_CHARACTERS = 60
_LISTED_NAMES = 20

IN_PLACE_OF_TOPK = "fraction: 0.05 with codec: int8, as the codec topk was removed"
# Settings that earlier versions had, and what to set in their place.
REMOVED = {
    "topk": IN_PLACE_OF_TOPK,
    "consensus_control": "algorithm: symmetric or together, which keep nodes closer, as "
    "consensus_control was removed",
}


@dataclass(frozen=True)
class Place:
    """Where a value was written."""

    source: str  # path of the file, or `<config>` for a mapping
    line: int = 0  # from 1 on; 0 for a value that comes from no file
    column: int = 0  # from 1 on, in characters; without a file, the order of reading
    variable: str = ""  # the environment variable that the value comes from, if any

    def prefix(self, path: str) -> str:
        """Return the beginning of a problem's line: location and key path."""
        if self.variable:
            return f"environment: {self.variable}"
        location = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        return f"{location}: {path}" if path else location

    def order(self) -> tuple[bool, str, int, int]:
        """Return the sort key: files from top to bottom, then variables."""
        return bool(self.variable), self.variable, self.line, self.column


@dataclass
class Problems:
    """Collects mistakes; the first one about a key path at a place stands."""

    _found: dict[tuple[Place, str], str] = field(default_factory=dict)
    _elsewhere: list[str] = field(default_factory=list)

    def add(self, place: Place, path: str, message: str) -> None:
        self._found.setdefault((place, path), message)

    def add_line(self, line: str) -> None:
        """Add a mistake in another file, as a line that says where it is."""
        self._elsewhere.append(line)

    def lines(self) -> list[str]:
        """Return one line per mistake, sorted by position; those of other files come last."""
        ordered = sorted(self._found.items(), key=lambda item: item[0][0].order())
        own = [f"{place.prefix(path)}: {_coded(message)}" for (place, path), message in ordered]
        return [*own, *self._elsewhere]


def _coded(message: str) -> str:
    """Return a message with a code: that of any wrong value, unless it has one of its own."""
    return message if without_codes(message) != message else f"{message} [DPWA-E178]"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean NAME?` for the known name most like this one, or nothing."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def listing(names: Sequence[str], most: int = _LISTED_NAMES) -> str:
    """Join names by commas; of more than `most`, the first of them."""
    rest = len(names) - most
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(names[:most]) + more


def shown(text: str) -> str:
    """Quote text where it could be misread, and shorten it."""
    short = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    plain = _PLAIN.fullmatch(short) and short.isprintable()
    return short if plain else json.dumps(short, ensure_ascii=not short.isprintable())


def joined(path: str, step: str | int) -> str:
    """Return the key path of an item (int) or a key (str) below `path`."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{shown(step)}" if path else shown(step)


def joined_all(steps: Iterable[str | int]) -> str:
    return reduce(joined, steps, "")
