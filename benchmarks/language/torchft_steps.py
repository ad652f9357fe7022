"""Train with torchft 0.2.0. In each step, all live workers average their gradients."""

import torch
from model import Worker, build, set_lr
from torchft import DistributedDataParallel, Optimizer
from torchft_manager import manager_of


class SteadyDDP(DistributedDataParallel):
    """torchft's DDP with a hook that survives a failed all-reduce.

    The original hook asserts `fut._fut`, which is None after a failed all-reduce. With Gloo, this
    ends all workers after a kill. Here, the step continues until the manager discards it.
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
