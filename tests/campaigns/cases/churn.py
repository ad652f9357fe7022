"""Members die and are replaced all the time; who comes knows one address, which may be nobody's."""

import random

from cases.situation import (
    FORMED_WITHIN_S,
    LOOK_EVERY_S,
    WatchedRun,
    address,
    drawn_compute,
    drawn_network,
)

KILL_EVERY_S = 4.0
CHURN_S = 32.0
SEEN_WITHIN_S = 5.0  # a member that has come, or is gone, by all who were there
CALM_WITHIN_S = 45.0  # all see all again: two processes that give up, and one that gets in
QUIET_S = 10.0


class Churn(WatchedRun):
    """A cluster that forms from one address, and whose nodes are killed and started again.

    Args:
        seed: of all chance.

    Attributes:
        delay_s: between the start of a process and its first message, as imports take.
        gives_up_after_s: a process that nobody has let in; another one is started then.
    """

    def __init__(self, seed):
        self._rng = rng = random.Random(f"churn {seed}")
        nodes = rng.randint(3, 8)
        settings = {"join": [address(0)], "join_timeout_s": 300.0, "timeout_ms": 2000}
        settings["merge"] = rng.choice(["delta", "interpolate"])
        settings["algorithm"] = rng.choice(["gossip", "gossip", "symmetric", "push_sum"])
        if settings["algorithm"] != "gossip":
            del settings["merge"]  # has no effect with others
        self.delay_s = rng.choice([10.0, 10.0, rng.uniform(0.0, 10.0)])
        self.gives_up_after_s = rng.choice([10.0, rng.uniform(2.0, 6.0)])
        self._kills_at_once = rng.choice([1, 1, 2])
        super().__init__(
            nodes,
            settings,
            seed=seed,
            membership="open",
            network=drawn_network(rng),
            compute=drawn_compute(rng),
            churn={"start_spread_s": rng.choice([0.0, 10.0])},
        )
        self._told = dict.fromkeys(self.names, address(0))  # the one address that each knows
        self._coming = set()  # nodes whose process has started, and says nothing yet
        self._trained = set()  # lives of nodes that have come so far
        self._has_formed = False

    def play(self):
        """Let all of it happen; return what promises were broken."""
        self.plan_events()
        if self.must_come_to(lambda: self.all_see(self.names), FORMED_WITHIN_S, "all see all"):
            self._has_formed = True
            began = self.network.clock.now()
            self.network.call_later(LOOK_EVERY_S, self._tend)
            kills = int(CHURN_S / KILL_EVERY_S)
            for number in range(1, kills + 1):
                self.network.call_later(number * KILL_EVERY_S, self._kill_some)
            self.until(began + CHURN_S + LOOK_EVERY_S)
            self.must_come_to(lambda: self.all_see(self.names), CALM_WITHIN_S, "one view again")
            self.until(self.network.clock.now() + QUIET_S)
            self.must_agree()
        self.end_run()
        return self.broken

    def config_of(self, node):
        config = super().config_of(node)
        if not self._has_formed:
            return config
        return config.model_copy(
            update={"join": (self._told[node.name],), "join_timeout_s": self.gives_up_after_s}
        )

    def work(self, node, runtime, connection):
        if node.index and not connection.peers:
            self.breaks(f"{node.name} begins alone, though it was told of an address")
        self._must_be_seen(node, is_there=True)
        super().work(node, runtime, connection)

    def update(self, node, runtime, training, x):
        life = node.name, node.lives
        if self._has_formed and life not in self._trained and not node.has_taken_over:
            self.breaks(f"{node.name} has not taken over the state of the others")
        self._trained.add(life)
        super().update(node, runtime, training, x)

    def _kill_some(self):
        for _ in range(self._kills_at_once):
            if len(self.members) > max(1, len(self.nodes) // 2):
                died = self._rng.choice(self.members)
                self.kill(died)
                self._must_be_seen(died, is_there=False)

    def _must_be_seen(self, node, *, is_there):
        """Look whether all members of now, that are there still, see a change in time."""
        lives = {other: other.lives for other in self.members if other is not node}
        own = node.lives

        def look():
            if node.lives != own or node.lives_now is not is_there:
                return  # it has changed again
            blind = [
                other.name
                for other in self.members
                if lives.get(other) == other.lives and (node.name in self.sees(other)) != is_there
            ]
            if blind:
                what = "has come" if is_there else "is gone"
                self.breaks(f"{node.name} {what}, and {blind} have not seen it")

        self.network.call_later(SEEN_WITHIN_S, look)

    def _tend(self):
        """Start those that have died or given up again, as long as somebody is there."""
        members = self.members
        for node in self.nodes:
            if not node.lives_now and node.index not in self._coming and members:
                self._told[node.name] = address(self._rng.choice(members).index)
                self._coming.add(node.index)
                self.network.call_later(self.delay_s, lambda node=node: self._connect(node))
        self.network.call_later(LOOK_EVERY_S, self._tend)

    def _connect(self, node):
        self._coming.discard(node.index)
        self.start(node)
