"""descend_for_ever.py CONFIG NAME STEP_S: descend to a point near that of the
others, and gossip.
"""

import json
import sys
import time
import zlib

import numpy as np

from dpwa import DpwaConnection

SIZE = 20_000
RATE = 0.01

config, name, step_s = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
random = np.random.default_rng(zlib.crc32(name.encode()))
goal = 1.0 + 0.1 * random.standard_normal(SIZE).astype(np.float32)
parameters, loss = np.zeros(SIZE, np.float32), None
with DpwaConnection(name, config) as connection:
    while True:
        connection.update_send(parameters, loss)
        noisy = goal + 0.3 * random.standard_normal(SIZE).astype(np.float32)
        parameters = parameters - RATE * (parameters - noisy)
        loss = float(np.mean((parameters - noisy) ** 2))
        time.sleep(step_s)
        peer_parameters, factor = connection.update_wait(loss)
        if factor > 0:
            parameters = factor * peer_parameters + (1 - factor) * parameters
