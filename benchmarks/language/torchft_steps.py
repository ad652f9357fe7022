"""torchft 0.2.0: gradients are averaged at every step, over who is there."""

import torch
from model import Worker, build, set_lr
from torchft import DistributedDataParallel, Optimizer
from torchft_manager import manager_of


class SteadyDDP(DistributedDataParallel):
    """As shipped, the hook asserts `fut._fut`, which is None after an all-reduce that failed.

    With Gloo survivors of a kill die of that. Here such a step goes on until the manager
    discards it, as it means to.
    """

    @staticmethod
    def _comm_hook(state, bucket):
        work = state.allreduce(bucket.buffer())
        work.wait()
        future = getattr(work.get_future(), "_fut", None)
        if future is None:
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
        return future


net, inner = build()
worker = Worker()
manager = manager_of(worker, net, inner, use_async_quorum=True)
ddp, optimizer = SteadyDDP(manager, net), Optimizer(manager, inner)
while True:
    step = manager.current_step()
    set_lr(inner, step)
    inputs, targets = worker.batch()
    optimizer.zero_grad()
    ddp(inputs, targets).backward()
    optimizer.step()
    discarded = manager.current_step() == step
    members = manager.num_participants()
    worker.stepped(net, manager.current_step(), members=members, discarded=discarded)
