"""Run logs of simulated nodes: as real ones write them, of a run whose parameters are known."""

import json

from dpwa.observe.figures import NAMES, figures_of
from dpwa.observe.run_log import RUN_LOG_VERSION, settings_told
from dpwa.sim.load import load_scenario
from dpwa.sim.nodes.engine import NodesRun
from support.run_logs import BEGAN


def write_simulated_logs(folder, scenario):
    spec = load_scenario(scenario)
    engine = NodesRun(spec, lambda _: True)
    lines = {node.name: [_start(node.name, spec)] for node in engine.nodes}

    def sample():
        at = BEGAN + engine.network.clock.now()
        for node in (n for n in engine.nodes if n.connection is not None):
            values = figures_of(node.connection.node.condition())
            known = {n: v for n, v in zip(NAMES, values, strict=True) if v == v}
            lines[node.name].append({"type": "sample", "time": at, **known})

    for second in range(1, int(spec.scenario.seconds)):
        engine.network.call_later(second, sample)
    engine.simulate()
    folder.mkdir(parents=True, exist_ok=True)
    for name, told in lines.items():
        told.append({"type": "end", "time": told[-1]["time"]})
        text = "".join(json.dumps(line) + "\n" for line in told)
        (folder / f"{name}-20260919T120000-1.jsonl").write_text(text)
    return folder


def _start(name, spec):
    return {"type": "start", "run_log": RUN_LOG_VERSION, "time": BEGAN, "name": name, "host": name,
            "pid": 1, "algorithm": spec.config.algorithm, "topology": spec.config.topology,
            "group": spec.config.group_of(name), "membership": spec.scenario.membership,
            "listed": len(spec.config.nodes), "settings": settings_told(spec.config)}  # fmt: skip
