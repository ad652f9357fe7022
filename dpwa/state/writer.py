"""Writer: brings checkpoints to disk on a thread of its own, one at a time."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from dpwa.lifecycle import Closeable
from dpwa.message_codes import get_log
from dpwa.state.checkpoints import CheckpointFolder
from dpwa.state.image import State
from dpwa.types import JsonObject

log = get_log("dpwa.state")

CLOSE_TIMEOUT_S = 10.0  # for a checkpoint that is being written


class CheckpointWriter(Closeable):
    """Writes states that the training thread hands over; what fails is counted, no more.

    Args:
        path: of the folder.
        node: the name of the node.
        keep: how many checkpoints there are at most.
    """

    def __init__(self, path: Path, node: str, keep: int) -> None:
        self.folder = CheckpointFolder(path, node, keep)
        self._path = path
        self._node = node
        self._thread: threading.Thread | None = None
        self._written = 0
        self._skipped = 0
        self._failed = 0
        self._newest = ""

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def is_free(self) -> bool:
        """Tell whether there is time for a checkpoint; if not, count it as skipped."""
        is_busy = self.is_busy
        self._skipped += is_busy
        return not is_busy

    def write(self, state: State) -> None:
        """Begin to write a state that nobody changes any more; returns at once."""
        self._thread = threading.Thread(
            target=self._write, args=(state,), name=f"dpwa-checkpoint-{self._node}", daemon=True
        )
        self._thread.start()

    def report(self) -> JsonObject:
        """Describe it in plain data, for `dpwa status`."""
        return {
            "written": self._written,
            "skipped": self._skipped,
            "failed": self._failed,
            "newest": self._newest,
        }

    def close(self) -> None:
        """Wait for the checkpoint that is being written, but not for ever."""
        if self._thread is None:
            return
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("%s: a checkpoint was not written in %g s", self._node, CLOSE_TIMEOUT_S)

    def _write(self, state: State) -> None:
        try:
            self._newest = self.folder.write(state)
            self._written += 1
        except (OSError, MemoryError) as error:
            self._failed += 1
            level = logging.WARNING if self._failed == 1 else logging.DEBUG
            log.log(
                level,
                "%s: no checkpoint can be written to %s (%s); training goes on without",
                self._node,
                self._path,
                error,
            )
