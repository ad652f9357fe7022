"""Publish one snapshot of 1 MB and serve it until interrupted.  Usage: serve.py PORT"""

import sys
import time

import numpy as np

from dpwa import DpwaConnection

unlimited = {"serving_share": 1.0}
nodes = [{"name": "w1", "host": "127.0.0.1", "port": int(sys.argv[1])}]
config = {"nodes": nodes, "log_level": "error", "limits": unlimited}
try:
    with DpwaConnection("w1", config) as connection:
        connection.update_send(np.ones(125_000), 0.1)
        print("serving", flush=True)
        while True:
            time.sleep(1)
except KeyboardInterrupt:
    print(f"bad messages: {connection.node.report()['bad_messages']}", flush=True)
