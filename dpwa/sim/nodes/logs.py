"""Logging of simulated nodes: their warnings are no faults of this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_errors() -> Iterator[None]:
    """Keep back all warnings of dpwa.

    Also those of a real node in the same process, which few have beside a simulation: loggers know
    nothing of whose message it is, and a level costs the simulation nothing.
    """
    logger = logging.getLogger("dpwa")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
