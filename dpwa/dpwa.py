"""The module that contained `DpwaConnection` in 2017. Now, `dpwa` contains it."""

from __future__ import annotations

import warnings

from dpwa.connection import DpwaConnection

__all__ = ["DpwaConnection"]

warnings.warn(
    "dpwa.dpwa is an old name, from 2017. Write `from dpwa import DpwaConnection` [DPWA-W006]",
    DeprecationWarning,
    stacklevel=2,
)
