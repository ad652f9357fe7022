"""Bounds of seconds, which say nothing on a machine that is busy.

A test proves what happens, and in which order; only a hang may break its bounds. How long things
take is checked by the same tests where nothing else runs: `./scripts/test --quiet-machine`.
"""

HANGS_AFTER_S = 30.0  # more than any machine that is only busy needs

_is_quiet = False


def expect_a_quiet_machine():
    """From now on take every bound as it stands."""
    global _is_quiet
    _is_quiet = True


def at_most(seconds):
    """How long something may take that takes no more than so many seconds on a quiet machine."""
    return seconds if _is_quiet else seconds + HANGS_AFTER_S
