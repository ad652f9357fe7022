"""`dpwa keys` makes, allows, revokes and lists the keys of nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import screen
from dpwa.cli.query_options import JsonOption
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.transport.keys import KeyFolder
    from dpwa.types import JsonObject

app = typer.Typer(
    name="keys",
    help="""Make, allow, revoke and list the keys of nodes.

    Examples:
        dpwa keys new w1 w2
        dpwa keys add w3 w3.pub
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the node.")]
Keys = Annotated[
    Path,
    typer.Option(
        "--keys",
        metavar="DIR",
        help="The folder of the keys. `new` and `add` create a missing folder.",
    ),
]
KEYS = Path("keys")


@app.command()
def new(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the nodes.")],
    keys: Keys = KEYS,
) -> None:
    """Make a secret key and a public key for each node. The command overwrites no file.

    The command prints the public keys on standard output, each on a line `NAME KEY`.

    Examples:
        dpwa keys new w1 w2
        dpwa keys new w1 --keys /etc/dpwa/keys
    """
    folder = _folder(keys, *names)
    for name in names:
        folder.require_new(name)
    for name in dict.fromkeys(names):
        pair = folder.create(name)
        typer.echo(f"{name} {pair.public}")
        typer.echo(_what_next(folder, name), err=True)
    typer.echo("Then set `security: curve` in the configuration of the run.", err=True)


@app.command(context_settings={"ignore_unknown_options": True})  # a key may begin with "-"
def add(
    name: Name,
    key: Annotated[
        str,
        typer.Argument(
            metavar="PUBLIC_KEY_OR_FILE",
            help="The public key of the node, or the file NAME.pub with this key.",
        ),
    ],
    keys: Keys = KEYS,
) -> None:
    """Allow a node to connect, by its public key. Running nodes notice the change within seconds.

    Examples:
        dpwa keys add w3 w3.pub
    """
    from dpwa.config.problems import shown
    from dpwa.config.public_keys import key_bytes
    from dpwa.transport.keys import fingerprint, read_public_key

    folder = _folder(keys, name)
    is_key = key_bytes(key) is not None
    if not is_key and not Path(key).exists():
        raise UserError(
            f"expected a file, or a public key of 40 characters (got {shown(key)}) [DPWA-E106]"
        )
    public = key if is_key else read_public_key(Path(key))
    taken = [other for other in folder.names() if folder.public_key(other) == public]
    if taken and taken != [name]:
        raise UserError(
            f"expected a different key for {name} (node {taken[0]} has this key) [DPWA-E107]"
        )
    if taken:
        typer.echo(f"{folder.public_file(name)}: the file already has this key")
        return
    folder.allow_key(name, public)
    typer.echo(f"{name} is allowed (fingerprint {fingerprint(public)})")


@app.command()
def remove(name: Name, keys: Keys = KEYS) -> None:
    """Revoke the key of a node. Running nodes notice the change within seconds.

    Examples:
        dpwa keys remove w3
    """
    folder = _folder(keys, name)
    public = folder.public_file(name)
    if not public.exists():
        raise UserError(f"{name} has no key to revoke, because no file {public} exists [DPWA-E108]")
    folder.remove(name)
    typer.echo(f"{name} is no longer allowed by the nodes that use {folder.path}")
    secret = folder.secret_file(name)
    if secret.exists():
        typer.echo(f"The node's secret key is still in {secret}. You can delete it.", err=True)


@app.command("list")
def list_keys(
    keys: Keys = KEYS,
    as_json: JsonOption = False,
) -> None:
    """List the allowed nodes, and the nodes whose secret keys are in the folder of the keys.

    Examples:
        dpwa keys list --json
    """
    folder = _folder(keys)
    names = sorted({*folder.names(), *folder.owners()})
    rows = [_row(folder, name) for name in names]
    if as_json:
        typer.echo(json.dumps({"keys": str(folder.path), "nodes": rows}))
        return
    if not rows:
        typer.echo(f"dpwa: there are no keys in {folder.path}", err=True)
    console = screen.console()
    headings = ("node", "fingerprint", "allowed", "secret key")
    cells = [
        (row["name"], row["fingerprint"] or "-", *(_yes(row[c]) for c in ("allowed", "secret")))
        for row in rows
    ]
    console.print(screen.table(headings, cells, console.width))


def _folder(path: Path, *names: str) -> KeyFolder:
    from dpwa.config.endpoints import is_label
    from dpwa.transport.keys import KeyFolder

    for name in names:
        if not is_label(name):
            raise UserError(
                "expected a name of 1 to 64 letters, digits, dots, underscores or hyphens "
                f"(got {name!r}) [DPWA-E243]"
            )
    return KeyFolder(path)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _what_next(folder: KeyFolder, name: str) -> str:
    public = folder.public_file(name)
    return (
        f"{folder.secret_file(name)}: the secret key. Keep it on the machine of {name} only.\n"
        f"{public}: the public key. Allow it on the machine of every node that connects to "
        f"{name}:\n    dpwa keys add {name} {public.name}"
    )


def _row(folder: KeyFolder, name: str) -> JsonObject:
    from dpwa.transport.keys import fingerprint

    is_allowed = folder.public_file(name).exists()
    return {
        "name": name,
        "fingerprint": fingerprint(folder.public_key(name)) if is_allowed else None,
        "allowed": is_allowed,
        "secret": folder.secret_file(name).exists(),
    }
