"""A simulation is calibrated by a real run of four processes, and predicts it, and another one."""

import json
from statistics import median

import pytest
from support.calibrated_runs import TASK, real_run
from support.commands import run_dpwa

CLOSE = 0.15  # relative
STEPS_S = (0.03, 0.03, 0.03, 0.09)  # they wait, as for a GPU: four processes share few cores
LINKS = {"max_upload_mbps": 300}  # streams of 2 MB take longer than most steps
SECONDS = 15.0
OTHER = {"fetch_probability": 0.7, "max_upload_mbps": 200}  # of a run that it is not fitted to
LOSS = 350.0
FIGURES = ("steps_per_s", "bytes_per_node", "seconds", "waiting_share", "seconds_to_target")


def simulated(file, **settings):
    """Return the figures of simulations with other seeds: the median of three of each."""
    task = {"task": "quadratic", **{f"quadratic.{key}": value for key, value in TASK.items()}}
    words = [f"--set={key}={value}" for key, value in (task | settings).items()]
    result = run_dpwa("sim", file, *words, "--seed", 11, "--repeat", 3, "--json", "-j", 1)
    assert result.exit_code == 0, result.stderr
    runs = json.loads(result.stdout)["runs"]
    known = [name for name in FIGURES if all(run[name] is not None for run in runs)]
    return {name: median(run[name] for run in runs) for name in known}


def predicted(file, **settings):
    """Return steps/s, MB/s of a node, waiting share and seconds to the target."""
    found = simulated(file, **settings)
    reached = simulated(file, **settings, **{"target.loss": LOSS, "seconds": 3 * SECONDS})
    return (
        found["steps_per_s"],
        found["bytes_per_node"] / found["seconds"] / 1e6,
        found["waiting_share"],
        reached["seconds_to_target"],
    )


def measured(run):
    """Return the same of a real run, by what its processes have told."""
    of_a_node = run.bytes_per_s / len(run.told) / 1e6
    return run.steps_per_s, of_a_node, run.waiting_share, run.seconds_to(LOSS)


def require_close(real, simulation, told):
    """Compare, and print both."""
    names = ("steps/s", "MB/s of a node", "waiting share", "seconds to target")
    errors = {}
    for name, true, found in zip(names, real, simulation, strict=True):
        errors[name] = found / true - 1.0
        print(f"{told}: {name}: real {true:.4g}, simulated {found:.4g} ({errors[name]:+.1%})")
    assert all(abs(error) < CLOSE for error in errors.values()), errors


@pytest.mark.slow
def test_a_calibrated_simulation_predicts_the_run_and_one_with_another_setting(tmp_path):
    runs = {}
    for name, settings in (("same", {}), ("other", OTHER)):
        folder = tmp_path / name
        folder.mkdir()
        runs[name] = real_run(folder, STEPS_S, SECONDS, model_bytes=2e6, **(LINKS | settings))
    file = tmp_path / "ours.yaml"
    result = run_dpwa("sim", "calibrate", runs["same"].folder, "--out", file)
    assert result.exit_code == 0, result.stderr
    print(result.stdout)
    assert measured(runs["same"])[2] > 0.2  # or waits would be no test
    require_close(measured(runs["same"]), predicted(file), "the run")
    require_close(measured(runs["other"]), predicted(file, **OTHER), "another setting")
