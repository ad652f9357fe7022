"""`dpwa sim` simulates runs of many nodes, and compares their settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dpwa.cli import exit_codes, screen
from dpwa.cli.query_options import JsonOption, gone
from dpwa.cli.sim_calibrate import calibrate
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.cli.sim_report import Comparison
    from dpwa.sim.sweep import Progress, StopRequest

MAX_REPEATS = 1000


class SimGroup(TyperGroup):
    """Parses `dpwa sim SCENARIO`, or a subcommand such as `dpwa sim calibrate`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Pass the arguments after the name of a subcommand to that subcommand."""
        if args and args[0] in self.commands:
            ctx._protected_args, ctx.args = args[:1], args[1:]
            return list(args[1:])
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line. Help lists the subcommands below this line."""
        return [piece for piece in super().collect_usage_pieces(ctx) if piece]

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand, or simulate the scenario if there is no subcommand."""
        if not ctx._protected_args:
            return super().invoke(ctx)
        words: list[str] = [*ctx._protected_args, *ctx.args]
        name, args = words[0], words[1:]
        command: Any = self.commands[name]
        # The usage line of a subcommand leaves out the arguments of `dpwa sim`.
        path = f"{ctx.info_name} {name}"
        with ctx, command.make_context(path, args, parent=ctx.parent) as below:
            return command.invoke(below)


app = typer.Typer(
    name="sim",
    cls=SimGroup,
    invoke_without_command=True,
    subcommand_metavar="",
    rich_markup_mode=None,
    context_settings={"allow_interspersed_args": True},
)
app.command()(calibrate)


@app.callback()
def sim(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="A YAML file with a scenario, or the name of a scenario that dpwa includes.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a key of the scenario. You can repeat this option.",
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="Simulate one run for each value of the key. If you repeat this option, each "
            "combination of values is simulated.",
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MAX_REPEATS,
            help="Simulate each run N times, with seeds that rise by 1.",
        ),
    ] = 1,
    processes: Annotated[
        int | None,
        typer.Option(
            "-j",
            "--processes",
            metavar="N",
            min=1,
            help="Number of runs to simulate at the same time. The default is the number of cores.",
        ),
    ] = None,
    as_json: JsonOption = False,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write the measurements over time, the results of each node, and the events to "
            "files in DIR.",
        ),
    ] = None,
    _seed: Annotated[str | None, gone("--seed", "--set seed=N")] = None,
) -> None:
    """Simulate a run of many nodes in virtual time, or compare runs with different settings.

    The included scenarios are datacenter, two-datacenters, home-broadband, spot-instances and
    one-straggler.

    --set and --sweep set keys of the scenario (nodes, rounds, network.latency_ms,
    compute.stragglers.0.slower, ...) and settings of the nodes (algorithm, topology, interpolation,
    codec, ...). docs/simulator.md lists the keys and the limits of the simulation. Two simulations
    with the same seed have the same result.

    On Ctrl-C or SIGTERM, the command stops the simulation, and prints and writes the results so
    far. With several processes, these are the results of the finished runs. The exit code is then
    130 or 143.

    Examples:
        dpwa sim one-straggler
        dpwa sim one-straggler --sweep algorithm=gossip,lsgd,symmetric --out results
        dpwa sim datacenter --set nodes=1000 --sweep topology=random,ring,exponential --json
        dpwa sim calibrate runs/1 --out ours.yaml
    """
    from dpwa.sim.load import scenario_file

    file = scenario_file(scenario)
    fixed = dict(_pair("--set", text, "VALUE") for text in settings or ())
    varied = _varied(sweep or (), fixed)
    from dpwa.cli.sim_report import Comparison, show
    from dpwa.sim.sweep import plan_runs, run_all, stopped_by_signals

    planned = plan_runs(file, fixed, varied, repeat=repeat)
    if out_dir is not None:
        _make(out_dir)
    with stopped_by_signals() as stop, _progress(len(planned), stop) as progress:
        runs = run_all(planned, processes=processes or os.cpu_count() or 1, progress=progress)
    found = Comparison(scenario, runs, is_sweep=len(planned) > 1)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        show(found)
    if out_dir is not None:
        _write(found, out_dir)
    if stop.number:
        typer.echo(f"stopped after {len(runs)} of {len(planned)} runs", err=True)
        raise typer.Exit(128 + stop.number)
    if any(run.error for run in runs):
        raise typer.Exit(exit_codes.FAILURE)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(f"--out: {folder} cannot be written ({error.strerror or error}) [DPWA-E290]")


def _varied(sweep: Sequence[str], fixed: Mapping[str, object]) -> dict[str, list[str]]:
    varied: dict[str, list[str]] = {}
    for text in sweep:
        key, value = _pair("--sweep", text, "A,B,C")
        if key in varied or key in fixed:
            raise UserError(
                f"--sweep: expected each key only once, and not in --set (got {key}) [DPWA-E289]"
            )
        varied[key] = [item.strip() for item in value.split(",")]
        if not all(varied[key]):
            raise UserError(f"--sweep: expected values between the commas (got {text}) [DPWA-E301]")
    return varied


def _pair(option: str, text: str, value_name: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        from dpwa.config.problems import shown

        raise UserError(f"{option}: expected KEY={value_name} (got {shown(text)}) [DPWA-E178]")
    return key.strip(), value.strip()


@contextmanager
def _progress(count: int, stop: StopRequest) -> Iterator[Progress]:
    console = screen.console(is_result=False)
    if not console.is_terminal:
        yield lambda _: not stop.number
        return
    from rich.progress import Progress as ProgressBars

    with ProgressBars(console=console, transient=True) as bars:
        bar = bars.add_task("simulating" if count == 1 else f"simulating {count} runs", total=1.0)

        def progress(share: float) -> bool:
            bars.update(bar, completed=share)
            return not stop.number

        yield progress


def _write(found: Comparison, folder: Path) -> None:
    from dpwa.sim.sweep import write_results

    try:
        files = write_results(found.runs, found.to_json(), folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    typer.echo(f"{folder}: {', '.join(file.name for file in files)} written", err=True)
