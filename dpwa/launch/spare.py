"""A process that waits, with torch imported, until it is needed as a node.

Run as a script: `spare.py SCRIPT ARGUMENTS...` or `spare.py -m MODULE ARGUMENTS...`. A line of JSON
on standard input says which node it becomes: `environment` (variables to be set) and `cores` (none:
any). The end of the input, without a line, ends it.
"""

import json
import os
import runpy
import sys
from contextlib import suppress


def main() -> None:
    program, *arguments = sys.argv[1:]
    is_module = program == "-m"
    # As Python does with such a command:
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(program))  # noqa: PTH109, PTH120
    with suppress(ImportError):  # the script says what is missing, if it needs it
        import dpwa

        _ = dpwa.connect, dpwa.DpwaPyTorchAdapter  # which loads torch, and all that they use
    line = sys.stdin.readline()
    if not line:
        return
    node = json.loads(line)
    os.environ.update(node["environment"])
    if node["cores"]:
        os.sched_setaffinity(0, node["cores"])
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    sys.argv = arguments if is_module else [program, *arguments]
    if is_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
