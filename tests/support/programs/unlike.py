"""A node whose settings, and options of calls, differ by its rank: prints what is said of that."""

import json
import logging
import os

import torch

import dpwa
from dpwa.algorithms import EASGD
from dpwa.errors import MismatchError

torch.set_num_threads(1)
rank, said = int(os.environ["DPWA_RANK"]), []


class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


logging.getLogger("dpwa").addHandler(Keep())
net = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.constant_(net.weight, float(rank))
settings = {
    "algorithm": "local",
    "local": {"period": 1, "lr": (1.0, 0.5)[rank]},
    "buffers": ("average", "keep")[rank],
}
with dpwa.connect(net, torch.optim.SGD(net.parameters(), 0.1), **settings) as gossip:
    gossip.connection.wait_for_peers(1, timeout_s=60)
    easgd = EASGD(gossip, beta=(0.9, 0.5)[rank])
    try:
        easgd.synchronize_parameters([torch.ones(2)])
    except MismatchError as error:
        said.append(str(error))
    for _ in range(3):
        gossip.barrier()
        gossip.step(1.0)
    merges = gossip.connection.node.report()["merges"]
    gossip.barrier()
print(json.dumps({"said": said, "merges": merges, "weight": net.weight.tolist()}))
