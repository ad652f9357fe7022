"""What the nodes of all trainers share: their text, waiting for the peer, what they tell.

Each is started as `python PROGRAM FOLDER STEPS STOP`: at step STOP, if it is not 0, it stops as by
Ctrl-C, and goes on from the newest checkpoint in FOLDER the next time.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch

FOLDER = Path(sys.argv[1]) / os.environ["DPWA_NAME"]
STEPS, STOP = map(int, sys.argv[2:])
SETTINGS = {"timeout_ms": 5000, "initial_state": "own", "repeat": "merge", "log_level": "error"}

ROWS = torch.tensor(list(argparse.__doc__.encode()) * 8)[: 64 * 64].view(64, 64)


class NextLetter(torch.nn.Module):
    """Guesses the next letter by the last four."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.letters = torch.nn.Embedding(128, 16)
        self.guess = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 128)
        )

    def forward(self, rows):
        windows = rows.unfold(1, 5, 1)
        guesses = self.guess(self.letters(windows[..., :4]).flatten(2))
        return torch.nn.functional.cross_entropy(guesses.flatten(0, 1), windows[..., 4].flatten())


def newest(pattern):
    return max(FOLDER.glob(pattern), key=lambda path: path.stat().st_mtime, default=None)


class Together:
    """Begins when the peer is connected; notes how it goes."""

    def __init__(self, gossip):
        self.gossip = gossip
        self.losses = []
        self.first_clock = None
        self.outcomes = ()
        self._has_begun = False

    def lost(self, loss):
        self.losses.append(loss)
        if not self._has_begun and self.gossip.gossip.updates > 0:
            self._has_begun = True
            self.gossip.gossip.barrier()

    def meet(self):
        node = self.gossip.gossip.connection.node
        end = time.monotonic() + 60
        while any(link.value != "up" for link in node.links.values()) and time.monotonic() < end:
            time.sleep(0.01)
        self.first_clock = self.gossip.gossip.clock

    def note(self):
        self.outcomes = [
            p["outcomes"] for p in self.gossip.gossip.connection.node.report()["peers"]
        ]

    def serve_until_all_are_here(self):
        """Stop, but only when the peer has come as far."""
        self.gossip.gossip.finish()
        self.gossip.gossip.close()

    def tell(self, **more):
        told = {
            "steps": 0,
            "merges": self.gossip.merges,
            "updates": self.gossip.gossip.updates,
            "losses": self.losses,
            "first_clock": self.first_clock,
            "outcomes": self.outcomes,
            "has_process_group": torch.distributed.is_initialized(),
            **more,
        }
        print(json.dumps(told), flush=True)
