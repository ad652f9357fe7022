"""Train with DDP over Gloo. After a failure, torchrun restarts all ranks from a checkpoint."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from model import Worker, build, set_lr
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT_S = 3.0
TIMEOUT = timedelta(seconds=30)

net, optimizer = build()
worker = Worker()
# In torch 2.13, the store outlives a restart, and contains the addresses of dead ranks. So each
# attempt of torchrun gets a separate prefix in the store.
store = dist.TCPStore(
    os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=TIMEOUT
)
store = dist.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
step, path = 0, worker.folder / "checkpoint.pt"
if path.exists():
    state = torch.load(path)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
ddp = DistributedDataParallel(net)
saved = time.monotonic()
while True:
    set_lr(optimizer, step)
    inputs, targets = worker.batch()
    optimizer.zero_grad()
    ddp(inputs, targets).backward()
    optimizer.step()
    step += 1
    worker.stepped(net, step)
    if rank == 0 and time.monotonic() > saved + CHECKPOINT_S:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
        saved = time.monotonic()
