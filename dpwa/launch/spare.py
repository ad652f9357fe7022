"""A process that waits, with torch imported, until it is needed as a node.

Run as a script: `spare.py SCRIPT ARGUMENTS...` or `spare.py -m MODULE ARGUMENTS...`. A line of JSON
on standard input says which node it becomes: `environment` (variables to be set) and `cores` (none:
any). The end of the input, without a line, ends it.
"""

import gc
import json
import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path


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
    line = sys.stdin.readline()
    if not line:
        return
    node = json.loads(line)
    os.environ.update(node["environment"])
    if node["cores"]:
        for thread in Path("/proc/self/task").iterdir():  # numpy has started some
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), node["cores"])
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    sys.argv = arguments if is_module else [program, *arguments]
    if is_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(Path(program).absolute()), run_name="__main__")


if __name__ == "__main__":
    main()
