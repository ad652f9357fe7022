"""Runs of whole nodes in virtual time."""

import hashlib

from dpwa.errors import DpwaError
from dpwa.sim.nodes.engine import NodesRun
from support.simulations import run_spec

FIRST = "tcp://10.0.0.0:7000"  # where n0 is


def nodes_run(nodes, settings=None, watch=lambda sample: True, **scenario):
    return NodesRun(run_spec(nodes, settings, **scenario), watch)


def open_run(nodes, settings=None, **scenario):
    """Return a run whose nodes have the address of n0 each, and hear of the others."""
    return nodes_run(nodes, {"join": [FIRST], **(settings or {})}, membership="open", **scenario)


def traced(run):
    """Let a run happen; return its outcome, and a digest of every byte that was sent, and when."""
    digest = hashlib.sha256()

    def tap(time_s, sender, to, frames):
        digest.update(f"{time_s!r} {sender} {to} {list(map(len, frames))}".encode())
        for frame in frames:
            digest.update(frame)

    run.tcp.tap = tap
    outcome = run.simulate()
    digest.update(repr(outcome).encode())
    return outcome, digest.hexdigest()


def peers_of(run):
    """Return whom each living node knows, by name."""
    return {n.name: set(n.connection.peers) for n in run.nodes if n.connection is not None}


def all_know_each_other(run):
    known = peers_of(run)
    return all(peers == known.keys() - {name} for name, peers in known.items())


class ProgramRun(NodesRun):
    """A run whose nodes call `program(node, runtime, connection)` in place of training.

    `results` and `errors` (of dpwa) are by name of the node.
    """

    def __init__(self, spec, program):
        super().__init__(spec, lambda sample: True)
        self._program = program
        self.results, self.errors = {}, {}

    def work(self, node, runtime, connection):
        try:
            self.results[node.name] = self._program(node, runtime, connection)
        except DpwaError as error:
            self.errors[node.name] = error
        connection.close()  # as whoever ends does, one way or the other

    def stall(self, node, seconds):
        """Let a node do nothing for so long, though its connections stay: the GIL is held."""
        if node.lives_now:
            self._note(f"{node.name} stalls for {seconds:.2f} s")
            node.runtime.stalled_until = self.network.clock.now() + seconds

    def until_over(self, end_s):
        """Let time pass until the programs of all living nodes have ended, or until a moment."""
        while self.network.clock.now() < end_s and not self.is_over:
            self.network.run_for(1.0)

    @property
    def is_over(self):
        return all(node.is_done for node in self.nodes if node.lives_now)
