"""Tables of nodes that may not send as fast as they could."""

import time
from contextlib import ExitStack

import numpy as np
from support.members import at_once
from support.nodes import config_of
from support.times import at_most

from dpwa import DpwaConnection
from dpwa.tables.tables import Tables

MB = 10**6


def test_reads_keep_to_the_cap_on_uploads():
    config = config_of(2, transport="tcp", max_upload_mbps=40.0, collective_timeout_s=60.0)
    with ExitStack() as stack:
        tables = {}

        def make(name):
            node = stack.enter_context(DpwaConnection(name, config))
            mine = Tables(node)
            stack.callback(mine.close)
            tables[name] = mine.array(2 * MB)

        at_once([lambda: make("w1"), lambda: make("w2")])
        began = time.monotonic()
        assert np.array_equal(tables["w1"].get(), np.zeros(2 * MB, np.float32))
        # Half of it is at the other node: 4 MB, 5 MB/s.
        assert 0.7 * 4 / 5 < time.monotonic() - began < at_most(1.3 * 4 / 5)
