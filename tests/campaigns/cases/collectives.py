"""Collectives one after the other, while members are killed and come back, or are cut off."""

import numpy as np

from cases.situation import FAULTS_S, LONGEST_FAULT_S, FaultyCallers
from dpwa.errors import CollectiveTimeoutError, LeftBehindError, PeerLost

TIMEOUT_S = 10.0


class CollectiveCallers(FaultyCallers):
    """Nodes that add up their values again and again.

    Args:
        seed: of all chance.
    """

    kind, settings = "collectives", {"collective_timeout_s": TIMEOUT_S}
    fewest, longest_pause_s, most_faults, fewest_living = 3, 0.5, 4, 2
    over_within_s = 40.0  # then they are one group again

    def __init__(self, seed):
        super().__init__(seed)
        self._sums = {}  # by members and number of the collective

    def _work(self, node, runtime, connection):
        while True:
            value = np.full(self._values, 2.0**node.index)
            wants_end = np.array([float(runtime.now() > FAULTS_S + LONGEST_FAULT_S)])
            try:
                _, count = connection.all_reduce([value, wants_end])
            except (PeerLost, LeftBehindError, CollectiveTimeoutError):
                continue
            self._take(node, connection, value, count)
            living = sum(other.lives_now for other in self.run.nodes)
            if wants_end[0] == count == living:
                return value[0]
            runtime.sleep(self._pause_s)

    def _take(self, node, connection, value, count):
        total = int(value[0])
        if not (value == value[0]).all() or bin(total).count("1") != count:
            self._broken.append(f"{node.name} has {value} of {count}")
        if not total >> node.index & 1:
            self._broken.append(f"{node.name} has a sum without its own value: {total:b}")
        group = connection.collectives.group("")
        key = group.view.identity, group.number
        if self._sums.setdefault(key, total) != total:
            self._broken.append(f"{node.name} has {total:b}, others {self._sums[key]:b}")
