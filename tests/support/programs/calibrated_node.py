"""calibrated_node.py CONFIG INDEX MODEL_BYTES STEP_S SECONDS TASK    (TASK: JSON)

A node that descends the quadratic of the simulator, in a model of any size; its step waits. It is
told by a line when to begin, and by another one when all have ended. Then it prints the time and
the loss of each step.
"""

import json
import sys
import time

import numpy as np
import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.sim.tasks import Quadratic, QuadraticOptions

JITTER = 0.1  # sigma of a log-normal distribution

config, index, nbytes = sys.argv[1], int(sys.argv[2]), int(float(sys.argv[3]))
step_s, seconds, options = float(sys.argv[4]), float(sys.argv[5]), json.loads(sys.argv[6])
nodes = options.pop("nodes")
task = Quadratic(QuadraticOptions(**options), nodes, seed=0)


class Model(torch.nn.Module):
    """The parameters of the task, and others that nothing is done with."""

    def __init__(self, nbytes):
        super().__init__()
        self.x = torch.nn.Parameter(torch.from_numpy(task.starts()[index]))
        rest = nbytes // 4 - 2 * task.dimension
        self.rest = torch.nn.Parameter(torch.zeros(max(1, rest), dtype=torch.float32))


torch.set_num_threads(1)
net = Model(nbytes)
x = net.x.detach().numpy().reshape(1, -1)  # the same memory
number, told, loss = np.array([index]), [], None
rng = np.random.default_rng(index)
with DpwaPyTorchAdapter(net, f"w{index + 1}", config) as gossip:
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        gossip.update_send(loss)
        began = time.monotonic()
        loss = float(task.step(x, number)[0])
        told.append((time.time(), loss))
        taken_s = step_s * float(np.exp(JITTER * rng.normal()))
        time.sleep(max(0.0, began + taken_s - time.monotonic()))
        gossip.update_wait(loss)
    print("done", flush=True)
    sys.stdin.readline()
print(json.dumps(told), flush=True)
