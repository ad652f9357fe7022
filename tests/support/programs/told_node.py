"""told_node.py NAME CONFIG ELEMENTS: gossip as told; all values published at once are equal."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import DEVNULL

import numpy as np
from obeying import obey

from dpwa import DpwaConnection

name, config, elements = sys.argv[1], sys.argv[2], int(sys.argv[3])
connection = DpwaConnection(name, config)


def send(value):
    connection.update_send(np.full(elements, float(value)), 0.5)


def wait():
    parameters, _ = connection.update_wait(0.5)
    return [] if parameters is None else np.unique(parameters).tolist()


def fail():
    raise RuntimeError("this program fails")


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_while_closing():
    """End by Ctrl-C that comes while the node closes."""

    def interrupt_soon():
        while not connection.node.closed:
            time.sleep(0.001)
        interrupt()

    interrupting = threading.Thread(target=interrupt_soon)
    interrupting.start()
    connection.close()
    interrupting.join()  # on a busy machine it comes afterwards


def share_lock():
    """Let the lock on the board outlive this node for a moment, unlike its connections."""
    links = (link for link in Path("/proc/self/fd").iterdir() if link.exists())
    board = next(int(link.name) for link in links if link.readlink().name == "board")
    subprocess.Popen(["sleep", "0.3"], pass_fds=[board], stdout=DEVNULL, stderr=DEVNULL)


signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
obey(
    send=send,
    wait=wait,
    report=lambda: connection.node.report(),
    close=lambda: connection.close(),
    fail=fail,
    interrupt=interrupt,
    interrupt_while_closing=interrupt_while_closing,
    exit=sys.exit,
    share_lock=share_lock,
)
