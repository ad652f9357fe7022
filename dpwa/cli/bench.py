"""`dpwa bench` measures the links between the machines of a run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli.query_options import MAX_PORT
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

PORT = 20469  # the port before the first port of `dpwa launch`
LONGEST_S = 86_400.0
MEASURING_S = 15.0
SERVING_S = 600.0


@app.command()
def link(
    host: Annotated[
        str | None,
        typer.Argument(
            metavar="HOST[:PORT]", help="The machine that runs `dpwa bench link --serve`."
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Send data to each machine that runs `dpwa bench link HOST`."),
    ] = False,
    port: Annotated[
        int, typer.Option(min=1, max=MAX_PORT, help="The port on which --serve listens.")
    ] = PORT,
    bind: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="The address on which --serve listens."),
    ] = "*",
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=1.0,
            max=LONGEST_S,
            help=f"Maximum duration in seconds. The default is {MEASURING_S:g} s for a "
            f"measurement, and {SERVING_S:g} s for --serve.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, for `dpwa plan --link`.")
    ] = False,
) -> None:
    """Measure the latency and bandwidth of the link from another machine to this one.

    First start `dpwa bench link --serve` on the other machine. That command sends random bytes to
    any machine that connects, in the same way as a node sends its snapshots. Ctrl-C ends it.

    The latency is the time from a request to the header of the answer. The bandwidth is the payload
    that one stream carries per second. `dpwa status --json` shows the same values for each peer. If
    the two directions of the link may differ, measure both.

    Examples:
        dpwa bench link --serve
        dpwa bench link 10.0.0.2
        dpwa bench link 10.0.0.2 --json > link.json
    """
    if serve == (host is not None):
        raise UserError(
            "expected either a HOST that runs `dpwa bench link --serve`, or --serve [DPWA-E275]"
        )
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
        typer.echo(f"serving on port {port} for {seconds:g} s. On another machine, run:")
        typer.echo(f"dpwa bench link {target}")
        if found is None and is_wildcard(bind):
            typer.echo(
                "Replace HOST by the address at which other machines reach this machine. dpwa has "
                "found only a loopback address",
                err=True,
            )
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
        f"measured from {found.address}, in streams of {found.stream_bytes / 1e6:.3g} MB. "
        "To compute the cost of a round over this link, run:\n"
        f"dpwa plan --latency-ms {found.latency_ms:.3g} "
        f"--bandwidth-mbps {found.bandwidth_mbps:.4g} --parameters N --step-ms MS"
    )
