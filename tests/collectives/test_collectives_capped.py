"""Collectives between nodes that may not send as fast as they could."""

import time

import numpy as np
from support.collective_nodes import met_nodes
from support.times import at_most

MB = 10**6


def test_the_pieces_that_members_pull_keep_to_the_cap_on_uploads():
    with met_nodes(2, transport="tcp", max_upload_mbps=160.0, collective_timeout_s=60.0) as nodes:

        def reduced(node):
            value = np.ones(4 * MB, np.float32)
            began = time.monotonic()
            node.all_reduce(value, op="sum")
            return value, time.monotonic() - began

        for value, took_s in nodes.each(reduced).values():
            assert (value == 2).all()
            # Each half goes to the other node to be reduced, and comes back: 16 MB, 20 MB/s.
            assert 0.7 * 16 / 20 < took_s < at_most(1.3 * 16 / 20)
