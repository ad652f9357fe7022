"""Script of a spare process: import torch, then wait until the launcher assigns a node.

It is run as a script: `spare.py SCRIPT ARGUMENTS...` or `spare.py -m MODULE ARGUMENTS...`, with a
socket as standard input. A line of JSON from the socket has the variables of the node that the
process becomes. Three descriptors with this line are standard input, output and error of the next
spare process. The process forks that process first, so that nothing is imported again. If the
socket is closed without a line, the process ends.
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

MAX_BYTES = 1024 * 1024  # of one read
KEY_BYTES = 32  # length of the key of multiprocessing
ADOPTED_S = 2.0  # a process that the launcher has not adopted in this time is not needed


def main() -> None:
    program, *arguments = sys.argv[1:]
    is_module = program == "-m"
    if not getattr(sys.flags, "safe_path", False):  # the same path as `python SCRIPT` has
        sys.path[0] = str(Path.cwd() if is_module else Path(program).resolve().parent)
    gc.disable()  # imported objects stay, and collections would take a fifth of the time
    with suppress(Exception):  # if the script needs these modules, it raises the error
        import torch

        torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports many modules
    with suppress(Exception):
        import dpwa

        _ = dpwa.connect, dpwa.DpwaPyTorchAdapter  # these names import their modules
    gc.freeze()  # collections in the node skip these objects, too
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
    """Wait until the launcher assigns a node. Return the node's variables, or `None` if unused."""
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
    """Fork the next spare process as a child of the launcher. Return true in the new process.

    The parent of the new process ends at once, so that the launcher adopts the new process.
    """
    try:
        from dpwa.launch.child import end_with_launcher
    except ImportError:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads allow a fork
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
    """Set new random seeds in a forked process. Otherwise, all forked processes have the same ones.

    `random` and `tempfile` do this by themselves, and torch has only the generator of the CPU so
    far. The seed of `hash` stays, because Python sets it only at its start.
    """
    multiprocessing.current_process().authkey = os.urandom(KEY_BYTES)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


if __name__ == "__main__":
    main()
