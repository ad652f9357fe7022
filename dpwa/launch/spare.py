"""A process that waits, with torch imported, until it is needed as a node.

Run as a script: `spare.py SCRIPT ARGUMENTS...` or `spare.py -m MODULE ARGUMENTS...`, with a socket
as standard input. A line of JSON there has the variables of the node that it becomes. Three
descriptors with it are standard input, output and error of the next such process: this one forks it
first, so that nothing is imported again. The end of the input, without a line, ends it.
"""

import gc
import json
import multiprocessing
import os
import runpy
import socket
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_BYTES = 1024 * 1024  # that are read at once
KEY_BYTES = 32  # of multiprocessing, which has as many
ADOPTED_S = 2.0  # by the launcher, or else it does not want the process any more


def main() -> None:
    program, *arguments = sys.argv[1:]
    is_module = program == "-m"
    if not getattr(sys.flags, "safe_path", False):  # as Python does with such a command
        sys.path[0] = str(Path.cwd() if is_module else Path(program).resolve().parent)
    gc.disable()  # what is imported stays, and a fifth of the time would go into looking through it
    with suppress(Exception):  # the script says what is wrong, if it needs it
        import torch

        torch.optim.SGD([torch.zeros(1)])  # the first optimizer loads much
    with suppress(Exception):
        import dpwa

        _ = dpwa.connect, dpwa.DpwaPyTorchAdapter  # which load what they use
    gc.freeze()  # the node does not look through it either
    gc.enable()
    variables = told()
    if variables is None:
        return
    os.environ.update(variables)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    sys.argv = arguments if is_module else [program, *arguments]
    if is_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(Path(program).absolute()), run_name="__main__")


def told() -> Any:
    """Wait until this process gets its node. `None` if it is not needed."""
    launcher = os.getppid()
    while True:
        with socket.socket(fileno=os.dup(sys.stdin.fileno())) as control:
            line, descriptors, *_ = socket.recv_fds(control, MAX_BYTES, 3)
            while line and not line.endswith(b"\n"):
                line += control.recv(MAX_BYTES) or b"\n"
        if not line.strip():
            return None
        is_next = bool(descriptors) and fork(launcher)
        for target, descriptor in enumerate(descriptors):
            if is_next:
                os.dup2(descriptor, target)
            os.close(descriptor)
        if not is_next:
            return json.loads(line)
        with socket.socket(fileno=os.dup(sys.stdin.fileno())) as control:
            control.sendall(f"{os.getpid()}\n".encode())


def fork(launcher: int) -> bool:
    """Fork a process that waits next, as a child of the launcher. Return whether this is that one.

    Its parent ends at once, so that it is adopted.
    """
    try:
        from dpwa.launch.child import end_with_launcher
    except ImportError:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads can be forked
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return False
        if os.fork():
            os._exit(0)
    end = time.monotonic() + ADOPTED_S
    while os.getppid() != launcher:
        if time.monotonic() > end:
            os._exit(0)
        time.sleep(0.001)
    end_with_launcher(launcher)
    os.setsid()
    renew()
    return True


def renew() -> None:
    """Renew the random values of a new process, which would be equal in all forked ones.

    `random` and `tempfile` do that by themselves, and no device of torch except the CPU has a
    generator yet. The seed of `hash` stays, because Python sets it only when it starts.
    """
    multiprocessing.current_process().authkey = os.urandom(KEY_BYTES)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


if __name__ == "__main__":
    main()
