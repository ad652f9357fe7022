"""state_values.py NAME CONFIG ELEMENTS VALUE [UPDATES]: train raw parameters, all equal.

VALUE "clock" is the training clock: it begins with the state of its peers or its newest checkpoint.
Prints the clock, then "training".
"""

import itertools
import sys
import time

import numpy as np

from dpwa import DpwaConnection
from dpwa.testing import install_from_environment

install_from_environment()
name, config, elements, value = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
rounds = range(int(sys.argv[5])) if len(sys.argv) > 5 else itertools.count()
with DpwaConnection(name, config) as connection:
    if value == "clock":
        connection.fetch_state()
    print(connection.clock, flush=True)
    for number in rounds:
        here = connection.clock + 1 if value == "clock" else float(value)
        connection.update_send(np.full(elements, here), 0.5)
        if number == 0:
            print("training", flush=True)
        connection.update_wait(0.5)
        time.sleep(0.02)
