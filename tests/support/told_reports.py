"""Reports of a node whose peers a test names."""

from dataclasses import replace

from dpwa.config import load_config
from dpwa.node.node import Node
from support.nodes import config_of


class ToldReport:
    def __init__(self, **healths):
        with Node("w1", load_config(config_of(2))) as node:
            self._report = node.condition()
        (self._peer,) = self._report.peers
        self.healths = healths

    def __call__(self):
        known = {"clock": 1.0, "version": 1, "loss": 0.5, "staleness": 0.0}
        peers = [self._peer._replace(name=n, health=h, **known) for n, h in self.healths.items()]
        return replace(self._report, peers=tuple(peers))
