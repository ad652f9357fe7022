"""The codes at the end of messages."""

import re


def without_codes(text: str) -> str:
    """Return a text whose lines may end with codes of messages without those."""
    return re.sub(r" \[DPWA-[EW]\d{3}\]$", "", text, flags=re.MULTILINE)
