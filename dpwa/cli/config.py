"""`dpwa config` writes, checks, shows and describes configurations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from dpwa.cli.query_options import MAX_PORT
from dpwa.cli.screen import write_new
from dpwa.errors import UserError
from dpwa.report.wording import plural

app = typer.Typer(
    name="config",
    help="""Write, check and show configurations.

    Examples:
        dpwa config init -n 4 -o nodes.yaml
        dpwa config check nodes.yaml
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

ConfigFile = Annotated[Path | None, typer.Argument(metavar="FILE", help="A configuration in YAML.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", help="Alternative to the argument FILE."),
]


@app.command()
def init(
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, help="Number of nodes.")] = 4,
    base_port: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_PORT, help="Port of the first node. The other nodes get the next ports."
        ),
    ] = 20470,
    host: Annotated[str, typer.Option(help="Host of all nodes.")] = "localhost",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file to write, or - for standard output.")
    ] = Path("-"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented configuration for nodes w1, w2, ... on one host.

    Examples:
        dpwa config init -n 4 -o nodes.yaml
        dpwa config init -n 2 --host 10.0.0.1 --base-port 7000
    """
    from pydantic import ValidationError

    from dpwa.config.problems import shown
    from dpwa.config.schema import config_text, local_nodes

    last_port = base_port + nodes - 1
    if last_port > MAX_PORT:
        raise UserError(
            f"--base-port: expected ports up to {MAX_PORT} (the last of {nodes} nodes would get "
            f"{last_port}) [DPWA-E021]"
        )
    try:
        text = config_text(local_nodes(range(base_port, last_port + 1), host))
    except ValidationError:
        raise UserError(
            f"--host: expected a host name or IP address, without a port (got {shown(host)})"
            " [DPWA-E022]"
        ) from None
    write_new(output, text, force=force)


@app.command()
def check(file: ConfigFile = None, config_file: ConfigOption = None) -> None:
    """Check a configuration, and print each mistake with its line and column.

    Without a FILE, the command checks the dpwa.yaml of this folder. A dpwa.yaml needs no nodes if
    you use it with `dpwa launch -n`.

    Examples:
        dpwa config check nodes.yaml
        dpwa config check
    """
    from dpwa.config.load import load_config, settings_in
    from dpwa.config.schema import local_nodes
    from dpwa.discovery.connect import FILE

    file = _one_of(file, config_file) or Path(FILE)
    if not file.exists() and str(file) == FILE:
        raise typer.BadParameter(f"expected a FILE, because this folder has no {FILE}")
    if file.name == FILE and settings_in(file).isdisjoint(("nodes", "join")):
        listed = [node.to_mapping() for node in local_nodes(range(20470, 20474), "localhost")]
        load_config(file, overrides={"nodes": listed})
        typer.echo(f"{file}: OK, settings without nodes. `dpwa launch -n 4` adds the nodes")
        return
    config = load_config(file)
    count = len(config.nodes)
    told = [plural(count, "node")] if count else []
    told += ["nodes may join"] if config.is_open else []
    typer.echo(f"{file}: OK, {', '.join(told)}")


@app.command()
def show(
    file: ConfigFile = None,
    config_file: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
    where: Annotated[
        bool,
        typer.Option(
            "--where",
            help="List the places that `dpwa.connect` searches for the node and its peers.",
        ),
    ] = False,
) -> None:
    """Print the settings in effect, including defaults and values from environment variables.

    Examples:
        dpwa config show -c nodes.yaml
        dpwa config show --where
    """
    from dpwa.config import load_config

    file = _one_of(file, config_file)
    if where:
        _show_where(file)
        return
    if file is None:
        raise UserError("expected a FILE, or the option --where [DPWA-E029]")
    config = load_config(file)
    if as_json:
        typer.echo(json.dumps(config.to_mapping()))
    else:
        typer.echo(config.to_yaml(), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of configurations. Editors can check and complete files by a schema.

    Examples:
        dpwa config schema > dpwa.schema.json
    """
    from dpwa.config.schema import config_schema

    typer.echo(json.dumps(config_schema(), indent=2))


def _one_of(file: Path | None, config_file: Path | None) -> Path | None:
    if file and config_file:
        raise typer.BadParameter(
            "expected either the argument FILE or the option -c FILE (got both)"
        )
    return file or config_file


def _show_where(file: Path | None) -> None:
    from dpwa.discovery.connect import find

    discovery = find(file, None, {}, os.environ, Path.cwd())
    for line in discovery.lines():
        typer.echo(line)
    if not discovery.is_complete:
        raise UserError(
            "found neither the name of this node nor its peers in the places above [DPWA-E038]"
        )
