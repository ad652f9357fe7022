"""Fetch COUNT snapshots from one publisher and check that none is torn.

Usage: fetch_snapshots.py PUBLISHER_PORT OWN_PORT COUNT ELEMENTS
Every element of a snapshot must be its version.
"""

import sys

import numpy as np

from dpwa.config import load_config
from dpwa.data.layout import Layout, TensorSpec
from dpwa.node.node import Node

publisher_port, own_port, count, elements = map(int, sys.argv[1:])
config = load_config(
    {
        "nodes": [
            {"name": "publisher", "host": "127.0.0.1", "port": publisher_port},
            {"name": "reader", "host": "127.0.0.1", "port": own_port},
        ],
        "timeout_ms": 10_000,
    },
)
layout = Layout((TensorSpec("parameters", "float64", (elements,), 8),))
fetched = torn = 0
with Node("reader", config) as node:
    while fetched < count:
        node.send(layout, 8 * elements, None, lambda data: data.fill(0))
        arrival = node.wait()
        if arrival is None:
            continue
        fetched += 1
        values = arrival.snapshot.data.view(np.float64)
        torn += bool((values != arrival.snapshot.version).any())
print(fetched, torn)
