"""The leader dies, and all who live follow one that lives."""

import random

from cases.situation import (
    FORMED_WITHIN_S,
    LOOK_EVERY_S,
    WatchedRun,
    address,
    drawn_compute,
    drawn_network,
)

ONE_LEADER_WITHIN_S = 15.0  # a few updates, in each of which a node hears what another one knows
HEARS_S = 1.0  # beside the silence: ages leave out what news take on their way
GOES_ON_S = 8.0
SILENCE_STEPS = 8.0, 14.0  # `leader_silence_s`: news takes several steps from node to node


class Leader(WatchedRun):
    """Nodes that follow a leader, which dies; it may come back.

    Their losses are drawn, each about a level of its own: so one of them is best for long.

    Args:
        seed: of all chance.
    """

    def __init__(self, seed):
        rng = random.Random(f"leader {seed}")
        self._rng = rng
        is_open = rng.random() < 0.5
        settings = rng.choice(
            [{"algorithm": "lsgd"}, {"algorithm": "gossip", "interpolation": "leader"}]
        )
        # Nobody is twice as fast as another one, who would be a beginner then, and not lead.
        compute = drawn_compute(rng) | {"spread": rng.choice([0.0, 0.1])}
        silence_s = rng.uniform(*SILENCE_STEPS) * compute["step_ms"] / 1000.0
        settings |= {"timeout_ms": 2000, "leader_silence_s": silence_s}
        if is_open:
            settings["join"] = [address(0)]
        self._returns = rng.random() < 0.3
        super().__init__(
            rng.randint(3, 8),
            settings,
            seed=seed,
            membership="open" if is_open else "listed",
            network=drawn_network(rng),
            compute=compute,
        )
        self._levels = rng.sample(range(1, len(self.nodes) + 1), len(self.nodes))

    def play(self):
        """Let all of it happen; return what promises were broken."""
        self.plan_events()
        formed_s = FORMED_WITHIN_S + ONE_LEADER_WITHIN_S
        if self.must_come_to(self._all_follow_the_best, formed_s, "all follow the best"):
            died = self._best(self.nodes)
            self.until(self.network.clock.now() + self._rng.uniform(0.0, 5.0))
            self.kill(died)
            self._all_follow_another(died.name)
            if self._returns:
                self.start(died)
                self.must_come_to(lambda: died.has_joined, 20.0, f"{died.name} is let in again")
                self.must_come_to(
                    self._all_follow_the_best, ONE_LEADER_WITHIN_S, f"all follow {died.name} again"
                )
        self.end_run()
        return self.broken

    def take_step(self, node, x):
        return self._levels[node.index] + self._rng.uniform(-0.2, 0.2)

    def _best(self, nodes):
        return min(nodes, key=lambda node: self._levels[node.index])

    def _leaders(self):
        """Whom the living follow."""
        return [node.connection.node.report()["news"]["leader"] for node in self.members]

    def _all_follow_the_best(self):
        members = self.members
        are_all = len(members) == sum(node.lives_now for node in self.nodes)
        return are_all and set(self._leaders()) == {self._best(members).name}

    def _all_follow_another(self, died):
        """Let time pass; nobody may follow the dead one for long, and all follow one in the end."""
        bound_s = self.spec.config.leader_silence_s + HEARS_S
        if self.has_come_to(lambda: died not in self._leaders(), bound_s) is None:
            self.breaks(f"{died} is dead, and still followed: {self._leaders()}")
        self.must_come_to(self._all_follow_the_best, ONE_LEADER_WITHIN_S, "all follow the best")
        end_s = self.network.clock.now() + GOES_ON_S
        while self.network.clock.now() < end_s and not self.broken:
            self.until(self.network.clock.now() + LOOK_EVERY_S)
            if not self._all_follow_the_best():
                self.breaks(f"they follow the best no more, but {self._leaders()}")
