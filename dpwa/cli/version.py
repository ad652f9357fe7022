"""`dpwa version`: what is installed here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated

import typer


def _print_short(is_asked: bool) -> None:
    if is_asked:
        import dpwa

        typer.echo(f"dpwa {dpwa.__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=_print_short, is_eager=True, help="Show the version."),
]


PACKAGES = ("numpy", "pyzmq", "msgpack", "pydantic", "safetensors")
NOT_INSTALLED = "not installed"
# Such as `matplotlib>=3.9; extra == "plot"` and `dpwa[data,plot]; extra == "demo"`.
_REQUIRED = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<extras>[^]]+)\])?.*extra == ['\"](?P<extra>[^'\"]+)"
)


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the versions of dpwa, of its protocol, of Python, PyTorch and others, and the platform.

    Nodes of two versions of the protocol refuse each other. `extras` are those of dpwa of which all
    packages are here. Good to have in every bug report.

    Examples:
        dpwa version
        dpwa version --json
    """
    found = _versions()
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, told in found.items():
        typer.echo(f"{name} {(', '.join(told) or 'none') if isinstance(told, list) else told}")


def _versions() -> dict[str, str | int | list[str]]:
    import platform

    import zmq

    import dpwa
    from dpwa.node.report import installed
    from dpwa.wire.limits import PROTOCOL_VERSION

    return {
        "dpwa": dpwa.__version__,
        "protocol": PROTOCOL_VERSION,
        **installed(),
        **{name: _installed(name) or NOT_INSTALLED for name in PACKAGES},
        "libzmq": zmq.zmq_version(),
        "extras": _extras(),
        "platform": platform.platform(),
    }


def _installed(package: str) -> str | None:
    """Return the version of a package, which is not imported: that may take seconds."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _extras() -> list[str]:
    """Return the extras of which all packages are installed; none where dpwa itself is not."""
    from importlib import metadata

    try:
        about = metadata.metadata("dpwa")
    except metadata.PackageNotFoundError:
        return []
    lines = [_REQUIRED.match(line) for line in about.get_all("Requires-Dist") or []]
    needed = [match for match in lines if match is not None]

    def is_here(extra: str) -> bool:
        return all(_is_met(match, is_here) for match in needed if match["extra"] == extra)

    return [extra for extra in about.get_all("Provides-Extra") or [] if is_here(extra)]


def _is_met(required: re.Match[str], is_here: Callable[[str], bool]) -> bool:
    """Tell whether a package is installed, or other extras of dpwa are."""
    if required["name"] != "dpwa":
        return _installed(required["name"]) is not None
    return all(map(is_here, required["extras"].split(",")))
