"""A fit as a scenario: plain settings that `load_scenario` reads, and the same as a YAML file."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from dpwa.config import Config, load_config
from dpwa.config.methods import KINDS, methods_in_use
from dpwa.config.schema import OF_REAL_RUNS
from dpwa.sim.calibration.fit import Fit
from dpwa.sim.calibration.observed import ObservedRun
from dpwa.sim.run_spec import node_name

LEAST_SPREAD_S = 0.5  # of starts: less is no matter
DIGITS = 4  # of what is fitted
FILE = "file"  # the topology, whose edges have names of nodes, and the key of its options
# Of the machine, or of the simulation.
_NOT_OF_SCENARIOS = {
    *(*OF_REAL_RUNS, "nodes", "seed", "transport", "log_level", "options", "links", FILE),
}

Settings = dict[str, Any]


def scenario_of(run: ObservedRun, fit: Fit) -> Settings:
    """Return a scenario, as plain values.

    Raises:
        ConfigError: the run had settings that this dpwa does not know, such as of a plugin.
    """
    found: Settings = {"nodes": len(run.nodes), "seconds": rounded(run.seconds), "detail": "nodes"}
    if run.is_open:
        found["membership"] = "open"
    if fit.model_mb is not None:
        found["model_mb"] = rounded(fit.model_mb)
    found["compute"] = {
        "steps_ms": [rounded(step_ms) for step_ms in fit.steps_ms],
        "jitter": rounded(fit.jitter, 2),
    }
    found["costs"] = {
        "publish_ms_per_mb": rounded(fit.publish_ms_per_mb, 3),
        "merge_ms_per_mb": rounded(fit.merge_ms_per_mb, 3),
    }
    network = _network(run, fit)
    if network:
        found["network"] = network
    if run.start_spread_s >= LEAST_SPREAD_S:
        found["churn"] = {"start_spread_s": rounded(run.start_spread_s, 2)}
    return found | changed_settings(run)


def _network(run: ObservedRun, fit: Fit) -> Settings:
    found: Settings = {}
    if fit.links is not None:
        mbps, latency_ms = rounded(fit.links.mbps), rounded(fit.links.latency_ms, 3)
        found = {"latency_ms": latency_ms, "upload_mbps": mbps, "download_mbps": mbps}
    groups = [(name, len(list(nodes))) for name, nodes in groupby(n.group for n in run.nodes)]
    if len(groups) > 1 and all(name for name, _ in groups):
        found["sites"] = [{"name": name, "share": float(count)} for name, count in groups]
        if fit.links is not None:
            found["between_sites_latency_ms"] = rounded(fit.links.latency_ms, 3)
    return found


def changed_settings(run: ObservedRun) -> Settings:
    """Return the settings of a run that differ from the defaults, with options of methods.

    Raises:
        ConfigError: see `scenario_of`.
    """
    told = {
        key: value
        for key, value in run.settings.items()
        if key not in _NOT_OF_SCENARIOS and (key, value) != ("topology", FILE)
    }
    nodes = [
        {"name": node_name(index), "host": "10.0.0.1", "port": 7000 + index}
        for index in range(len(run.nodes))
    ]
    config = load_config({"nodes": nodes, **told})
    found = {
        name: told[name]
        for name, field in Config.model_fields.items()
        if name in told and getattr(config, name) != field.get_default(call_default_factory=True)
    }
    return found | {name: options.model_dump(mode="json") for name, options in _changed(config)}


def untold_options(run: ObservedRun) -> list[str]:
    """Return the methods of a run, once they are registered, whose options its logs do not tell."""
    used = methods_in_use({kind.setting: run.settings.get(kind.setting) for kind in KINDS})
    return [name for name in used if name not in run.settings and name != FILE]


def _changed(config: Config) -> list[tuple[str, Any]]:
    return [(name, config.options_of(name)) for name in dict(config.options)]


def rounded(value: float, digits: int = DIGITS) -> float:
    """Return a number with so many digits that count."""
    return float(f"{value:.{digits}g}")
