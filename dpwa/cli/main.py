"""The command `dpwa` with its subcommands. The command prints errors and sets exit codes."""

from __future__ import annotations

import errno
import os
import sys
from pkgutil import resolve_name
from typing import Any

import typer

from dpwa.cli import exit_codes
from dpwa.cli.launch import discard
from dpwa.cli.version import VersionOption
from dpwa.errors import ConfigError, DpwaError, PeerError, UserError
from dpwa.features import FEATURES

app = typer.Typer(
    name="dpwa",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # they print local variables, which may be secrets
    context_settings={"help_option_names": ["-h", "--help"]},
)
for feature in FEATURES:
    if feature.commands:
        found = resolve_name(feature.commands)
        if isinstance(found, typer.Typer):
            app.add_typer(found)
        else:
            app.command()(found)
GONE = {"compare": "dpwa report RUN_DIR RUN_DIR"}  # removed commands and their replacements


@app.callback()
def describe(is_version_asked: VersionOption = False) -> None:
    """Train PyTorch models by gossip. Peers average their parameters, without a coordinator.

    Start with `dpwa demo`. For several machines, write one configuration (`dpwa config init`),
    start `python train.py` on each machine with the name of its node, and watch the nodes with
    `dpwa top -c FILE`. If the nodes cannot reach each other, use `dpwa doctor -c FILE`.

    Commands print results on standard output, as text or, with --json, as JSON. They print
    progress and warnings on standard error.

    The exit code is 0 for success, 1 for a failure, 2 for a mistake in the command line or
    configuration, 3 for unreachable nodes, and 130 after Ctrl-C.

    Examples:
        dpwa demo
        dpwa launch -n 4 -- python train.py
        dpwa top
    """


def _explained(command: Any) -> Any:
    """Format the help text of a command, with each example on its own line. Return the command."""
    text = command.help or ""
    command.short_help = " ".join(text.partition("\n\n")[0].split()).removesuffix(".")
    command.help = text.replace("Examples:\n", "\b\nExamples:\n")
    for below in getattr(command, "commands", {}).values():
        _explained(below)
    return command


COMMAND = _explained(typer.main.get_command(app))
# In the order of FEATURES, because typer puts commands that have subcommands last.
COMMAND.commands = {each.name: COMMAND.commands[each.name] for each in FEATURES if each.commands}


def main() -> None:
    """Run the command line and exit. This is the entry point of the console script `dpwa`."""
    if sys.stdout is None:  # closed by the shell: `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  (open until the end)
    try:
        _run_command()
    except BrokenPipeError:  # the program that reads the output has ended
        discard(sys.stdout)
        sys.exit(exit_codes.FAILURE)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        typer.echo("dpwa: cannot write the output, because no space is left", err=True)
        discard(sys.stdout)
        sys.exit(exit_codes.FAILURE)


def _run_command() -> None:
    command = "".join(sys.argv[1:2])
    try:
        if command in GONE:
            raise UserError(f"{command} was removed. Use `{GONE[command]}` instead [DPWA-E284]")
        COMMAND(prog_name="dpwa")
    except DpwaError as error:
        typer.echo(_message(error), err=True)
        sys.exit(exit_codes.UNREACHABLE if isinstance(error, PeerError) else exit_codes.USAGE)
    finally:
        sys.stdout.flush()  # raises BrokenPipeError here, where main() handles it


def _message(error: DpwaError) -> str:
    if isinstance(error, ConfigError):
        return str(error)  # its lines begin with file and line, as editors expect
    return "\n".join(f"dpwa: {line}" for line in str(error).splitlines())
