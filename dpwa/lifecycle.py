"""The life cycle of objects with threads, sockets or files, which are closed only once."""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from dpwa.errors import ForkedError

R = TypeVar("R")
Self = TypeVar("Self", bound="Closeable")
ENDING = "DPWA_ENDING"  # variable with the file in which a process tells `dpwa launch` its end


class Closeable:
    """A context manager that closes itself at the end of the block."""

    def close(self) -> None:
        """Close the object. A second call has no effect."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hide_own_frames(error)
        self.close()


def is_locked(path: Path) -> bool:
    """Return whether a living process has locked a file. OSError if that is unknown."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def hide_own_frames(error: BaseException | None) -> None:
    """Remove the frames of dpwa from the end of the traceback of Ctrl-C."""
    if not isinstance(error, KeyboardInterrupt):
        return
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "dpwa":
            trace.tb_next, error.__suppress_context__ = None, True
        trace = trace.tb_next


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended. The block must be short."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


def require_own_process(owner: int, name: str) -> None:
    """Raise a `ForkedError` in a forked child, because threads do not survive a fork.

    `owner` is the id of the process that has created the node `name`.
    """
    if os.getpid() != owner:
        raise ForkedError(
            f"node {name!r} belongs to process {owner}. Process {os.getpid()} is a fork of "
            f"process {owner}. Use the node in its own process, or create a node with a different "
            "name in the fork [DPWA-E092]"
        )


def weakly(method: Callable[..., R]) -> Callable[..., R | None]:
    """Return a function that calls a method through a weak reference to the method's object."""
    bound: Any = method
    owner, function = weakref.ref(bound.__self__), bound.__func__

    def call(*arguments: Any) -> R | None:
        found = owner()
        return None if found is None else function(found, *arguments)

    return call


def finalize(owner: object, function: Callable[..., Any], *args: Any) -> weakref.finalize[..., Any]:
    """Call a function when its owner is collected, or at exit, but never in a forked child.

    The function may wait for a thread of dpwa. If that thread is the caller, a new thread calls the
    function.
    """
    return weakref.finalize(owner, _in_process, os.getpid(), function, *args)


_of_thread = threading.local()


def _in_process(process: int, function: Callable[..., Any], *args: Any) -> None:
    if os.getpid() != process:
        return
    if not threading.current_thread().name.startswith("dpwa-"):
        function(*args)
        return
    before: threading.Thread | None = getattr(_of_thread, "last", None)

    def run() -> None:
        if before is not None:  # because the functions of one owner depend on each other
            before.join()
        function(*args)

    _of_thread.last = threading.Thread(target=run, name="dpwa-close")
    _of_thread.last.start()


def tell_launcher(ending: int | str) -> None:
    """Tell `dpwa launch` to count this process as failed, even if the process exits with 0.

    `ending` is the problem in words. While the node trains, it is the number of the update, because
    a process that exits during training leaves its peers without notice. "" means no problem.
    """
    path = os.environ.get(ENDING)
    if path:
        with suppress(OSError):  # one call in each update, which takes two microseconds
            os.pwrite(_ending_file(path), f"{ending}\0".encode(), 0)


def told_ending(path: Path) -> int | str | None:
    """Return the last `ending` that a process passed to `tell_launcher`, from the file at `path`.

    A number is the update of a node that trains. A text is the problem of a node that has finished,
    or "" for none. `None`: there is no message, because the process does not train.
    """
    with suppress(OSError):
        told = path.read_bytes().partition(b"\0")[0].decode(errors="replace")
        return int(told) if told.isdecimal() else told
    return None


@functools.cache
def _ending_file(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
