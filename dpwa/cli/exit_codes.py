"""The exit codes of a command. 0 is success, 130 Ctrl-C (128 + signal)."""

from __future__ import annotations

FAILURE = 1
USAGE = 2
UNREACHABLE = 3
