"""Numbers, times and lists as text for people."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

MAX_NAMES = 4
UNKNOWN = "-"


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with some significant digits, or a dash if it is unknown."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "infinite"
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e9 else f"{value:.{digits}g}"


def size(count: float) -> str:
    """Return a number of bytes in a suitable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:  # larger numbers would be shown as 1e+03
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def share(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if 0 < value < 1e-4:
        return "<0.01 %"
    return f"{100 * value:.0f} %" if value >= 0.1 or value == 0 else f"{100 * value:.2g} %"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    units = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for index, (length, unit) in enumerate(units[:-1]):
        if seconds >= length:
            rest_length, rest_unit = units[index + 1]
            whole, rest = divmod(round(seconds / rest_length), length // rest_length)
            return f"{whole} {unit} {rest} {rest_unit}" if rest else f"{whole} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at)).rstrip()


def names(listed: Sequence[str], most: int = MAX_NAMES) -> str:
    shown = list(listed[:most])
    if len(listed) > most:
        shown.append(f"{len(listed) - most} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"
