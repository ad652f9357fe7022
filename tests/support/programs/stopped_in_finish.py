"""Finish as w3 with an array of one value, stopped for some seconds before or after the first read.

Prints the peers that took part, and a value of the array at the end.
"""

import json
import os
import signal
import subprocess
import sys

import numpy as np

from dpwa import DpwaConnection
from dpwa.node.finish_run import FinishRun

when, seconds, config = sys.argv[1:]
real, children = FinishRun._read_all, []
GOES_ON = "import os, signal, sys, time; time.sleep({}); os.kill({}, signal.SIGCONT)"


def stop():
    if not children:
        code = GOES_ON.format(seconds, os.getpid())
        children.append(subprocess.Popen([sys.executable, "-S", "-c", code]))
        os.kill(os.getpid(), signal.SIGSTOP)


def read(run, *arguments):
    if when == "before":
        stop()
    found = real(run, *arguments)
    if when == "after":
        stop()
    return found


FinishRun._read_all = read
with DpwaConnection("w3", json.loads(config)) as connection:
    connection.wait_for_peers(2, 60.0)
    values, report = connection.finish(np.full(4, 9.0), timeout_s=20)
    print(json.dumps([sorted(report.took_part), values[0]]), flush=True)
children[0].wait()
