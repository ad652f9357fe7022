"""killed_once.py FOLDER [parent|leaves]: w2 kills itself when it has merged; both finish together.

With `parent` it kills its parent, and dies with that. With `leaves` it exits with 0 in update 7.
Nothing is merged in fact: w1 publishes 1, and w2 11 or, in its second life, 12.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from dpwa import DpwaConnection

PATIENCE_S = 150.0  # on a busy machine: until the other one has imported torch

name, folder = os.environ["DPWA_NAME"], Path(sys.argv[1])
lived, was_met = folder / "lived", folder / "met"
life = 2 if lived.exists() else 1
own, wanted = (1.0, 12.0) if name == "w1" else (10.0 + life, 1.0)
end = time.monotonic() + PATIENCE_S
with DpwaConnection(name, os.environ["DPWA_CONFIG"]) as connection:
    print(f"life {life if name == 'w2' else 1}", flush=True)
    is_met = False
    while not (is_met and (name == "w1" or was_met.exists())):
        if time.monotonic() > end:
            sys.exit("the peer did not come back")
        connection.update_send(np.full(4, own), loss=1.0)
        parameters, factor = connection.update_wait(1.0)
        if factor > 0 and parameters[0] == wanted:
            is_met = True
            if name == "w1":
                was_met.touch()
            elif life == 1:
                lived.touch()
                while "leaves" in sys.argv:
                    if connection.updates >= 7:
                        os._exit(0)
                    connection.update_send(np.full(4, own), loss=1.0)
                    connection.update_wait(1.0)
                os.kill(os.getppid() if "parent" in sys.argv else os.getpid(), signal.SIGKILL)
                time.sleep(PATIENCE_S)
        time.sleep(0.02)
    print("met", flush=True)
    connection.finish(np.full(4, own))
