"""The stable codes of warnings and errors, by which docs/troubleshooting.md explains them.

`message_codes.tsv` has a line for each: the code, a tab, and how the message begins, with `…` for
what differs. `DPWA-E041` is raised, `DPWA-W012` is logged. A code without a beginning is that of a
message that is no more; it is never given to another one. Nothing is read before a message is
shown.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from pathlib import Path

FIELD = "…"
_PERCENT = r"%%|%[-+ #0]*[\d.*]*[sdgrfiaxXeE]"
_CODE_AT_END = r" \[(DPWA-[EW]\d{3})\]$"

_Score = tuple[int, int, int]


def get_log(name: str) -> logging.Logger:
    """Return the logger of this name, whose warnings and errors end with their codes."""
    logger = logging.getLogger(name)
    logger.addFilter(_add_code)  # for records that are emitted only; users' handlers see it too
    return logger


def as_template(text: str) -> str:
    """Return a text for `%` with `…` for each part that is filled in."""
    return re.sub(_PERCENT, FIELD, text)


def code_of(text: str, letter: str = "") -> str | None:
    """Return the code of a message, of all that begin like it the one that says most; or None.

    Args:
        text: with or without what is filled in.
        letter: `E` for errors only, `W` for logged warnings only.
    """
    ended = re.search(_CODE_AT_END, text)
    if ended:  # it ends with a message that has one already
        return ended[1]
    words = " ".join(text.split())
    try:
        known = _catalogue()
    except OSError:  # no descriptor is left: the message counts, not its code
        return None
    fits = ((_fit(parts, words), code) for code, parts in known if f"-{letter}" in code)
    return max(((fit, code) for fit, code in fits if fit), default=(None, None))[1]


@functools.cache
def _catalogue() -> tuple[tuple[str, list[str]], ...]:
    lines = Path(__file__).with_name("message_codes.tsv").read_text("utf-8").splitlines()
    pairs = (line.partition("\t") for line in lines)
    return tuple((code, beginning.split(FIELD)) for code, _, beginning in pairs if beginning)


def _fit(parts: Sequence[str], text: str) -> _Score | None:
    """Return how well a text begins with these parts, with anything between them; None if not.

    What the text begins with counts most. Then the beginning whose next words come first: what
    comes later may belong to another message that this one quotes. Then the longest one.
    """
    first, *rest = parts
    if not text.startswith(first):
        return None
    place, words_at = len(first), None
    for part in rest:
        found = text.find(part, place)
        if found < 0:
            return None
        if words_at is None and any(map(str.isalpha, part)):
            words_at = found
        place = found + len(part)
    return len(first), -(len(text) if words_at is None else words_at), sum(map(len, parts))


def _add_code(record: logging.LogRecord) -> bool:
    if record.levelno >= logging.WARNING and isinstance(record.msg, str):
        text = record.getMessage()
        code = code_of(as_template(record.msg), "W") or code_of(text)  # of a text as an argument
        if code is not None and not text.endswith(f"[{code}]"):
            record.msg += f" [{code}]"
    return True
