"""Reports of a node whose peers a test names, and what nodes answer to those who watch."""

import math
from dataclasses import replace

from dpwa.config import load_config
from dpwa.node.node import Node
from dpwa.wire.messages import unpack
from dpwa.wire.watching import AskHistory
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


def answer_of(record, name=""):
    """Return what a node tells of itself, or of another one."""
    answers = []
    message = AskHistory(request=1, since=0.0, events_after=0, of=name)
    record.handle(b"", message, lambda _, payload: answers.append(unpack(payload)))
    return answers[0]


def told_answer(name, **fields):
    """Return the fields of an answer in which a node tells nothing but these."""
    return {
        "schema": 1, "name": name, "endpoint": "tcp://127.0.0.1:1", "host": "h", "pid": 7,
        "algorithm": "gossip", "topology": "random", "group": "", "started": 1e9, "now": 1e9,
        "last": -math.inf, "figures": [], "samples": b"", "events": [], "peers": [],
        "members": [], **fields,
    }  # fmt: skip
