"""For programs of this folder: signals that a process sends itself at fault points."""

import os
import signal

from dpwa import fault_points


def signal_at(point, nth, name):
    """Send this process a signal when it reaches a fault point for the n-th time."""
    left = {point: nth}

    def hook(reached):
        if reached in left:
            left[reached] -= 1
            if left[reached] == 0:
                os.kill(os.getpid(), getattr(signal, name))

    fault_points.install(hook)
