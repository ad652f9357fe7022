"""Use a connection and end without closing it.  Usage: forget_to_close.py PORT"""

import sys

from dpwa import DpwaConnection

nodes = [
    {"name": "w1", "host": "127.0.0.1", "port": int(sys.argv[1])},
    {"name": "w2", "host": "127.0.0.1", "port": 1},
]
connection = DpwaConnection("w1", {"nodes": nodes, "log_level": "error"})
connection.update_send(b"parameters", 0.1)
connection.update_wait(0.1)
connection.update_send(b"parameters", 0.1)
print("done", flush=True)
