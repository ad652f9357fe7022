"""Publish one snapshot of 1 MB and serve it until interrupted.  Usage: serve.py PORT"""

import sys
import time

import numpy as np

from dpwa import DpwaConnection

nodes = [{"name": "w1", "host": "127.0.0.1", "port": int(sys.argv[1])}]
try:
    with DpwaConnection("w1", {"nodes": nodes, "log_level": "error"}) as connection:
        connection.update_send(np.ones(125_000), 0.1)
        print("serving", flush=True)
        while True:
            time.sleep(1)
except KeyboardInterrupt:
    print(f"bad messages: {connection.node.report()['bad_messages']}", flush=True)
