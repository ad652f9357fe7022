"""Commands on a terminal of a given size, as a person sees them."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

# Makes its standard input the terminal of a new session, as a terminal window does.
IN_A_TERMINAL = [
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios\n"
    "os.setsid()\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FROM_OUTSIDE = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")


def on_terminal(command, *, until=None, key=b"\x03", columns=80, rows=24, environment=()):
    """Run a command on a terminal; a key (Ctrl-C) is pressed when `until` has been seen.

    Return all that was shown, and the exit code.
    """
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in FROM_OUTSIDE}
    variables = {**inherited, "TERM": "xterm-256color", **dict(environment)}
    with subprocess.Popen(
        [*IN_A_TERMINAL, *command], stdin=terminal, stdout=terminal, stderr=terminal, env=variables
    ) as process:
        os.close(terminal)
        shown, is_stopped = b"", until is None
        while piece := _read(master):
            shown += piece
            if not is_stopped and until.encode() in shown:
                is_stopped = True
                os.write(master, key)
    os.close(master)
    return shown.decode(), process.returncode


def plain_lines(shown):
    """Return the lines of what was shown, without colours and movements."""
    return ESCAPE.sub("", shown).replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _read(master):
    try:
        return os.read(master, 65536)
    except OSError:  # the last one has closed the terminal
        return b""
