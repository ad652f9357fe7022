"""Train with streaming DiLoCo of torchft 0.2.0. Every 10 steps, average one of two fragments."""

import torch
from model import Worker, build, set_lr
from torch import nn
from torchft.local_sgd import DiLoCo
from torchft_manager import manager_of

SYNC_EVERY, DELAY = 20, 5
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9  # as in the paper on DiLoCo

net, inner = build()
worker = Worker()
manager = manager_of(worker, net, inner, use_async_quorum=False)
fragments = [
    nn.ModuleList([net.token, net.position, *net.blocks[:2]]),
    nn.ModuleList([*net.blocks[2:], net.norm, net.head]),
]
outer = [
    torch.optim.SGD(each.parameters(), OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True)
    for each in fragments
]
every = SYNC_EVERY // len(fragments)
since = 0  # steps since the last average of a fragment
with DiLoCo(
    manager, fragments, inner, outer, SYNC_EVERY, use_bucketization=True, fragment_sync_delay=DELAY
):
    while True:
        set_lr(inner, manager.current_step() * every + since)
        inputs, targets = worker.batch()
        inner.zero_grad()
        net(inputs, targets).backward()
        inner.step()
        since = (since + 1) % every
        step = manager.current_step() * every + since
        worker.stepped(net, step, members=manager.num_participants())
