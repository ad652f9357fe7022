"""gossip_for_ever.py CONFIG NAME VALUE: gossip an array of VALUE; print what is merged of whom."""

import sys
import time

import numpy as np

from dpwa import DpwaConnection

config, name, value = sys.argv[1], sys.argv[2], float(sys.argv[3])
with DpwaConnection(name, config) as connection:
    while True:
        connection.update_send(np.full(1000, value), 0.5)
        parameters, _ = connection.update_wait(0.5)
        if parameters is not None:
            print(parameters[0], flush=True)
        time.sleep(0.01)
