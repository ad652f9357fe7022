"""What the cases have in common: networks that are drawn, and runs whose nodes fail."""

import math
import random

from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from dpwa.sim.nodes.engine import NodesRun

REPORT_S = 0.02  # that `update_wait` may take after its timeout, for its thread to report
FORMED_WITHIN_S = 40.0  # all nodes see each other
LOOK_EVERY_S = 0.5
AGREE_WITHIN_STEPS = 40  # of a usual node; others may be half as fast
FAULTS_S = 20.0  # of programs: when the last fault begins
LONGEST_FAULT_S = 6.0
APART = 1e-3  # of the first variance; nobody trains, so all that is left is what was not averaged


def drawn_network(rng):
    """Draw links: within a rack, a city or a continent, good ones or bad ones."""
    latency_ms = math.exp(rng.uniform(math.log(0.2), math.log(60.0)))
    return {
        "latency_ms": latency_ms,
        "jitter_ms": rng.choice([0.0, rng.uniform(0.0, 2.0) * latency_ms]),
        "loss": rng.choice([0.0, 0.0, rng.uniform(0.0, 0.05)]),
    }


def drawn_compute(rng):
    """Draw how long steps take."""
    return {
        "step_ms": rng.uniform(500.0, 1500.0),
        "spread": rng.choice([0.0, 0.3]),
        "jitter": rng.choice([0.0, 0.3]),
    }


def address(index):
    """Return where a node is."""
    return f"tcp://10.0.0.{index}:7000"


class WatchedRun(NodesRun):
    """A run whose nodes are watched.

    Attributes:
        broken: promises that were broken, in words.
    """

    def __init__(self, nodes, settings, **scenario):
        super().__init__(run_spec(nodes, settings, seconds=1e6, **scenario), lambda sample: True)
        self.broken = []

    def until(self, end_s):
        """Let time pass until a moment."""
        self.network.run_until(end_s)

    def has_come_to(self, condition, within_s):
        """Let time pass until something is so; return after how many seconds, or `None`."""
        began = self.network.clock.now()
        while not condition():
            if self.network.clock.now() >= began + within_s:
                return None
            self.until(self.network.clock.now() + LOOK_EVERY_S)
        return self.network.clock.now() - began

    def must_come_to(self, condition, within_s, what):
        """Let time pass until something is so, which is promised; return whether it came to it."""
        is_so = self.has_come_to(condition, within_s) is not None
        if not is_so:
            self.breaks(f"not within {within_s:g} s: {what}")
        return is_so

    def must_agree(self):
        """Let time pass; then all have come to the same parameters, and still see each other."""
        within_s = AGREE_WITHIN_STEPS * self.spec.scenario.compute.step_ms / 1000.0
        self.must_come_to(lambda: self._variance_ratio() <= APART, within_s, "all agree")
        if not self.all_see(self.names):
            seen = {node.name: self.sees(node) for node in self.members}
            self.breaks(f"they do not see each other any more: {seen}")

    def _variance_ratio(self):
        """Return the variance between nodes, by that of their first values."""
        return float(self.parameters.var(axis=0).sum() / self._starts.var(axis=0).sum())

    def breaks(self, text):
        """Note that a promise was broken."""
        self.broken.append(f"{self.network.clock.now():.1f} s: {text}")

    def update(self, node, runtime, training, x):
        began, trained_s = runtime.now(), node.trained_s
        super().update(node, runtime, training, x)
        took_s = runtime.now() - began
        longest_s = max(self.spec.config.timeout_ms / 1000.0, node.trained_s - trained_s)
        if took_s > longest_s + REPORT_S + 1e-6:
            self.breaks(f"an update of {node.name} took {took_s:.3f} s, not {longest_s:.3f} s")

    @property
    def members(self):
        """Nodes that train, or are about to."""
        return [node for node in self.nodes if node.lives_now and node.has_joined]

    def sees(self, node):
        """Return the names that a node knows, its own included."""
        return {node.name, *node.connection.peers}

    def all_see(self, names):
        """Tell whether all nodes of these names live, and see just each other."""
        nodes = [node for node in self.nodes if node.name in names]
        return all(n.lives_now and n.has_joined and self.sees(n) == set(names) for n in nodes)

    @property
    def names(self):
        """All of them."""
        return [node.name for node in self.nodes]


class FaultyCallers:
    """Nodes that call each other again and again, while some are killed or cut off.

    Attributes:
        kind: of callers; all chance is of this and of the seed.
        settings: of the nodes.
        fewest: nodes, of up to 6.
        longest_pause_s: between two calls.
        most_faults: of them all.
        fewest_living: so many are left.
        over_within_s: after all faults, all who live have ended.
    """

    def __init__(self, seed):
        self._rng = rng = random.Random(f"{self.kind} {seed}")
        self.nodes = rng.randint(self.fewest, 6)
        self._pause_s = rng.uniform(0.05, self.longest_pause_s)
        self._values = rng.choice([1, 100_000])
        network = drawn_network(rng)
        spec = run_spec(self.nodes, self.settings, seed=seed, seconds=1e6, network=network)
        self.run = ProgramRun(spec, self._work)
        self.network, self.tcp, self.events = self.run.network, self.run.tcp, self.run.events
        self._faults = [self._kill, self._kill, self._cut]
        self._broken = []

    def play(self):
        """Let all of it happen; return what promises were broken."""
        run, until_s = self.run, FAULTS_S + LONGEST_FAULT_S
        run.plan_events()
        for _ in range(self._rng.randint(1, self.most_faults)):
            fault = self._rng.choice(self._faults)
            run.network.call_later(self._rng.uniform(0.0, FAULTS_S), fault)
        run.network.run_until(until_s)
        run.until_over(until_s + self.over_within_s)
        for name in [node.name for node in run.nodes if node.lives_now]:
            if name not in run.results:
                self._broken.append(f"{name}: {run.errors.get(name, 'hangs')}")
        run.end_run()
        return self._broken

    def _kill(self):
        living = [node for node in self.run.nodes if node.lives_now]
        if len(living) > self.fewest_living:
            died = self._rng.choice(living)
            self.run.kill(died)
            if self._rng.random() < 0.7:
                back_s = self._rng.uniform(0.0, LONGEST_FAULT_S)
                self.network.call_later(back_s, lambda: self.run.start(died))

    def _cut(self):
        cut = self._rng.choice(self.run.nodes)
        self.network.partition({cut.name})
        self.network.call_later(self._rng.uniform(0.2, LONGEST_FAULT_S), self.network.heal)
