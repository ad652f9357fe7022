"""A node that joins and prints where it is, and then gossips until it is killed.

Usage: join_and_wait.py NAME CONFIG      (CONFIG: JSON)
"""

import json
import sys
import time

import numpy as np

from dpwa.connection import DpwaConnection

with DpwaConnection(sys.argv[1], json.loads(sys.argv[2])) as connection:
    print(connection.node.endpoint, flush=True)
    while True:
        connection.update_send(np.zeros(4), 1.0)
        connection.update_wait(1.0)
        time.sleep(0.05)
