"""Common command line options of both scripts."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def counter(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers within limits, for argparse."""

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most:
            return int(text)
        expected = f"expected a whole number from {least} to {most} (got {text})"
        raise argparse.ArgumentTypeError(expected)

    return read
