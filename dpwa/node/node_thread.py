"""NodeThread: how one of the two threads of a node ends."""

from __future__ import annotations

from typing import Any

from dpwa.runtime import Runtime, Waker
from dpwa.transport.mailbox import Mailbox


class NodeThread:
    """One thread of a node, which others wake when there is something to do.

    It owns `mailbox`, and closes it when it has ended.
    """

    def __init__(self, runtime: Runtime, name: str, mailbox: Mailbox[Any] | Waker) -> None:
        self.name = name
        self._runtime = runtime
        self._mailbox = mailbox
        self._thread = runtime.thread(self._run, name)

    @property
    def is_current(self) -> bool:
        return self._thread is self._runtime.current_thread()

    @property
    def was_started(self) -> bool:
        return self._thread.ident is not None

    def discard(self) -> None:
        self._mailbox.close()

    def end(self) -> None:
        raise NotImplementedError

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end; return whether it did within the time."""
        self.end()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._mailbox.close()
        return True

    def _run(self) -> None:
        """Do its work, until it is asked to end."""
        raise NotImplementedError
