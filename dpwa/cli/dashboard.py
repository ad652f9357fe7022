"""`dpwa dashboard`: a web page of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from dpwa.cli.asking import MAX_PORT, AsOption, AtOption, RunOption, watch
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
            help="Where to serve it; beyond this machine, it asks for a token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_PORT,
            help="Where to serve it; by default 8400, or the next that is free; 0: any.",
        ),
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Serve a web page of a run: who is there, who is slow, and whether the models agree.

    It reads from all nodes that live; one is enough to find the others. It changes nothing. Ctrl-C
    ends it, and the training does not notice.

    Examples:
        dpwa dashboard --open
        dpwa dashboard -c nodes.yaml
        dpwa dashboard --at 10.0.0.1:7000 --port 8080
    """
    with from_extra("dashboard", "dpwa dashboard needs starlette and uvicorn [DPWA-E250]"):
        from dpwa.observe.dashboard import server
        from dpwa.observe.dashboard.server import Feed

    with watch(config, at, as_name) as watched, server.listen(host, port) as listening:
        token = server.new_token(host)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/"
        address += f"?token={token}" if token else ""
        typer.echo(f"Dashboard: {address}  (Ctrl-C ends)")
        if opens:
            open_browser(address)
        try:
            server.Server(server.app_of(Feed(watched.view), host, token)).run([listening])
        except KeyboardInterrupt:
            return
