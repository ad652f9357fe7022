"""Gossip an array of one value until killed; see the options.

Prints where it listens and the clock that it began with, and then a value of each array it merges.
"""

import argparse
import json
import os
import time

import numpy as np

from dpwa import DpwaConnection
from dpwa.testing import install_from_environment

parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("config", help="JSON, or a file")
parser.add_argument("--value", default="1", help="`clock`: that of the training so far")
parser.add_argument("--elements", type=int, default=4)
parser.add_argument("--child", action="store_true", help="have one, which holds the sockets longer")
options = parser.parse_args()
install_from_environment()
config = json.loads(options.config) if options.config.startswith("{") else options.config
with DpwaConnection(options.name, config) as connection:
    if options.value == "clock":
        connection.fetch_state()
    if options.child:
        connection.wait_for_peers(1, 10.0)
        if not os.fork():
            time.sleep(8.0)
            os._exit(0)
    clock, is_ready = connection.clock, False
    while True:
        value = connection.clock if options.value == "clock" else float(options.value)
        connection.update_send(np.full(options.elements, value), 0.5)
        if not is_ready:
            print(connection.node.endpoint, clock, flush=True)
            is_ready = True
        merged, _ = connection.update_wait(0.5)
        if merged is not None:
            print(merged[0], flush=True)
        time.sleep(0.02)
