"""Errands: what may take long and must not hold up the TxThread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dpwa.runtime import Runtime


class Errands:
    """Runs functions on threads of their own, one at a time for each key; for one thread to use.

    Args:
        owner: name of the node, for the names of the threads.
        runtime: of the node.
    """

    def __init__(self, owner: str, runtime: Runtime) -> None:
        self._owner = owner
        self._runtime = runtime
        self._running: dict[str, threading.Thread] = {}

    def start(self, key: str, errand: Callable[[], None]) -> bool:
        """Run a function, unless one with this key still runs; return whether it was started."""
        running = self._running.get(key)
        if running is not None and running.is_alive():
            return False
        thread = self._runtime.thread(errand, f"dpwa-errand-{self._owner}")
        self._running[key] = thread
        thread.start()
        return True

    def finish(self, key: str, timeout_s: float) -> None:
        """Wait for the function with this key to end, at most for so long."""
        running = self._running.get(key)
        if running is not None:
            running.join(timeout_s)
