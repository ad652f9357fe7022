"""Collectives between nodes that may not send as fast as they could."""

import time

import numpy as np
import pytest
from support.collective_nodes import collective_nodes

MB = 10**6


def test_the_pieces_that_members_pull_keep_to_the_cap_on_uploads():
    with collective_nodes(2, transport="tcp", max_upload_mbps=160.0) as nodes:
        nodes.each(lambda node: node.barrier())

        def reduced(node):
            value = np.ones(4 * MB, np.float32)
            began = time.monotonic()
            node.all_reduce(value, op="sum")
            return value, time.monotonic() - began

        for value, took_s in nodes.each(reduced).values():
            assert (value == 2).all()
            # Each half goes to the other node to be reduced, and comes back: 16 MB, 20 MB/s.
            assert took_s == pytest.approx(16 / 20, rel=0.3)
