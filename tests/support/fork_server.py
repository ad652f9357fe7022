"""A process that has imported what all test programs need, and forks them.

The imports take longer than what most of these programs do; torch, which few of them need, is left
to those, as all would pay for it when they end. `multiprocessing` has such a server,
too, but not for programs with standard streams of their own.

A request is a JSON object with `argv`, `env` and `cwd`, along with the descriptors of three
standard streams; an answer is `["begun", pid]`, or `["ended", pid, code]` when one has ended. Each
is one packet.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from pathlib import Path

MAX_PACKET_BYTES = 1 << 17


def serve(channel):
    """Fork a program for each request, until nobody is left to ask for one."""
    gc.disable()  # for the time of the imports
    import dpwa.connection
    import dpwa.tables.tables  # noqa: F401

    gc.collect()
    gc.enable()
    gc.freeze()  # or each of them would look through all of it, and copy it by that
    woken, wake = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if channel in ready:
            request, streams, _, _ = socket.recv_fds(channel, MAX_PACKET_BYTES, 3)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                selector.close()
                channel.close()
                os.close(woken)
                os.close(wake)
                _run(streams, **json.loads(request))
                return  # and end, as any Python process does
            _answer(channel, "begun", pid)
            for descriptor in streams:
                os.close(descriptor)
        if woken in ready:
            os.read(woken, 4096)
            _tell_who_ended(channel)


def _answer(channel, *answer):
    channel.send(json.dumps(answer).encode())


def _tell_who_ended(channel):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _answer(channel, "ended", pid, os.waitstatus_to_exitcode(status))


def _run(streams, argv, env, cwd):
    """Be a process that was started as `python -W error PROGRAM ...`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    warnings.simplefilter("error")
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
