"""A cluster is cut in two parts, which go on, and are one again after the cut is over."""

import random

from cases.situation import FORMED_WITHIN_S, WatchedRun, address, drawn_compute, drawn_network

SPLIT_WITHIN_S = 16.0  # each part sees itself alone
HEAL_WITHIN_S = 10.0
QUIET_S = 10.0


class Partition(WatchedRun):
    """A cluster that is cut in two for a while.

    Args:
        seed: of all chance.
    """

    def __init__(self, seed):
        rng = random.Random(f"partition {seed}")
        nodes = rng.randint(3, 8)
        part = rng.randint(1, nodes - 1)
        cut = rng.sample(range(nodes), part)
        self._parts = [cut, [index for index in range(nodes) if index not in cut]]
        self._cut_s = rng.choice([rng.uniform(1.0, 10.0), rng.uniform(SPLIT_WITHIN_S, 30.0)])
        self._after_s = rng.uniform(0.0, 3.0)
        settings = {"join": [address(0)], "timeout_ms": 2000}
        settings["algorithm"] = rng.choice(["gossip", "gossip", "symmetric"])
        super().__init__(
            nodes,
            settings,
            seed=seed,
            membership="open",
            network=drawn_network(rng),
            compute=drawn_compute(rng),
        )

    def play(self):
        """Let all of it happen; return what promises were broken."""
        self.plan_events()
        if self.must_come_to(lambda: self.all_see(self.names), FORMED_WITHIN_S, "all see all"):
            self.until(self.network.clock.now() + self._after_s)
            self._cut()
            self.network.heal()
            self.must_come_to(lambda: self.all_see(self.names), HEAL_WITHIN_S, "one view again")
            self.until(self.network.clock.now() + QUIET_S)
            self.must_agree()
        self.end_run()
        return self.broken

    def _cut(self):
        parts = [{f"n{index}" for index in part} for part in self._parts]
        began, updates = self.network.clock.now(), [node.updates for node in self.nodes]
        self.network.partition(*parts)
        if self._cut_s >= SPLIT_WITHIN_S:
            self.must_come_to(
                lambda: all(self.all_see(part) for part in parts),
                SPLIT_WITHIN_S,
                f"each part sees itself alone: {parts}",
            )
        self.until(max(self.network.clock.now(), began + self._cut_s))
        slowest_s = max(2.0, 5.0 * self.spec.scenario.compute.step_ms / 1000.0)
        for node, before in zip(self.nodes, updates, strict=True):
            if node.updates < before + int((self.network.clock.now() - began) / slowest_s):
                self.breaks(f"{node.name} has taken {node.updates - before} updates meanwhile")
