"""Running the command line in this process, as its entry point runs it."""

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from unittest import mock

from dpwa.cli.main import main


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str


def run_dpwa(*arguments, environment=None):
    """Run `dpwa ARGUMENTS...`, with an output as wide as a pipe unless COLUMNS
    is in `environment`.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["dpwa", *map(str, arguments)]),
        mock.patch.dict("os.environ", environment or {}),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        if "COLUMNS" not in (environment or {}):
            os.environ.pop("COLUMNS", None)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    return Result(code, stdout.getvalue(), stderr.getvalue())
