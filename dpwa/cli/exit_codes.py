"""The exit codes of all commands. 0 means success, and 130 means Ctrl-C (128 + the signal)."""

from __future__ import annotations

FAILURE = 1
USAGE = 2
UNREACHABLE = 3
