"""Train one worker on the whole text, as a baseline without communication."""

from itertools import count

from model import Worker, build, set_lr

net, optimizer = build()
worker = Worker()
for step in count():
    set_lr(optimizer, step)
    inputs, targets = worker.batch()
    optimizer.zero_grad()
    net(inputs, targets).backward()
    optimizer.step()
    worker.stepped(net, step + 1)
