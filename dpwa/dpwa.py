"""Where `DpwaConnection` was in 2017; it is `dpwa.DpwaConnection` now."""

from __future__ import annotations

import warnings

from dpwa.connection import DpwaConnection

__all__ = ["DpwaConnection"]

warnings.warn(
    "dpwa.dpwa is the name of 2017: write `from dpwa import DpwaConnection` [DPWA-W006]",
    DeprecationWarning,
    stacklevel=2,
)
