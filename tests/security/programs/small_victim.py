"""A node w1 that publishes and merges until it is told to end; prints what it refused.

Usage: small_victim.py CONFIG
"""

import json
import select
import sys
import time
from pathlib import Path

import numpy as np

from dpwa import DpwaConnection

with DpwaConnection("w1", json.loads(Path(sys.argv[1]).read_text())) as connection:
    connection.update_send(np.ones(125_000), 0.1)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        connection.update_send(np.ones(125_000), 0.1)
        time.sleep(0.005)
        connection.update_wait(0.1)
    refused = connection.node.report()["refused"]
print(json.dumps(refused), flush=True)
