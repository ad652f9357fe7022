"""Links of virtual hosts for tests, each as it is told to be."""

import random

from dpwa.sim.nodes.tcp import VirtualTcp
from dpwa.sim.nodes.zeromq import VirtualContext
from dpwa.virtual_network import VirtualNetwork

MBPS = 125_000.0


class PlainLinks:
    """All links alike; `LinkModel`."""

    def __init__(self, latency_s=0.01, jitter_s=0.0, upload_mbps=100.0, download_mbps=100.0):
        self.latency_s = latency_s
        self.jitter_s = jitter_s
        self.rates = upload_mbps * MBPS, download_mbps * MBPS
        self.hidden = set()
        self.shared = None
        self._rng = random.Random(1)

    def delay_s(self, sender, to):
        return self.latency_s + self._rng.uniform(0.0, self.jitter_s)

    def may_connect(self, client, server):
        return server not in self.hidden

    def upload(self, node):
        return self.rates[0]

    def download(self, node):
        return self.rates[1]

    def shared_link(self, sender, to):
        return self.shared


class VirtualHosts:
    def __init__(self, *names, links=None):
        self.links = links or PlainLinks()
        self.network = VirtualNetwork(seed=1)
        self.tcp = VirtualTcp(self.network, self.links)
        self.contexts = {name: VirtualContext(self.tcp, name) for name in names}
        for name in names:
            self.tcp.hosts[self.endpoint(name)] = name

    def endpoint(self, name):
        return f"tcp://{name}:7000"

    @property
    def now(self):
        return self.network.clock.now()

    def until(self, condition, seconds=20.0, step_s=0.001):
        """Let time pass until something is so; return what it is."""
        end = self.now + seconds
        while not (found := condition()):
            assert self.now < end, "it has not come to that"
            self.network.run_for(step_s)
        return found
