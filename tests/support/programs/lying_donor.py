"""Train until killed, far ahead of all others, and lie to nodes that ask for the state.

Usage: lying_donor.py NAME CONFIG LIE    ("optimizer": a momentum of another shape; "model": NaN)

Prints "training" once it can be asked.
"""

import itertools
import sys
import time
from dataclasses import replace

import torch
from torch import nn

from dpwa.adapters import training_state
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.adapters.tensor_images import copied, layout_of
from dpwa.adapters.training_state import TrainingState

FAR_AHEAD = 1000.0

name, config, lie = sys.argv[1:]
optimizer_part, capture = training_state.optimizer_part, TrainingState.capture


def with_another_shape(optimizer):
    """The state of an optimizer of which nobody can take a step."""
    part = optimizer_part(optimizer)
    named = {"0.step": torch.tensor(9.0), "0.exp_avg": torch.ones(7), "0.exp_avg_sq": torch.ones(7)}
    layout = layout_of(named.items())
    return replace(part, layout=layout, image=copied(layout, named.items()))


def not_finite(state):
    """A state with a model that is not finite."""
    parts = capture(state)
    parts["model"].image[len(parts["model"].layout.header) :] = 0xFF
    return parts


if lie == "optimizer":
    training_state.optimizer_part = with_another_shape
else:
    TrainingState.capture = not_finite
torch.manual_seed(7)
net = nn.Linear(4, 2)
adam = torch.optim.Adam(net.parameters())
net(torch.ones(1, 4)).sum().backward()
adam.step()
with DpwaPyTorchAdapter(net, name, config, optimizer=adam) as gossip:
    gossip.connection.node.rounds.resume(FAR_AHEAD, int(FAR_AHEAD))
    for number in itertools.count():
        gossip.update_send(0.5)
        if number == 0:
            print("training", flush=True)
        gossip.update_wait(0.5)
        time.sleep(0.005)
