"""`dpwa dashboard` serves a web page of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from dpwa.cli.query_options import MAX_PORT, AsOption, AtOption, RunOption, watch
from dpwa.cli.screen import open_browser
from dpwa.errors import from_extra


def dashboard(
    config: RunOption = None,
    at: AtOption = None,
    as_name: AsOption = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="The address to listen on. If other machines can reach this address, the page "
            "requires a token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_PORT,
            help="The port to listen on. The default is 8400, or the next free port. 0 means any "
            "free port.",
        ),
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve a web page that shows the nodes of a run, their speeds, losses and consensus distances.

    The page shows all running nodes. The command needs the address of only one node, because each
    node reports on the others. The page cannot change the run. Ctrl-C ends the command, and the
    nodes continue to train.

    Examples:
        dpwa dashboard --open
        dpwa dashboard -c nodes.yaml
        dpwa dashboard --at 10.0.0.1:7000 --port 8080
    """
    with from_extra("dashboard", "dpwa dashboard needs starlette and uvicorn [DPWA-E250]"):
        from dpwa.config.endpoints import tcp_endpoint
        from dpwa.observe.dashboard import server
        from dpwa.observe.dashboard.server import Feed

    with watch(config, at, as_name) as watched, server.listen(host, port) as listening:
        token = server.new_token(host)
        address = f"{tcp_endpoint(host, listening.getsockname()[1])}/".replace("tcp:", "http:")
        address += f"?token={token}" if token else ""
        typer.echo(f"Dashboard: {address}  (Ctrl-C ends)")
        if opens:
            open_browser(address)
        try:
            server.Server(server.app_of(Feed(watched.view), host, token)).run([listening])
        except KeyboardInterrupt:
            return
