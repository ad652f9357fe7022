"""Mistakes in a configuration: the place of each mistake, and the words of the messages."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dpwa.errors import without_codes

Loc = tuple[str | int, ...]  # the path to a value, such as pydantic's `loc`

_PLAIN = re.compile(r"[^\s\"'(){}\[\],;]+(?: [^\s\"'(){}\[\],;]+)*")
_SHOWN_CHARACTERS = 60
_LISTED_NAMES = 20

IN_PLACE_OF_TOPK = "fraction: 0.05 with codec: int8, because the codec topk was removed"
_LR = "in your program, or lr_spread: {}, whose mean is lr (see docs/migration.md)"
# Settings of earlier versions and of the program of LSGD, with their replacements.
REMOVED = {
    "topk": IN_PLACE_OF_TOPK,
    "consensus_control": "algorithm: symmetric or together, which keep nodes closer, because "
    "consensus_control was removed",
    "dist_optimizer": "algorithm: lsgd (see docs/migration.md)",
    "l_comm": "lsgd.local_period, this value times the number of nodes (see docs/migration.md)",
    "g_comm": "lsgd.global_period, this value times the number of nodes (see docs/migration.md)",
    "avg_size": "loss_window (see docs/migration.md)",
    "no_prox": "lsgd: {p1: 0, p2: 0} (see docs/migration.md)",
    "num_groups": "the key group of each node (see docs/migration.md)",
    "cur_group": "the key group of each node (see docs/migration.md)",
    "lr_lin": f"lr * (gossip.rank + 1) {_LR.format('linear')}",
    "lr_pow": f"lr * 2**gossip.rank {_LR.format('power')}",
}


@dataclass(frozen=True)
class Place:
    """The file, line and column of a value, or its environment variable."""

    source: str  # path of the file, or `<config>` for a mapping
    line: int = 0  # counted from 1; 0 for a value that comes from no file
    column: int = 0  # counted from 1, in characters
    variable: str = ""  # the environment variable that has the value, if any

    def order(self) -> tuple[bool, str, int, int]:
        """Return the sort key: files from top to bottom, then variables."""
        return bool(self.variable), self.variable, self.line, self.column


@dataclass
class Problems:
    """Collects mistakes. Only the first mistake for each combination of place and path is kept."""

    _found: dict[tuple[Place, Loc], str] = field(default_factory=dict)
    _elsewhere: list[str] = field(default_factory=list)

    def add(self, place: Place, loc: Loc, message: str) -> None:
        self._found.setdefault((place, loc), message)

    def add_lines(self, lines: Iterable[str]) -> None:
        """Add mistakes in another file (an edge file), as lines that begin with file and line."""
        self._elsewhere += lines

    def lines(self) -> list[str]:
        """Return one line per mistake, sorted by position. Mistakes in other files are last."""
        ordered = sorted(self._found.items(), key=lambda item: item[0][0].order())
        return [*(_line(*at, message) for at, message in ordered), *self._elsewhere]


def _line(place: Place, loc: Loc, message: str) -> str:
    """Return a mistake as a line. A message without a code gets the code for invalid values."""
    if place.variable:
        told = [f"environment: {place.variable}"]
    else:
        at = f"{place.source}:{place.line}:{place.column}" if place.line else place.source
        told = [at, joined(loc)] if loc else [at]
    code = "" if without_codes(message) != message else " [DPWA-E178]"
    return f"{': '.join([*told, message])}{code}"


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the message about an unknown key."""
    names = list(dict.fromkeys(known))
    if key in REMOVED:
        told = f", expected {REMOVED[key]}"
    elif names:
        told = suggestion(key, names) or f", expected one of {listing(names)}"
    else:
        told = ", expected none"
    return f"unknown key{told} [DPWA-E206]"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that is most similar to `name`, or empty text."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f". Did you mean {by_lower[close[0]]}?" if close else ""


def listing(names: Sequence[str], most: int = _LISTED_NAMES) -> str:
    """Return the first `most` names, joined by commas, and the number of the other names."""
    rest = len(names) - most
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(names[:most]) + more


def shown(text: str) -> str:
    """Return text shortened for a message, in quotes if it could be misread without quotes."""
    short = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    plain = _PLAIN.fullmatch(short) and short.isprintable()
    return short if plain else json.dumps(short, ensure_ascii=not short.isprintable())


def got(value: object) -> str:
    """Return a value as text for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    try:
        return shown(str(value))
    except ValueError:  # Python refuses to convert integers of more than 4300 digits to text
        return "a very large number"


def joined(loc: Loc) -> str:
    """Return a path as text: `nodes[0].name`."""
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{shown(step)}"
    return text.removeprefix(".")
