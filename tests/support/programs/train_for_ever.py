"""train_for_ever.py CONFIG NAME: gossip an array; say `ready` after the first update."""

import json
import sys
import time

import numpy as np

from dpwa.connection import DpwaConnection

with DpwaConnection(sys.argv[2], json.loads(sys.argv[1])) as connection:
    connection.update_send(np.ones(4))
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
        connection.update_wait()
        connection.update_send(np.ones(4))
