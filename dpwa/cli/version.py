"""`dpwa version` shows the installed versions."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Annotated

import typer

from dpwa.cli.query_options import JsonOption


def _print_short(is_asked: bool) -> None:
    if is_asked:
        import dpwa

        typer.echo(f"dpwa {dpwa.__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=_print_short,
        is_eager=True,
        help="Print the version of dpwa, and exit.",
    ),
]


def version(as_json: JsonOption = False) -> None:
    """Print the versions of dpwa, of its protocol, of Python and of packages, and the platform.

    Nodes with different versions of the protocol refuse each other. The output lists the installed
    packages that dpwa or an extra of dpwa needs. Add this output to every bug report.

    Examples:
        dpwa version
        dpwa version --json
    """
    import platform

    import zmq

    import dpwa
    from dpwa.node.report import installed
    from dpwa.wire.limits import PROTOCOL_VERSION

    found = {
        "dpwa": dpwa.__version__,
        "protocol": PROTOCOL_VERSION,
        **installed(),
        **_packages(),
        "libzmq": zmq.zmq_version(),
        "platform": platform.platform(),
    }
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, told in found.items():
        typer.echo(f"{name} {told}")


def _packages() -> dict[str, str]:
    """Return the versions of the packages that dpwa requires, without importing them."""
    from importlib import metadata

    found = {}
    with suppress(metadata.PackageNotFoundError):  # dpwa itself is not installed
        named = (re.match(r"[\w.-]+", line) for line in metadata.requires("dpwa") or ())
        for name in sorted({match[0] for match in named if match} - {"dpwa"}, key=str.lower):
            with suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
    return found
