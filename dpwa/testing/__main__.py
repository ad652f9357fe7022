"""Run a Python program with the faults from the environment variable DPWA_FAULTS.

Usage: python -m dpwa.testing PROGRAM [ARGUMENTS...]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from dpwa.errors import UserError
from dpwa.testing.faults import install_from_environment


def main() -> None:
    """Install the plan of faults, and run the program in this process."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m dpwa.testing PROGRAM [ARGUMENTS...]")
    del sys.argv[0]
    program = sys.argv[0]
    sys.path[0] = str(Path(program).resolve().parent)
    try:
        install_from_environment()
    except UserError as error:
        sys.exit(f"DPWA_FAULTS: {error}")
    runpy.run_path(program, run_name="__main__")


main()
