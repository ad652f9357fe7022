"""Memory of simulated runs: freed without Python's search for cycles.

That search goes through all that there is. With ten thousand nodes it takes most of the time of a
run, and finds next to nothing, as what the engines make has no cycles that pile up: see the test.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Let memory be freed by counts of references alone."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
