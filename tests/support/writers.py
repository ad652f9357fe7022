"""What fills a snapshot, where a test publishes one itself."""

import numpy as np

from dpwa.data.snapshot import FinishedCopy


def filling(value, dtype=np.uint8):
    """Return what writes one value everywhere; `value` may be a function, asked each time."""

    def write(data):
        data.view(dtype).fill(value() if callable(value) else value)
        return FinishedCopy(True)

    return write
