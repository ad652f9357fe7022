"""Train with gossip of dpwa. The configuration (`DPWA_CONFIG`) names the `algorithm`."""

from model import Worker, build, set_lr

import dpwa
import dpwa.adapters.pytorch  # `connect` would import this module after the start of the clock

net, optimizer = build()
worker = Worker()
with dpwa.connect(net, optimizer) as gossip:
    loss = None
    while True:
        gossip.update_send(loss)
        set_lr(optimizer, gossip.updates)
        inputs, targets = worker.batch()
        optimizer.zero_grad()
        out = net(inputs, targets)
        out.backward()
        optimizer.step()
        loss = out.item()
        merged = gossip.update_wait(loss)
        worker.stepped(net, gossip.updates, merged=merged is not None)
