"""Nodes n0, n1, ... that call collectives in virtual time, some of which are killed at a call."""

from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "join")
LONGEST_S = 600.0  # of virtual time: who has not ended by then hangs


class Caller:
    """A connection, whose node is killed in place of making its n-th call, if that is said."""

    def __init__(self, run, node, runtime, connection):
        self.life = node.lives
        self._run, self._node, self._runtime = run, node, runtime
        self._connection = connection

    def __getattr__(self, name):
        found = getattr(self._connection, name)
        return self._mortal(found) if name in COLLECTIVES else found

    def sleep(self, seconds):
        self._runtime.sleep(seconds)

    def die(self, back_s=None):
        """Be killed, and started again after so many seconds."""
        self._run.network.call_later(0.0, lambda: self._run.kill(self._node))
        if back_s is not None:
            self._run.network.call_later(back_s, lambda: self._run.start(self._node))
        self.sleep(LONGEST_S)

    def _mortal(self, call):
        def called(*args, **kwargs):
            self._run.count_call(self)
            return call(*args, **kwargs)

        return called


class CallersRun(ProgramRun):
    """A run whose nodes call `task(caller)`.

    Args:
        task: what each node does, again after each of its starts.
        nodes: how many they are.
        dies: at which of its calls, from 1, a node is killed, by name.
        back_s: after how many seconds it is started again, if it is.
    """

    def __init__(self, task, nodes=3, dies=None, back_s=None):
        settings = {"collective_timeout_s": 10.0, "log_level": "error"}
        super().__init__(
            run_spec(nodes, settings, seed=1, seconds=LONGEST_S),
            lambda node, runtime, connection: task(Caller(self, node, runtime, connection)),
        )
        self._dies, self._back_s = dies or {}, back_s
        self.calls = dict.fromkeys(self.names, 0)  # that each has made
        self.killed = set()

    @property
    def names(self):
        return [node.name for node in self.nodes]

    def count_call(self, caller):
        self.calls[caller.name] += 1
        if self._dies.get(caller.name) == self.calls[caller.name]:
            self.killed.add(caller.name)
            caller.die(self._back_s)

    def outcomes(self):
        """Let it happen; return what each has returned or raised, by name, of who lives."""
        self.plan_events()
        self.until_over(LONGEST_S)
        self.end_run()
        found = {**self.results, **self.errors}
        return {name: found[name] for name in self.names if name in found}


def called(task, nodes=3):
    """Let nodes call `task(caller)`; return what each has returned or raised, by name."""
    return CallersRun(task, nodes).outcomes()
