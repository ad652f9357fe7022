"""join_and_wait.py NAME CONFIG [orphans]: join, print where it is, and gossip until it is killed.

With "orphans" it has a child, as data loaders are, which holds its sockets for a while longer.
"""

import json
import os
import sys
import time

import numpy as np

from dpwa.connection import DpwaConnection

with DpwaConnection(sys.argv[1], json.loads(sys.argv[2])) as connection:
    if sys.argv[3:] == ["orphans"]:
        connection.wait_for_peers(1, 10.0)
        if not os.fork():
            time.sleep(8.0)
            os._exit(0)
    print(connection.node.endpoint, flush=True)
    while True:
        connection.update_send(np.zeros(4), 1.0)
        connection.update_wait(1.0)
        time.sleep(0.05)
