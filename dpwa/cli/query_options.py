"""Options and helpers of the commands that ask running nodes for their status."""

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
MAX_PORT = 65_535  # the same as in dpwa.config, which is slow to import for a help page
OR_AT = ", or the address of one of its nodes with --at ADDRESS"
MAX_COMMAND_CHARS = 60  # a longer command of a run is shortened, so that the run fits in one line
MAX_RUNS_TOLD = 9  # other runs on this machine that are listed
MIN_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 86_400.0


RunOption = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        envvar="DPWA_CONFIG",
        help="The configuration of the run. Without this option, the command uses the run that "
        "`dpwa launch` started in this folder, or the run of the dpwa.yaml in this folder. "
        "Otherwise, the command uses the newest run on this machine.",
    ),
]
TimeoutOption = Annotated[
    int,
    typer.Option(
        metavar="MS",
        min=1,
        max=MAX_TIMEOUT_MS,
        help="Maximum time to wait for the answers of the nodes, in milliseconds.",
    ),
]
AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Use the secret key of node NAME, if the run uses keys. The default is the first node "
        "that has a secret key in the folder `keys`.",
    ),
]
IntervalOption = Annotated[
    float,
    typer.Option(
        metavar="S",
        min=MIN_INTERVAL_S,
        max=LONGEST_INTERVAL_S,
        help="Seconds between two updates of the output.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output.")
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder with the run logs.")]
RunNumber = Annotated[
    int | None,
    typer.Option(
        "--run",
        metavar="N",
        help="The number of the run to read, if the folder has several runs. The default is the "
        "newest run.",
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="ADDRESS",
        help="The address of any running node, such as 10.0.0.1:7000. This node reports on all "
        "other nodes. If the run uses keys, also give the name (w1@10.0.0.1:7000) and -c.",
    ),
]


def gone(option: str, instead: str) -> Any:
    """Return a hidden option for the removed `option`. Its use raises an error with `instead`."""

    def refuse(value: str | None) -> None:
        if value is not None:
            raise UserError(f"{option} was removed. Use {instead} instead [DPWA-E284]")

    return typer.Option(option, hidden=True, callback=refuse)


def run_of(config: Path | None) -> Path:
    """Return `config`, or the configuration of a run on this machine if `config` is `None`."""
    return config or run_here().config


def run_here(otherwise: str = "") -> LaunchedRun:
    """Choose a run on this machine if the user named no run, and print the choice and other runs.

    The first choice is the run that was launched in this folder. The second choice is the run of
    the dpwa.yaml in this folder, and the third choice is the newest run. The error ends with
    `otherwise`, which names an alternative to -c.
    """
    from dpwa.config.load import settings_in
    from dpwa.discovery.connect import FILE
    from dpwa.launch.configs import LaunchedRun, runs_here

    runs, own = runs_here(), Path(FILE)
    is_launched = bool(runs) and runs[0].is_here
    if not is_launched and own.is_file() and settings_in(own) & {"nodes", "join"}:
        typer.echo(f"dpwa: using the run of {FILE} in this folder", err=True)
        return LaunchedRun(own.resolve(), own.stat().st_mtime, Path.cwd(), "")
    if not runs:
        raise UserError(
            "this machine has no run of `dpwa launch`. Give the configuration of a run with "
            f"-c FILE{otherwise} [DPWA-E248]"
        )
    first, *others = runs
    typer.echo(f"dpwa: using the run {_described(first)}", err=True)
    if others:
        told = [f"{_described(other)} (-c {other.config})" for other in others[:MAX_RUNS_TOLD]]
        more = len(others) - len(told)
        told += [f"{more} more"] if more else []
        typer.echo(f"dpwa: this machine has other runs: {'; '.join(told)}", err=True)
    return first


def _described(run: LaunchedRun) -> str:
    from dpwa.wire.messages import printable

    where = "this folder" if run.is_here else printable(str(run.folder))
    began = screen.age(time.time() - run.began)
    command = textwrap.shorten(printable(run.command), MAX_COMMAND_CHARS, placeholder=" ...")
    return f"`{command}` in {where}, started {began} ago"


def watch(config: Path | None, at: str | None, as_name: str | None = None) -> Watch:
    """Watch the run that the options name, or a run on this machine. The caller closes `Watch`."""
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
