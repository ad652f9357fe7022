"""Publishing in a loop while several processes fetch: every snapshot arrives whole.

What is mapped is in tests/data/test_shared_memory.py.
"""

import json

import numpy as np
import pytest
from support.nodes import again_and_again
from support.ports import free_ports
from support.processes import ended, start
from support.writers import filling

from dpwa.config import load_config
from dpwa.data.layout import Layout, TensorSpec
from dpwa.node.node import Node

ELEMENTS = 300_000  # two chunks: a torn snapshot would have an old head and a new tail


@pytest.mark.parametrize(
    "fetches", [150, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_no_fetched_snapshot_is_torn(fetches):
    count = 4 if fetches > 1000 else 2
    ports = dict(zip(["publisher", *"abcd"[:count]], free_ports(1 + count), strict=True))
    nodes = [{"name": name, "host": "127.0.0.1", "port": port} for name, port in ports.items()]
    layout = Layout((TensorSpec("weight", "float32", (ELEMENTS,), 4),))
    readers = []
    for own in nodes[1:]:
        config = {"nodes": [nodes[0], own], "timeout_ms": 10_000, "transport": "tcp"}
        readers.append(start("gossip_values.py", json.dumps(config), own["name"], ELEMENTS, 0))
    with Node("publisher", load_config({"nodes": nodes[:1]})) as node, ended(*readers):
        write_next_version = filling(lambda: node.version + 1, np.float32)

        def publish():
            node.rounds.begin_update(None)
            node.rounds.publish_snapshot(layout, layout.nbytes, write_next_version)

        with again_and_again(publish):
            for reader in readers:
                said = [reader.stdout.readline() for _ in range(1 + fetches // count)]
                assert said == ["ready\n"] + ["merged\n"] * (fetches // count)
        assert node.version > 100
