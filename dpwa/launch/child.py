"""The first program of every node process. It prepares the process, and then runs the command.

It is run as a script: `child.py LAUNCHER_PID COMMAND...`. A program of its own can do this safely,
even if the launcher has threads. Code between fork and exec could not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    # A launcher in the background of a script ignores SIGINT, and its children would do so, too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # workers of Ray block signals
    launcher_pid, *command = sys.argv[1:]
    end_with_launcher(int(launcher_pid))
    try:
        os.execvp(command[0], command)  # noqa: S606  (no shell is the point)
    except OSError as error:
        sys.exit(f"dpwa launch: cannot run {command[0]}: {error.strerror}")


def end_with_launcher(launcher_pid: int) -> None:
    """Ask the kernel to kill this process when the launcher dies for any reason (Linux only).

    The request survives exec, but not fork, so that processes of the command do not inherit it.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != launcher_pid:  # the launcher has died already
        sys.exit(1)


if __name__ == "__main__":
    main()
