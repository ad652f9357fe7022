"""What fetches take that begin together, in closed form.

With `r` readers at one serving node, latency `L` each way, `S` bytes of an answer in `P` pieces,
and `s` fetches that leave a site for others:

    F = 2 L + max(r S / upload, S / download, s S / between sites, (ceil(P / 6) - 1) 2 L)

The last term is of the credit: 6 pieces are on their way before the reader says that it wants more.
All who read begin at the same moment, so links are shared fairly by all of them to the end.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpwa.sim.conditions import Conditions
from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.wire import limits

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Links:
    """The links of all nodes.

    Args:
        conditions: of the run.
        sizes: of what is sent.
    """

    def __init__(self, conditions: Conditions, sizes: WireSizes) -> None:
        self._conditions = conditions
        self._sizes = sizes
        self._turns = max(0, math.ceil(sizes.pieces / limits.CREDIT_CHUNKS) - 1)

    def fetch_s(self, readers: Integers, servers: Integers) -> Floats:
        """Return what fetches take that begin together: seconds, shape (K,)."""
        conditions, nbytes = self._conditions, self._sizes.answer
        flows = np.bincount(servers, minlength=conditions.nodes)[servers]
        latency_s = conditions.mean_delay_s(conditions.latencies_s(readers, servers))
        stream_s = np.maximum(
            flows * nbytes / conditions.upload_bytes_per_s,
            nbytes / conditions.download_bytes_per_s,
        )
        stream_s = np.maximum(stream_s, self._turns * 2 * latency_s)
        if len(conditions.sites) > 1:
            stream_s = np.maximum(stream_s, self._between_sites_s(readers, servers))
        taken_s: Floats = 2 * latency_s + stream_s
        return taken_s

    def longest_s(self, readers: int) -> float:
        """Return what a fetch may take if so many read from one node at once."""
        conditions = self._conditions
        network_s = conditions.mean_delay_s(np.array([conditions.longest_latency_s]))[0]
        between = conditions.nodes / conditions.between_sites_bytes_per_s
        a_byte_s = max(
            readers / conditions.upload_bytes_per_s, 1 / conditions.download_bytes_per_s, between
        )
        stream_s = max(self._sizes.answer * a_byte_s, self._turns * 2 * network_s)
        return float(2 * network_s + stream_s)

    def _between_sites_s(self, readers: Integers, servers: Integers) -> Floats:
        sites = self._conditions.site_of
        is_far = sites[readers] != sites[servers]
        flows = np.bincount(sites[servers[is_far]], minlength=len(self._conditions.sites))
        limit = self._conditions.between_sites_bytes_per_s
        taken_s: Floats = np.where(is_far, flows[sites[servers]] * self._sizes.answer / limit, 0.0)
        return taken_s
