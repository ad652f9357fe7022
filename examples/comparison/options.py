"""Parse the command line options of compare.py and adversary.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def counter(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for argparse, which accepts whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most:
            return int(text)
        expected = f"expected a whole number from {least} to {most} (got {text})"
        raise argparse.ArgumentTypeError(expected)

    return read
