"""Tables of nodes that may not send as fast as they could."""

import time

import numpy as np
from support.times import at_most
from test_tables_between_nodes import vectors, workers

MB = 10**6


def test_reads_keep_to_the_cap_on_uploads():
    settings = {"transport": "tcp", "max_upload_mbps": 40.0, "collective_timeout_s": 60.0}
    with workers(2, settings) as made:
        table, _ = vectors(made, 2 * MB)
        began = time.monotonic()
        assert np.array_equal(table.get(), np.zeros(2 * MB, np.float32))
        # Half of it is at the other node: 4 MB, 5 MB/s.
        assert 0.7 * 4 / 5 < time.monotonic() - began < at_most(1.3 * 4 / 5)
