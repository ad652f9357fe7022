"""`dpwa sim calibrate` makes a scenario from the run logs of a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpwa.cli import screen
from dpwa.cli.query_options import RunDir, RunNumber
from dpwa.cli.screen import require_new, write_new


def calibrate(
    folder: RunDir,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="File for the scenario. Without this option, the command prints the scenario.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    number: RunNumber = None,
) -> None:
    """Make a scenario that simulates a real run, from the run logs of its nodes (`run_log`).

    The command finds the step time of each node and its variation, the cost of publishing and
    merging, the size of the model, and the speed of the links. It simulates the run several times,
    until the simulated nodes measure the same times as the real nodes. The scenario has the
    settings of the run. Comments at the top of the file give the error of the simulation.

    If the nodes ran on several machines, first copy their run logs into one folder. A run of one
    minute is long enough.

    Examples:
        dpwa sim calibrate runs/1 --out ours.yaml
        dpwa sim ours.yaml --sweep fetch_probability=1,0.5,0.2
    """
    from dpwa.observe.run_log_reader import read_run
    from dpwa.sim.calibration import calibrate as fitted_to
    from dpwa.sim.calibration import yaml_text

    if output is not None:
        require_new(output, force=force)
    run = read_run(folder, number)
    for remark in run.remarks:
        typer.echo(f"dpwa: {remark}", err=True)
    with screen.console(is_result=False).status("simulating the run"):
        found = fitted_to(run)
    text = yaml_text(found, str(folder))
    if output is None:
        typer.echo(text, nl=False)
        return
    for remark in found.remarks():
        typer.echo(remark)
    write_new(output, text, force=force)
