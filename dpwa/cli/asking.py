"""Options of the commands that ask nodes how they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli.completion import node_names
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.config.endpoints import Seed
    from dpwa.observe.watch import Watch

MAX_TIMEOUT_MS = 3_600_000
LEAST_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 86_400.0

RunOption = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        envvar="DPWA_CONFIG",
        help="The configuration of the run; by default the newest of `dpwa launch` here.",
    ),
]
TimeoutOption = Annotated[
    int,
    typer.Option(
        metavar="MS",
        min=1,
        max=MAX_TIMEOUT_MS,
        help="How long to wait for the answers, in milliseconds.",
    ),
]
AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        autocompletion=node_names,
        help="With `security: curve`, whose secret key to ask with; the first one here.",
    ),
]
IntervalOption = Annotated[
    float,
    typer.Option(
        metavar="S",
        min=LEAST_INTERVAL_S,
        max=LONGEST_INTERVAL_S,
        help="How many seconds from one view to the next.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output.")
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="ADDRESS",
        help="One node that lives, such as 10.0.0.1:7000; it tells of the others. With keys, also "
        "its name: w1@10.0.0.1:7000, and the configuration for the keys.",
    ),
]


def run_of(config: Path | None, otherwise: str = "") -> Path:
    """Return the configuration that was named, or that of the newest run of this machine.

    Args:
        config: as it was given.
        otherwise: how else a run can be named, for the error.

    Raises:
        UserError: there is none.
    """
    from dpwa.launch.configs import runs_here

    found = config or next(iter(runs_here()), None)
    if found is None:
        raise UserError(
            "no run of `dpwa launch` is under way on this machine: name the run to look at by "
            f"-c FILE{otherwise}"
        )
    return found


def watch(config: Path | None, at: str | None, as_name: str | None = None) -> Watch:
    """Follow the run that the options of a command name; to be closed.

    Without any, it is the newest of `dpwa launch` on this machine.

    Raises:
        UserError: they name none, or no address.
    """
    from dpwa.config import load_config
    from dpwa.node.query import asking_keyring, places_to_ask
    from dpwa.observe.watch import Watch

    if at is None:
        config = run_of(config, ", or --at ADDRESS of a node")
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
        raise UserError(f"--at: expected host:port, or NAME@host:port (got {address})")
    return seed_of(whole)
