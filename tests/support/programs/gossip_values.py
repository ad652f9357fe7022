"""gossip_values.py CONFIG NAME ELEMENTS VALUE: gossip a tensor; print each round that merged.

A peer's elements all have one value, too: else its snapshot is torn, which is printed instead.
"""

import json
import sys
import time

import numpy as np

from dpwa.config import load_config
from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.snapshot import FinishedCopy
from dpwa.node.node import Node

config, name, elements, value = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
layout = Layout((TensorSpec("weight", "float32", (elements,), 4),))
torn = False


def write(data):
    data.view(np.float32).fill(value)
    return FinishedCopy(True)


def read(arrival):
    global torn
    values = arrival.data.view(np.float32)
    torn = bool(values.min() != values.max())
    return arrival.factor


with Node(name, load_config(json.loads(config))) as node:
    print("ready", flush=True)
    while True:
        view = node.rounds.begin_update(None)
        node.rounds.publish_snapshot(layout, layout.nbytes, write)
        node.rounds.ask(node.rounds.algorithm.asks(view), layout)
        if node.rounds.wait_and_merge(None, read):
            print("torn" if torn else "merged", flush=True)
        time.sleep(0.01)
