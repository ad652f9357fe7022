"""dpwa: gradients are averaged over all members at every step, and parameters gossip now and then.

The gossip (`fetch_probability` in the configuration) draws a restarted worker to the others.
"""

from model import Worker, build, set_lr

import dpwa
import dpwa.adapters.pytorch
from dpwa.errors import LeftBehindError, PeerLost

net, optimizer = build()
worker = Worker()


def average(gossip, gradients):
    """Average in place; return over how many."""
    while True:
        try:
            return gossip.all_reduce(gradients, "mean")[1]
        except LeftBehindError:
            worker.note("left behind")
        except PeerLost as lost:  # the gradients are as they were: again, among those who are left
            worker.note("lost", names=sorted(lost.names))


with dpwa.connect(net, optimizer) as gossip:
    loss = None
    while True:
        gossip.update_send(loss)
        set_lr(optimizer, gossip.updates)
        inputs, targets = worker.batch()
        optimizer.zero_grad()
        out = net(inputs, targets)
        out.backward()
        members = average(gossip, [parameter.grad for parameter in net.parameters()])
        optimizer.step()
        loss = out.item()
        gossip.update_wait(loss)
        worker.stepped(net, gossip.updates, members=members)
