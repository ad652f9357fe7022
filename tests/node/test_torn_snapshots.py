"""Publishing in a loop while four processes fetch: every snapshot arrives whole."""

import numpy as np
import pytest
from support.nodes import again_and_again
from support.ports import free_ports
from support.processes import ended, start
from support.writers import filling

from dpwa.config import load_config
from dpwa.data.layout import Layout, TensorSpec
from dpwa.node.node import Node

ELEMENTS = 150_000  # two chunks: a torn snapshot would have an old head and a new tail


@pytest.mark.parametrize(
    "fetches", [150, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_no_fetched_snapshot_is_torn(fetches, transport):
    count = 4 if fetches > 1000 else 2
    port, *reader_ports = free_ports(1 + count)
    config = load_config({"nodes": [{"name": "publisher", "host": "127.0.0.1", "port": port}]})
    layout = Layout((TensorSpec("parameters", "float64", (ELEMENTS,), 8),))
    readers = [
        start("fetch_snapshots.py", port, own, fetches // count, ELEMENTS, transport)
        for own in reader_ports
    ]
    with Node("publisher", config) as node, ended(*readers):
        write_next_version = filling(lambda: node.version + 1, np.float64)

        def publish():
            node.rounds.begin(None)
            node.rounds.publish(layout, 8 * ELEMENTS, write_next_version)

        with again_and_again(publish):
            results = [reader.communicate(timeout=500) for reader in readers]
        assert [output for output, _ in results] == [f"{fetches // count} 0\n"] * count
        assert node.version > 100
