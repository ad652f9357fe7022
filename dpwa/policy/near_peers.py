"""Near peers: of more peers than a node may be connected to, those that it is connected to now.

They are asked and told before others: a new connection costs more than a message, at both ends.
Some of the others are drawn all the same, so that in the end all are asked and told, and parameters
mix with those of all.
"""

from __future__ import annotations

import random

FAR_SHARE = 0.25  # of draws, in which all take part alike


def is_among_all(rng: random.Random) -> bool:
    """Draw whether all peers take part in a draw, or only those that are near."""
    return rng.random() < FAR_SHARE
