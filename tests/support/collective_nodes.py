"""Nodes that call collectives, several in this process, each on a thread of its own."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dpwa import DpwaConnection
from support.nodes import config_of

LONGEST_S = 60.0  # far more than any call may take: a hang fails the test


class Nodes:
    """Nodes of one configuration, and what they call all at once; those not in
    `names` never start.
    """

    def __init__(self, config, names, threads=1):
        self.config = config
        self.connections = {}
        self._threads = threads
        self._pools = {}
        for name in names:
            self.start(name)

    def start(self, name):
        """Start a node; also one that was closed."""
        self.connections[name] = DpwaConnection(name, self.config)
        if name not in self._pools:
            self._pools[name] = ThreadPoolExecutor(self._threads)

    @property
    def names(self):
        return tuple(self.connections)

    def __getitem__(self, name):
        return self.connections[name]

    def begin(self, name, task, *arguments):
        """Let one node run `task(connection, ...)`; return its future."""
        return self._pools[name].submit(task, self.connections[name], *arguments)

    def each(self, task, names=None):
        """Let all nodes, or some, run `task(connection)`; return what each returns, by name."""
        futures = {name: self.begin(name, task) for name in names or self.names}
        return {name: future.result(LONGEST_S) for name, future in futures.items()}

    def outcomes(self, task, names=None):
        """The same, of tasks that may raise: errors are returned."""

        def caught(connection):
            try:
                return task(connection)
            except Exception as error:  # noqa: BLE001
                return error

        return self.each(caught, names)

    def close(self):
        for connection in self.connections.values():
            connection.close()
        for pool in self._pools.values():
            pool.shutdown()


def is_settled(nodes):
    """Whether all nodes have told each other whether they read their memory."""
    names = set(nodes.names)
    return all(nodes[n].collectives.contacts.are_settled(names - {n}) for n in names)


@contextmanager
def collective_nodes(count, *, there=None, threads=1, **settings):
    """Nodes w1, w2, ... on free loopback ports; `there`: only so many of them are started."""
    settings = {"collective_timeout_s": 40.0, "log_level": "error", **settings}
    config = config_of(count, **settings)
    names = [node["name"] for node in config["nodes"]]
    nodes = Nodes(config, names[:there], threads)
    try:
        yield nodes
    finally:
        nodes.close()


@contextmanager
def met_nodes(count, **settings):
    """The same, all started and after their first collective, a barrier."""
    with collective_nodes(count, **settings) as nodes:
        nodes.each(lambda node: node.barrier())
        yield nodes


def rank_of(connection):
    return int(connection.name.removeprefix("w")) - 1
