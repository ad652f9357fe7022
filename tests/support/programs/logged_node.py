"""A node that takes steps of a given length on a quadratic loss, as long as it is told to.

Usage: logged_node.py CONFIG NAME STEP_S SECONDS     (CONFIG: a path)
"""

import sys
import time

import numpy as np

from dpwa import DpwaConnection

config, name, step_s, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
rng = np.random.default_rng(int(name[1:]))
parameters, target = np.full(2000, 4.0), rng.normal(0.0, 0.5, 2000)
loss, end = None, time.monotonic() + seconds
with DpwaConnection(name, config) as connection:
    print("ready", flush=True)
    while time.monotonic() < end:
        connection.update_send(parameters, loss)
        time.sleep(step_s)  # a step of this length
        gradient = parameters - target + rng.normal(0.0, 0.3, parameters.shape)
        loss = float(np.square(gradient).mean())
        parameters = parameters - 0.02 * gradient
        theirs, factor = connection.update_wait(loss)
        if theirs is not None:
            parameters = factor * theirs + (1 - factor) * parameters
