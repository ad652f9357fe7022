"""`dpwa sim calibrate`: a scenario out of the run logs of a real run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import screen
from dpwa.cli.asking import JsonOption, RunDir, RunNumber
from dpwa.cli.screen import require_new, write_new
from dpwa.report.wording import duration, plural, share, size

if TYPE_CHECKING:
    from dpwa.sim.calibration.calibrate import Calibration
    from dpwa.sim.calibration.observed import ObservedRun

MOST_NODES_SHOWN = 16
SLOWER = 1.5  # times the usual step: a straggler

Row = tuple[str, str, str]


def calibrate(
    folder: RunDir,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE", help="Write the scenario there; else it is printed."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    number: RunNumber = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a scenario to a real run, by what its nodes have written down with `run_log`.

    It finds what a step takes each node, how much steps differ, what publishing and merging cost,
    how large the model is, and how the links are: the run is simulated several times, until
    simulated nodes measure what the real ones did. The settings of the run are taken over. The last
    lines of the table say how close the simulation comes.

    Copy the folders of all machines into one. A run of a minute is long enough.

    Examples:
        dpwa sim calibrate runs/1 --out ours.yaml
        dpwa sim ours.yaml --sweep fetch_probability=1,0.5,0.2
    """
    from dpwa.observe.run_reading import read_run
    from dpwa.sim.calibration.calibrate import calibrate as fitted_to
    from dpwa.sim.calibration.calibrate import yaml_text

    if output is not None:
        require_new(output, force=force)
    run = read_run(folder, number)
    for remark in run.remarks:
        typer.echo(f"dpwa: {remark}", err=True)
    with _progress() as progress:
        found = fitted_to(run, progress)
    text = yaml_text(found, str(folder))
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        console = screen.console()
        rows = list(_rows(found))
        console.print(screen.table(("", "", ""), rows, console.width, right=[1], text=[2]))
        for remark in found.remarks():
            console.print(screen.plain(f"- {remark}"))
    if output is not None:
        write_new(output, text, force=force)
    elif not as_json:
        typer.echo(f"\n{text}", nl=False)


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    console = screen.console(is_result=False)
    if not console.is_terminal:
        yield lambda count: None  # noqa: ARG005
        return
    with console.status("simulating the run") as status:
        yield lambda count: status.update(f"simulating the run, for the {count + 1}. time")


def _rows(found: Calibration) -> Iterator[Row]:
    run, fit = found.run, found.fit
    yield "run", duration(run.seconds), f"of {len(run.nodes)} nodes, on {plural(run.hosts, 'host')}"
    yield from _compute_rows(found)
    if fit.model_mb is not None:
        yield "model", size(1e6 * fit.model_mb), "of a snapshot"
        for name, per_mb_ms in (
            ("publish", fit.publish_ms_per_mb),
            ("merge", fit.merge_ms_per_mb),
        ):
            whole_ms = per_mb_ms * fit.model_mb
            yield name, f"{whole_ms:.3g} ms", f"{per_mb_ms:.3g} ms for each MB"
    if fit.links is not None:
        fetches = screen.number(run.total("fetches"))
        answers = _between(run, "answer_s")
        streams = _between(run, "stream_s")
        told = f"nodes answered after {answers} in the mean, of {fetches} fetches"
        told = told if answers else "all answers waited for other nodes, so none was timed"
        yield "latency", f"{fit.links.latency_ms:.3g} ms", told
        told = f"between two nodes alone; streams took {streams}"
        yield "bandwidth", f"{screen.number(fit.links.mbps)} Mbit/s", told
    yield "starts", f"{run.start_spread_s:.2g} s", "from the first node's first step to the last's"
    yield from _setting_rows(found)
    yield from _check_rows(found)


def _compute_rows(found: Calibration) -> Iterator[Row]:
    run, fit = found.run, found.fit
    logs = [math.log(step_ms) for step_ms in fit.steps_ms]
    usual_ms = sorted(fit.steps_ms)[(len(logs) - 1) // 2]
    middle = sum(logs) / len(logs)
    spread = math.sqrt(sum((log - middle) ** 2 for log in logs) / len(logs))
    yield "step", f"{usual_ms:.3g} ms", "of a node in the middle, the median of its steps"
    shown = list(zip(run.nodes, fit.steps_ms, strict=True))
    for node, step_ms in shown if len(shown) <= MOST_NODES_SHOWN else []:
        steps = node.grown["steps"]
        known = f"give or take {100.0 * fit.jitter / math.sqrt(steps):.1g} %, of {steps:.0f} steps"
        slower = step_ms / usual_ms
        slow = f"; a straggler, {slower:.2g} times as slow" if slower > SLOWER else ""
        yield f"  {node.name}", f"{step_ms:.3g} ms", known + slow
    yield "  spread", f"{spread:.2g}", "between nodes: sigma of the logarithm"
    yield "  jitter", f"{fit.jitter:.2g}", "between steps of a node: the same"


def _setting_rows(found: Calibration) -> Iterator[Row]:
    from dpwa.config.problems import shown
    from dpwa.sim.calibration.fit import changed_settings

    for key, value in changed_settings(found.run).items():
        yield key, shown(str(value)), "a setting of the run"


def _check_rows(found: Calibration) -> Iterator[Row]:
    run, simulated = found.run, found.simulated
    if simulated is None:
        return
    told = "simulated; in the run it was "
    steps = screen.number(run.steps_per_s)
    yield "steps per second", screen.number(simulated.steps_per_s), told + steps
    sent = f"{size(run.sent_bytes_per_s)}/s of payload"
    yield "sent by a node", f"{size(simulated.sent_bytes_per_s)}/s", told + sent
    yield "waiting", share(simulated.waiting_share), told + share(run.waiting_share)


def _between(run: ObservedRun, figure: str) -> str:
    from dpwa.sim.calibration.fit import between_nodes

    found = between_nodes(run, figure)
    return "{:.3g} to {:.3g} ms".format(*(1000.0 * seconds for seconds in found)) if found else ""
