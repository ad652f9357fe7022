"""fetch_snapshots.py PUBLISHER_PORT OWN_PORT COUNT ELEMENTS TRANSPORT: check that none is torn.

Every element of a snapshot must be its version. It pauses once: the publisher, which trains
nothing, is tens of thousands of updates ahead then, and is fetched from all the same.
"""

import sys
import time

import numpy as np

from dpwa.config import load_config
from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.snapshot import FinishedCopy
from dpwa.node.node import Node

publisher_port, own_port, count, elements = map(int, sys.argv[1:5])
config = load_config(
    {
        "nodes": [
            {"name": "publisher", "host": "127.0.0.1", "port": publisher_port},
            {"name": "reader", "host": "127.0.0.1", "port": own_port},
        ],
        "timeout_ms": 10_000,
        "transport": sys.argv[5],
    },
)
layout = Layout((TensorSpec("parameters", "float64", (elements,), 8),))
fetched = torn = 0


def write(data):
    """Publish nothing of interest."""
    data.fill(0)
    return FinishedCopy(None)


def check(arrival):
    global fetched, torn
    fetched += 1
    torn += (arrival.data.view(np.float64) != arrival.version).any()
    return arrival.factor


with Node("reader", config) as node:
    while fetched < count:
        view = node.rounds.begin(None)
        node.rounds.publish(layout, 8 * elements, write)
        node.rounds.ask(node.rounds.algorithm.asks(view), layout)
        if node.rounds.wait(None, check) is not None and fetched == 1:
            time.sleep(0.5)
print(fetched, torn)
