"""Options of the commands that ask nodes how they are."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpwa.cli import screen
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.config.endpoints import Seed
    from dpwa.launch.configs import LaunchedRun
    from dpwa.observe.watch import Watch

MAX_TIMEOUT_MS = 3_600_000
MAX_PORT = 65_535  # as dpwa.config has it, which no help page has time to import
OR_AT = ", or --at ADDRESS of a node"
MAX_COMMAND_CHARS = 60  # characters of it, so that a run is told in one line
MAX_RUNS_TOLD = 9  # beside the one that is looked at
MIN_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 86_400.0


RunOption = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        envvar="DPWA_CONFIG",
        help="The configuration of the run. Default: the run of `dpwa launch` in this folder, "
        "else the folder's dpwa.yaml, else the newest run on this machine.",
    ),
]
TimeoutOption = Annotated[
    int,
    typer.Option(
        metavar="MS",
        min=1,
        max=MAX_TIMEOUT_MS,
        help="Maximum time to wait for answers, in milliseconds.",
    ),
]
AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="With `security: curve`, the name of the secret key to use. Default: the first "
        "key here.",
    ),
]
IntervalOption = Annotated[
    float,
    typer.Option(
        metavar="S",
        min=MIN_INTERVAL_S,
        max=LONGEST_INTERVAL_S,
        help="Seconds between two updates.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output.")
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of `run_log`.")]
RunNumber = Annotated[
    int | None,
    typer.Option(
        "--run",
        metavar="N",
        help="Number of the run, if the folder has several. Default: the newest.",
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="ADDRESS",
        help="Any living node, such as 10.0.0.1:7000, which reports on the others. With keys, "
        "also give its name (w1@10.0.0.1:7000) and the configuration.",
    ),
]


def gone(option: str, instead: str) -> Any:
    """Return an option that is there no more: it says what to use in its place."""

    def refuse(value: str | None) -> None:
        if value is not None:
            raise UserError(f"{option} is gone: use {instead} [DPWA-E284]")

    return typer.Option(option, hidden=True, callback=refuse)


def run_of(config: Path | None) -> Path:
    """Return the configuration that was named, or that of `run_here`."""
    return config or run_here().config


def run_here(otherwise: str = "") -> LaunchedRun:
    """Return a run of this machine, and say which it is, and which others there are.

    It is one that was launched in this folder, else that of its dpwa.yaml, else the newest.
    `otherwise` tells the error how else than by -c a run can be named.
    """
    from dpwa.config.load import settings_in
    from dpwa.discovery.connect import FILE
    from dpwa.launch.configs import LaunchedRun, runs_here

    runs, own = runs_here(), Path(FILE)
    is_launched = bool(runs) and runs[0].is_here
    if not is_launched and own.is_file() and settings_in(own) & {"nodes", "join"}:
        typer.echo(f"dpwa: this is the run of {FILE} in this folder", err=True)
        return LaunchedRun(own.resolve(), own.stat().st_mtime, Path.cwd(), "")
    if not runs:
        raise UserError(
            "no run of `dpwa launch` is under way on this machine: name the run to look at by "
            f"-c FILE{otherwise} [DPWA-E248]"
        )
    first, *others = runs
    typer.echo(f"dpwa: this is {_described(first)}", err=True)
    if others:
        told = [f"{_described(other)}: -c {other.config}" for other in others[:MAX_RUNS_TOLD]]
        more = len(others) - len(told)
        told += [f"{more} more"] if more else []
        typer.echo(f"dpwa: not {'; nor '.join(told)}", err=True)
    return first


def _described(run: LaunchedRun) -> str:
    from dpwa.wire.messages import printable

    where = "this folder" if run.is_here else printable(str(run.folder))
    began = screen.age(time.time() - run.began)
    command = textwrap.shorten(printable(run.command), MAX_COMMAND_CHARS, placeholder=" ...")
    return f"`{command}` in {where}, started {began} ago"


def watch(config: Path | None, at: str | None, as_name: str | None = None) -> Watch:
    """Follow the run that the options of a command name, else `run_here`; to be closed."""
    from dpwa.config import load_config
    from dpwa.node.query import asking_keyring, places_to_ask
    from dpwa.observe.watch import Watch

    if at is None and config is None:
        config = run_here(OR_AT).config
    loaded = None if config is None else load_config(config)
    seeds = [_seed(at)] if at is not None else places_to_ask(loaded) if loaded else []
    return Watch(seeds, None if loaded is None else asking_keyring(loaded, as_name))


def _seed(address: str) -> Seed:
    from dpwa.config.endpoints import is_join_address, seed_of

    name, _, place = address.rpartition("@")
    if "://" not in place:
        place = f"tcp://{place}"
    whole = f"{name}@{place}" if name else place
    if not is_join_address(whole):
        raise UserError(f"--at: expected host:port, or NAME@host:port (got {address}) [DPWA-E249]")
    return seed_of(whole)
