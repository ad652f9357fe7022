"""A cluster whose members die and are replaced all the time, and one that is cut in two.

Usage: churn.py {churn,partition} [--seed SEED] [--seconds S] [--nodes N] [--delay S]

churn: N processes form a cluster from one address; every four seconds one of them, drawn at random,
    is killed and another one is started. A process knows one address: that of a node which was a
    member when the process was started. It connects --delay seconds later, as if its imports took
    so long, and by then nobody may be at that address any more. It must not train alone then: it
    waits for a while and gives up with exit code 3, and another one is started with the address of
    a node that lives. Where processes start slowly, a kill is put off while fewer than half of the
    nodes are members, and who has not connected yet is not killed.
partition: N processes in network namespaces (as root) are cut into two halves for 30 s.

Prints the seed, what was seen, and each promise with its figure; exits with 1 if one is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

PROGRAM = Path(__file__).parent.parent / "support" / "programs" / "digits_member.py"
FORMED_WITHIN_S = 300.0  # which only a mistake takes
EVERY_S = 4.0
AGREE_WITHIN_S = 5.0
SPLIT_S = 30.0
HEAL_WITHIN_S = 10.0
WITHIN = 1.05  # of the mean loss of the others, for who comes
FLAT = 1.10  # of the first minute, for memory and descriptors in the last
DELAY_S = 10.0  # of each process, between its start and its connect
GIVES_UP_AFTER_S = 10.0
GAVE_UP = 3  # the exit code
LONGEST_GAP_S = 3.0  # between two steps, on a machine that starts a process every four seconds
SETTINGS = {"merge": "delta", "timeout_ms": 2000, "log_level": "warning"}


@dataclass
class Node:
    """One process."""

    name: str
    process: subprocess.Popen
    log: Path
    errors: Path
    started: float
    ended: float | None = None
    joined: dict | None = None

    def records(self):
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]


@dataclass
class Swarm:
    """All processes that there were.

    Attributes:
        deaths: when which node was killed.
    """

    folder: Path
    seed: int
    stack: ExitStack
    nodes: dict[str, Node] = field(default_factory=dict)
    deaths: dict[str, float] = field(default_factory=dict)

    def start(self, name, config, command=(), delay_s=0.0):
        number = len(self.nodes)
        log, errors = self.folder / f"{name}.jsonl", self.folder / f"{name}.err"
        arguments = [
            name,
            str(self.seed * 1000 + number),
            str(log),
            json.dumps(config),
            str(delay_s),
        ]
        process = subprocess.Popen(
            [*command, sys.executable, str(PROGRAM), *arguments],
            stderr=self.stack.enter_context(errors.open("a")),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        self.nodes[name] = Node(name, process, log, errors, time.time())

    def kill(self, name):
        node = self.nodes[name]
        node.ended = self.deaths[name] = time.time()
        node.process.kill()
        node.process.wait()

    def reap(self):
        """Take note of who has given up; return how many of them are new."""
        ended = [
            self.nodes[name] for name in self.living if self.nodes[name].process.poll() is not None
        ]
        for node in ended:
            node.ended = time.time()
        return len([node for node in ended if gave_up(node)])

    @property
    def living(self):
        return [name for name, node in self.nodes.items() if node.ended is None]


@dataclass(frozen=True)
class Promise:
    """What is promised, and what was seen."""

    text: str
    figure: str
    holds: bool


def wait_until(check, timeout_s, what):
    end = time.time() + timeout_s
    while time.time() < end:
        if check():
            return
        time.sleep(0.2)
    raise RuntimeError(f"not within {timeout_s:g} s: {what}")


def trains(node):
    return [record for record in node.records() if record.get("event") == "trains"]


def joined(node):
    if node.joined is None:
        node.joined = next((r for r in node.records() if r.get("event") == "joined"), None)
    return node.joined


def sees(node):
    found = trains(node)
    return set(found[-1]["peers"]) | {node.name} if found else set()


def address(port):
    return f"tcp://127.0.0.1:{port}"


# Churn


def churn(seed, seconds, count, folder, stack, delay_s=DELAY_S):
    from dpwa.launch.ports import free_ports

    chance = random.Random(seed)
    swarm = Swarm(folder, seed, stack)
    ranks = [address(port) for port in free_ports(1)]
    swarm.start("n0", {**SETTINGS, "join": [], "listen": ranks[0]}, delay_s=delay_s)
    for number in range(1, count):
        swarm.start(f"n{number}", {**SETTINGS, "join": ranks}, delay_s=delay_s)
    names = set(swarm.nodes)
    wait_until(
        lambda: all(sees(n) == names for n in swarm.nodes.values()), FORMED_WITHIN_S, "all see all"
    )
    print(f"{count} nodes see each other {time.time() - swarm.nodes['n0'].started:.1f} s after")
    time.sleep(5.0)
    began = time.time()
    killed = began
    while time.time() - began < seconds:
        newcomers = swarm.reap()
        if time.time() >= killed + EVERY_S and len(members(swarm)) >= count // 2:
            killed = time.time()
            swarm.kill(chance.choice([n for n in swarm.living if connects(swarm.nodes[n])]))
            newcomers += 1
        at = [joined(swarm.nodes[name])["endpoint"] for name in members(swarm)]
        for _ in range(newcomers):
            config = {**SETTINGS, "join": [chance.choice(at)], "join_timeout_s": GIVES_UP_AFTER_S}
            swarm.start(f"n{len(swarm.nodes)}", config, delay_s=delay_s)
        time.sleep(0.2)
    time.sleep(AGREE_WITHIN_S + 5.0)
    swarm.reap()
    return judge_churn(swarm, began, time.time())


def members(swarm):
    """Names of the living that have been let in."""
    return [name for name in swarm.living if joined(swarm.nodes[name]) is not None]


def gave_up(node):
    return node.process.poll() == GAVE_UP


def judge_churn(swarm, began, ended):
    late = []
    longest_s = 0.0
    changes = [("death", name, at) for name, at in swarm.deaths.items()]
    changes += [
        ("birth", name, joined(node)["t"])
        for name, node in swarm.nodes.items()
        if joined(node) is not None and joined(node)["t"] > began
    ]
    for kind, name, at in changes:
        for other in swarm.nodes.values():
            end = other.ended or ended
            if other.name == name or (kind == "birth" and swarm.nodes[name].ended):
                continue
            if (joined(other) or {"t": end})["t"] > at or end < at + AGREE_WITHIN_S + 1.0:
                continue
            took = took_to_see(other, kind, name, at)
            longest_s = max(longest_s, took)
            if took > AGREE_WITHIN_S:
                late.append((kind, name, other.name, round(took, 1)))
    ratios = newcomers(swarm, began)
    gaps = [r["gap_s"] for n in swarm.nodes.values() for r in trains(n) if r["t"] > began]
    troubles = [n.name for n in swarm.nodes.values() if is_troubled(n)]
    memory, descriptors = flatness(swarm, began, ended)
    born = [n for n in swarm.nodes.values() if n.started > began and waited(n, ended) > 15.0]
    absent = [n.name for n in born if joined(n) is None and not is_giving_up(n)]
    for name in absent:
        node = swarm.nodes[name]
        ago = [round(r["t"] - node.started, 1) for r in node.records()]
        print(name, ago, round(lasted(node, ended), 1), node.errors.read_text()[-2000:])
    let_in = [n for n in swarm.nodes.values() if joined(n) is not None and n.name != "n0"]
    alone = [n.name for n in let_in if not joined(n)["peers"]]
    quitters = [n.name for n in swarm.nodes.values() if gave_up(n)]
    strange = {n.name: n.process.poll() for n in swarm.nodes.values() if n.process.poll() not in
               (None, GAVE_UP, -9)}  # fmt: skip
    apart = blind_pairs(swarm, ended)
    return [
        Promise(f"none of {len(let_in)} nodes that were told of an address began alone",
                f"alone: {alone}", not alone),
        Promise("no parts in the end: all members see each other", f"do not: {apart[:5]}",
                not apart),
        Promise(f"{len(quitters)} found nobody and gave up with exit code 3; others ended so",
                f"{strange}", not strange),
        Promise("training never stops: longest gap between two steps", f"{max(gaps):.2f} s",
                max(gaps) <= LONGEST_GAP_S),
        Promise(f"views agree within {AGREE_WITHIN_S:g} s of each of {len(changes)} changes",
                f"longest {longest_s:.1f} s; late: {late[:5]}", not late),
        Promise(f"all of {len(born)} newcomers that waited for 15 s got in or gave up",
                f"absent: {absent}", not absent),
        Promise(f"newcomers ({len(ratios)}) start within 5 % of the mean loss of the others",
                f"{worst(ratios)} of it", bool(ratios) and max(ratios) <= WITHIN),
        Promise("no uncaught exception", f"in: {troubles}", not troubles),
        Promise("memory, last minute by first", f"{memory:.3f}", memory <= FLAT),
        Promise("file descriptors, last minute by first", f"{descriptors:.3f}",
                descriptors <= FLAT),
    ]  # fmt: skip


def took_to_see(other, kind, name, at):
    """Seconds until a node saw a change for good, up to half a second between two looks."""
    looks = [r for r in trains(other) if r["t"] >= at]
    is_right = [(name in r["peers"]) == (kind == "birth") for r in looks]
    wrong = [r["t"] for r, right in zip(looks, is_right, strict=True) if not right]
    return max(wrong, default=at) - at


def newcomers(swarm, began):
    """The first loss of each newcomer, by the mean of the others at that moment."""
    ratios = []
    for node in swarm.nodes.values():
        first = joined(node)
        if first is None or first["t"] < began:
            continue
        around = []
        for other in swarm.nodes.values():
            if other is node:
                continue
            near = [r for r in trains(other) if abs(r["t"] - first["t"]) < 1.0]
            around += [statistics.mean(r["loss"] for r in near)] if near else []
        if around:
            ratios.append(first["loss"] / statistics.mean(around))
    return ratios


def worst(ratios):
    if not ratios:
        return "nobody came: none"
    return f"worst {max(ratios):.3f}, median {statistics.median(ratios):.3f}"


def is_troubled(node):
    text = node.errors.read_text()
    records = node.records()
    return "Traceback" in text or "unforeseen" in text or bool(records and records[-1]["uncaught"])


def blind_pairs(swarm, ended):
    """Pairs of members of which one does not see the other in the end, though it had the time."""
    there = [swarm.nodes[n] for n in members(swarm)]
    there = [n for n in there if joined(n)["t"] < ended - AGREE_WITHIN_S - 1.0 and trains(n)]
    return [(a.name, b.name) for a in there for b in there if b.name not in sees(a)]


def is_giving_up(node):
    """Tell whether a node has said so; its process may still be ending, or was killed by then."""
    return gave_up(node) or "gives up, nobody has let it in" in node.errors.read_text()


def connects(node):
    """When a node began to connect; `None` if it has not come so far."""
    return next((r["t"] for r in node.records()[:2] if r.get("event") == "connects"), None)


def waited(node, ended):
    """Seconds between connecting and the end of a node; 0 if it has not come so far."""
    since = connects(node)
    return 0.0 if since is None else (node.ended or ended) - since


def lasted(node, ended):
    return (node.ended or ended) - node.started


def flatness(swarm, began, ended):
    """Memory and descriptors of a node in the last minute, by those in the first."""
    minute_s = min(60.0, (ended - began) / 3)
    found = []
    for key in ("rss", "fds"):
        means = []
        for start in (began, ended - minute_s):
            values = [
                r[key]
                for n in swarm.nodes.values()
                for r in trains(n)
                if start <= r["t"] < start + minute_s and r["t"] - n.started > 8.0
            ]
            means.append(statistics.mean(values))
        found.append(means[1] / means[0])
    return found


# Partition


def partition(seed, seconds, count, folder, stack, delay_s=0.0):
    from dpwa.testing import Namespaces

    del seconds, delay_s
    hosts = stack.enter_context(Namespaces(count))
    swarm = Swarm(folder, seed, stack)
    for number, host in enumerate(hosts):
        own = f"tcp://{host.address}:7000"
        ranks = [] if number == 0 else [f"tcp://{hosts[0].address}:7000"]
        config = {**SETTINGS, "join": ranks, "listen": own}
        swarm.start(f"n{number}", config, host.command([]))
    names = set(swarm.nodes)
    wait_until(
        lambda: all(sees(n) == names for n in swarm.nodes.values()), FORMED_WITHIN_S, "all see all"
    )
    time.sleep(10.0)
    before = distance(swarm)
    half = count // 2
    halves = [list(range(half)), list(range(half, count))]
    hosts.partition(halves)
    cut = time.time()
    views = [{f"n{number}" for number in numbers} for numbers in halves]
    wait_until(
        lambda: all(sees(swarm.nodes[name]) == view for view in views for name in view),
        SPLIT_S,
        "each half sees itself",
    )
    split_after_s = time.time() - cut
    time.sleep(max(0.0, cut + SPLIT_S - time.time()))
    apart = [trains(n)[-1] for n in swarm.nodes.values()]
    hosts.heal()
    healed = time.time()
    try:
        wait_until(lambda: all(sees(n) == names for n in swarm.nodes.values()), 60, "one view")
    except RuntimeError:
        print({n.name: sorted(sees(n)) for n in swarm.nodes.values()})
    healed_after_s = time.time() - healed
    time.sleep(10.0)
    after = distance(swarm)
    gaps = [r["gap_s"] for n in swarm.nodes.values() for r in trains(n) if r["t"] > cut]
    troubles = [n.name for n in swarm.nodes.values() if is_troubled(n)]
    return [
        Promise("each half goes on by itself", f"after {split_after_s:.1f} s", True),
        Promise("metrics show the split: components", str([r["components"] for r in apart]),
                all(r["components"] == 2 for r in apart)),
        Promise("training never stops: longest gap between two steps", f"{max(gaps):.2f} s",
                max(gaps) <= LONGEST_GAP_S),
        Promise(f"one view again within {HEAL_WITHIN_S:g} s", f"{healed_after_s:.1f} s",
                healed_after_s <= HEAL_WITHIN_S),
        Promise("consensus distance falls below its value before",
                f"{after:.4f} after, {before:.4f} before", after < before),
        Promise("no uncaught exception", f"in: {troubles}", not troubles),
    ]  # fmt: skip


def distance(swarm):
    """Mean distance between nodes that merged each other in the last five seconds."""
    now = time.time()
    found = [r["distance"] for n in swarm.nodes.values() for r in trains(n) if now - r["t"] < 5.0]
    return statistics.mean(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("churn", "partition"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--delay", type=float, default=DELAY_S, help="from start to connect")
    options = parser.parse_args()
    print(f"{options.what}, seed {options.seed}, {options.nodes} nodes")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = churn if options.what == "churn" else partition
        where = Path(folder)
        promises = run(
            options.seed, options.seconds, options.nodes, where, stack, delay_s=options.delay
        )
    for promise in promises:
        print(f"{'holds ' if promise.holds else 'BROKEN'}  {promise.text}: {promise.figure}")
    sys.exit(not all(promise.holds for promise in promises))


if __name__ == "__main__":
    main()
