"""A long run of a small cluster in which nothing may grow: memory, threads, sockets, segments.

Usage: soak.py [--seconds S] [--nodes N] [--seed SEED]

Nodes learn the digits with `join`, keep checkpoints, and are asked for their status all the
time; once a minute one of them is killed and started again. What they use is compared between a
window at the beginning, after everything has warmed up, and one at the end.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.swarm import Promise, Swarm, tell

from dpwa.launch.ports import free_ports

WARM_UP_S = 60.0
SETTLES_S = 20.0  # a process, after its start
RESTART_EVERY_S = 60.0
FLAT = {"rss": 1.05, "threads": 1.0, "fds": 1.02}


def soak(options, folder, stack):
    chance = random.Random(options.seed)
    swarm = Swarm(folder, options.seed, stack)
    checkpoint = {"dir": str(folder / "checkpoints"), "every_steps": 200, "keep": 2}
    places = [f"tcp://127.0.0.1:{port}" for port in free_ports(options.nodes)]
    configs = {
        f"n{number}": {
            "join": places if number else [],  # the first one begins
            "listen": place,
            "checkpoint": checkpoint,
        }
        for number, place in enumerate(places)
    }
    for name, config in configs.items():
        swarm.start(name, config)
    swarm.wait_until_all_see_all()
    began, segments = time.time(), []
    restarts = 0
    file = folder / "run.yaml"
    file.write_text(f"join: [{places[0]}, {places[1]}]\n")
    while (passed := time.time() - began) < options.seconds:
        mapped = shared_memory(swarm)
        segments.append((time.time(), len(mapped), sum(mapped.values())))
        ask(file)
        time.sleep(4.0)
        is_last = passed > options.seconds - 2 * SETTLES_S
        if passed > (restarts + 1) * RESTART_EVERY_S and not is_last:
            restarts += 1
            name = chance.choice(sorted(configs)[1:])  # the first one runs all the time
            before = swarm.nodes.pop(name)
            before.process.kill()
            before.process.wait()
            swarm.start(name, configs[name])
    return judge(swarm, began, options.seconds, segments, restarts)


def shared_memory(swarm):
    """Bytes of each file of shared memory that these processes have mapped, removed ones too."""
    found = {}
    for node in swarm.nodes.values():
        with suppress(OSError):  # it has just been killed
            for line in Path(f"/proc/{node.process.pid}/maps").read_text().splitlines():
                addresses, *_, path = line.split(maxsplit=5)
                if path.startswith("/dev/shm/dpwa-"):
                    start, end = (int(address, 16) for address in addresses.split("-"))
                    found[path] = max(found.get(path, 0), end - start)
    return found


def ask(file):
    """Have all nodes asked for their status, as a person who watches would."""
    command = [sys.executable, "-m", "dpwa", "status", "-c", str(file), "--json"]
    subprocess.run(command, capture_output=True, check=False)


def judge(swarm, began, seconds, segments, restarts):
    warm_up_s = min(WARM_UP_S, seconds / 4)
    window_s = min(300.0, (seconds - warm_up_s) / 3)
    first, last = began + warm_up_s, began + seconds - window_s
    oldest = swarm.nodes["n0"]
    promises = [
        Promise(f"all live, after {restarts} restarts",
                str({name: n.trains[-1]["step"] for name, n in swarm.nodes.items()}),
                all(n.process.poll() is None for n in swarm.nodes.values())),
    ]  # fmt: skip
    for key, flat in FLAT.items():
        values = [
            statistics.mean(r[key] for r in oldest.trains if start <= r["t"] < start + window_s)
            for start in (first, last)
        ]
        text = f"{key} of the node that ran all the time, last {window_s:.0f} s by first"
        figure = f"{values[1] / values[0]:.3f} ({values[0]:.4g} to {values[1]:.4g})"
        promises.append(Promise(text, figure, values[1] / values[0] <= flat))
    for position, what in ((1, "segments of shared memory"), (2, "their bytes")):
        values = [
            statistics.median(s[position] for s in segments if start <= s[0] < start + window_s)
            for start in (first, last)
        ]
        figure = f"{values[0]:.0f} to {values[1]:.0f}"
        promises.append(Promise(what, figure, values[1] <= 1.1 * values[0]))
    promises.append(swarm.promise_of_no_trouble())
    late = [n.name for n in swarm.nodes.values() if not n.records("joined")]
    promises.append(Promise("who came back got in", f"not in: {late}", not late))
    return promises


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"soak, seed {options.seed}, {options.nodes} nodes, {options.seconds:g} s")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        promises = soak(options, Path(folder), stack)
    tell(promises)


if __name__ == "__main__":
    main()
