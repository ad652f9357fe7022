"""`dpwa bench` measures the links of a run between machines."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli.asking import MAX_PORT
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.plan.link import LinkMeasurement


app = typer.Typer(
    name="bench",
    help="""Measure the link between two machines.

    Examples:
        dpwa bench link --serve
        dpwa bench link 10.0.0.2
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

PORT = 20469  # beside the first one of `dpwa launch`
LONGEST_S = 86_400.0
MEASURING_S = 15.0
SERVING_S = 600.0


@app.command()
def link(
    host: Annotated[
        str | None,
        typer.Argument(metavar="HOST[:PORT]", help="The machine that runs --serve."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Answer machines that measure the link to this machine.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=1, max=MAX_PORT, help="With --serve: port to listen on.")
    ] = PORT,
    bind: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="With --serve: address to listen on. Default: all."),
    ] = "*",
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=1.0,
            max=LONGEST_S,
            help=f"Maximum time. Default: {MEASURING_S:g} to measure, {SERVING_S:g} to serve.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, for `dpwa plan --link`.")
    ] = False,
) -> None:
    """Measure the latency and bandwidth of the link from another machine to this one.

    First start `dpwa bench link --serve` on the other machine. It serves random bytes in the same
    way as a node serves its snapshots, to anyone who can connect, and ends with Ctrl-C. The command
    measures the same values that `dpwa status --json` shows for a peer: the time from a request to
    the header of the answer, and the payload of one stream per time. If both directions differ,
    measure both.

    Examples:
        dpwa bench link --serve
        dpwa bench link 10.0.0.2
        dpwa bench link 10.0.0.2 --json > link.json
    """
    if serve == (host is not None):
        raise UserError("expected the HOST to measure the way from, or --serve [DPWA-E275]")
    if serve:
        _serve(port, bind, seconds or SERVING_S)
        return
    from dpwa.plan.link import measure_link

    found = measure_link(_endpoint_of(host or ""), seconds or MEASURING_S)
    if as_json:
        typer.echo(json.dumps(_object(found)))
    else:
        _show(found)


def _serve(port: int, bind: str, seconds: float) -> None:
    from dpwa.config.endpoints import is_wildcard, tcp_endpoint
    from dpwa.discovery.interfaces import reachable_host
    from dpwa.plan.link import serving, wait_seconds

    with serving(port, bind):
        found = reachable_host(os.environ)
        host = bind if not is_wildcard(bind) else "HOST" if found is None else found.host
        target = host if port == PORT else tcp_endpoint(host, port).removeprefix("tcp://")
        typer.echo(f"serving on port {port}, for {seconds:g} s; on another machine:")
        typer.echo(f"dpwa bench link {target}")
        if found is None and is_wildcard(bind):
            typer.echo("HOST: this machine, which has no address but loopback by now", err=True)
        wait_seconds(seconds)


def _endpoint_of(text: str) -> str:
    from dpwa.config.endpoints import split_tcp, tcp_endpoint

    for endpoint in (f"tcp://{text}", tcp_endpoint(text, PORT), f"tcp://{text}:{PORT}"):
        if split_tcp(endpoint) is not None:
            return endpoint
    raise UserError(
        f"expected a HOST, or HOST:PORT, such as 10.0.0.2 or [2001:db8::2]:{PORT} (got {text:.60})"
        " [DPWA-E276]"
    )


def _object(found: LinkMeasurement) -> dict[str, object]:
    medians = {"latency_ms": found.latency_ms, "bandwidth_mbps": found.bandwidth_mbps}
    return {**asdict(found), **medians}


def _show(found: LinkMeasurement) -> None:
    for name, unit, median, samples in (
        ("latency", "ms", found.latency_ms, found.latencies_ms),
        ("bandwidth", "Mbit/s", found.bandwidth_mbps, found.bandwidths_mbps),
    ):
        lowest, highest = min(samples), max(samples)
        typer.echo(
            f"{name} {median:.4g} {unit}, median of {len(samples)} ({lowest:.4g} to {highest:.4g})"
        )
    typer.echo(
        f"from {found.address}, in streams of {found.stream_bytes / 1e6:.3g} MB; to plan with it:\n"
        f"dpwa plan --latency-ms {found.latency_ms:.3g} "
        f"--bandwidth-mbps {found.bandwidth_mbps:.4g} --parameters N --step-ms MS"
    )
