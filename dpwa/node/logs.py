"""Logging of a node: the `dpwa` logger at the configured level."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s dpwa: %(message)s"


def configure_logging(level: str) -> None:
    """Set the level of the `dpwa` logger.

    A program that has set up logging of its own keeps it; else messages go to standard error.
    """
    logger = logging.getLogger("dpwa")
    logger.setLevel(level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(handler)
