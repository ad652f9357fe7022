"""Two groups of two ranks in one run of torchrun; each rank prints its member and its peers."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import dpwa
from dpwa.errors import DpwaError

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank() // 2)
net = nn.Linear(6, 5)
if "all" in sys.argv:
    fully_shard(net)
else:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("group", "rank"))
    fully_shard(net, mesh=mesh["rank"])
try:
    with dpwa.connect(net, log_level="error") as gossip:
        for _ in range(10):
            gossip.step(1.0)
        report = gossip.finish()
        value = float(net.weight.detach().full_tensor().sum())
        line = f"{dist.get_rank()}: {gossip.name} with {report.took_part}, sum {value:.6f}\n"
        sys.stdout.write(line)
except DpwaError as error:
    sys.stdout.write(f"{dist.get_rank()}: {error}\n")
sys.stdout.flush()
dist.barrier()  # torchrun stops all when one that is done ends while Gloo's threads still answer
dist.destroy_process_group()
