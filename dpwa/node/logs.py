"""Where messages of dpwa go in a program that has set up no logging."""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname)s dpwa: %(message)s"


class _UntilSetUp(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error, but not beside a handler that the program has added by then."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger("dpwa").handlers == [self] and not logging.getLogger().handlers:
            self.setStream(sys.stderr)  # which may have been replaced since
            super().emit(record)


_handler = _UntilSetUp()
_handler.setFormatter(logging.Formatter(FORMAT))


def configure_logging(level: str | None) -> None:
    """Let messages be seen; set the level of the `dpwa` logger if there is one."""
    logger = logging.getLogger("dpwa")
    logger.addHandler(_handler)  # once, however many nodes there are
    if level is not None:
        logger.setLevel(level.upper())
