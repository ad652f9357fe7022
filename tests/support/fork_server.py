"""A process that has imported what programs need, and forks them, as imports take longest.

Usage: fork_server.py LISTENER MODULE...     (LISTENER: descriptor of a socket; MODULE: to import,
                                              with a dot at the end: a package with all in it)

A request is a JSON object with `argv`, `env` and `cwd`, along with the descriptors of three
standard streams; an answer is `["begun", pid]`, or `["ended", pid, code]` when one has ended. Each
is one packet. It serves until whoever has connected first is gone.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import sys
import warnings
from pathlib import Path

MAX_PACKET_BYTES = 1 << 17


def serve(listener, modules):
    gc.disable()  # for the time of the imports
    for module in modules:
        package = importlib.import_module(module.removesuffix("."))
        if module.endswith("."):
            for inside in pkgutil.walk_packages(package.__path__, module):
                importlib.import_module(inside.name)
    gc.collect()
    gc.enable()
    gc.freeze()  # or each of them would look through all of it, and copy it by that
    woken, wake = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    channels, asked_by = [], {}
    while True:
        for ready in [key.fileobj for key, _ in selector.select()]:
            if ready is listener:
                channel, _ = listener.accept()
                peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                if struct.unpack("3i", peer)[1] != os.getuid():
                    channel.close()
                    continue
                channels.append(channel)
                selector.register(channel, selectors.EVENT_READ)
            elif ready == woken:
                os.read(woken, 4096)
                _tell_who_ended(asked_by)
            else:
                request, streams, _, _ = socket.recv_fds(ready, MAX_PACKET_BYTES, 3)
                if not request:
                    selector.unregister(ready)
                    ready.close()
                    if ready is channels[0]:
                        return
                    continue
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    selector.close()
                    for each in (listener, *channels):
                        each.close()
                    os.close(woken)
                    os.close(wake)
                    _run(streams, **json.loads(request))
                    return  # and end, as any Python process does
                asked_by[pid] = ready
                _answer(ready, "begun", pid)
                for descriptor in streams:
                    os.close(descriptor)


def _answer(channel, *answer):
    with contextlib.suppress(OSError):  # whoever has asked is gone
        channel.send(json.dumps(answer).encode())


def _tell_who_ended(asked_by):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _answer(asked_by.pop(pid), "ended", pid, os.waitstatus_to_exitcode(status))


def _run(streams, argv, env, cwd):
    """Be a process that was started as `python -W error PROGRAM ...`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    # The server's may be files, in which one can seek.
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = io.FileIO(number, "w", closefd=False)
        setattr(sys, name, io.TextIOWrapper(raw, errors=errors, write_through=True))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    warnings.simplefilter("error")
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    runpy.run_path(argv[0], run_name="__main__")


def connected(address):
    """Return a channel to a server, of which `address` is the name of an abstract socket."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(f"\0{address}")
    return channel


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
