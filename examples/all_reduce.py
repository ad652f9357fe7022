"""Train on digits with AllReduceSGD or AllReduceEA. Each node has its own shard of the data.

Run: dpwa launch -n 4 -- python examples/all_reduce.py sgd
     dpwa launch -n 4 -- python examples/all_reduce.py ea

The shards differ in size, so nodes take different numbers of steps. A node that has finished its
shard waits, and does not count in the averages. If you kill a process, the other nodes continue.
"""

import argparse
import os

import numpy as np
import torch
from torch.nn import functional

from dpwa import DpwaConnection
from dpwa.algorithms import AllReduceEA, AllReduceSGD
from dpwa.demo.data import label_skewed_shards, load_digits
from dpwa.demo.training import build_model

EPOCHS, BATCH, LEARNING_RATE = 20, 32, 0.1

parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
parser.add_argument("algorithm", choices=["sgd", "ea"])
algorithm = parser.parse_args().algorithm
if "DPWA_NAME" not in os.environ:
    raise SystemExit("run it with: dpwa launch -n 4 -- python examples/all_reduce.py sgd")
rank, nodes = int(os.environ["DPWA_RANK"]), int(os.environ["DPWA_WORLD_SIZE"])

train, test = load_digits()
shard = train.subset(label_skewed_shards(train.labels, nodes, seed=0)[rank])  # mostly few classes
torch.manual_seed(rank)  # nodes start from different parameters, and synchronize them below
net = build_model(seed=rank)
params = [parameter.detach() for parameter in net.parameters()]  # share memory with the net


def gradients(indices):
    """Return the gradients of the mean loss of the batch with these indices."""
    net.zero_grad()
    outputs = net(torch.from_numpy(shard.images[indices]))
    functional.cross_entropy(outputs, torch.from_numpy(shard.labels[indices])).backward()
    return [parameter.grad for parameter in net.parameters()]


def descend(grads):
    """Take one step of gradient descent, in place."""
    for parameter, gradient in zip(params, grads, strict=True):
        parameter.sub_(gradient, alpha=LEARNING_RATE)


def accuracy():
    """Return the accuracy of the net on the test images of all classes."""
    with torch.no_grad():
        guesses = net(torch.from_numpy(test.images)).argmax(dim=1)
    return (guesses == torch.from_numpy(test.labels)).float().mean().item()


with DpwaConnection(os.environ["DPWA_NAME"], os.environ["DPWA_CONFIG"]) as connection:
    averaging = AllReduceSGD(connection) if algorithm == "sgd" else AllReduceEA(connection, tau=5)
    averaging.synchronize_parameters(params)  # after this call, all nodes have equal parameters
    rng, steps = np.random.default_rng(rank), 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(shard.labels))
        for start in range(0, len(order), BATCH):
            grads = gradients(order[start : start + BATCH])
            if algorithm == "sgd":
                averaging.sum_and_normalize_gradients(grads)
                descend(grads)
            else:
                descend(grads)
                averaging.average_parameters(params)
            steps += 1
        if algorithm == "sgd":
            averaging.synchronize_parameters(params)  # wait for the nodes with more batches
        else:
            averaging.synchronize_center(params)
    if algorithm == "ea":
        averaging.copy_center(params)  # end with the center, which is equal on all nodes
    print(f"{steps} steps, {connection.world_size} nodes, accuracy {accuracy():.3f}")
