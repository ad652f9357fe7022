"""Train with dpwa's `all_reduce` of gradients in each step, and with gossip in some of the steps.

The gossip (`fetch_probability` in the configuration) pulls a restarted worker toward the others.
"""

from model import Worker, build, set_lr

import dpwa
import dpwa.adapters.pytorch
from dpwa.errors import LeftBehindError, PeerLost

net, optimizer = build()
worker = Worker()


def average(gossip, gradients):
    """Average the gradients over all members, in place. Return the number of members."""
    while True:
        try:
            return gossip.all_reduce(gradients, "mean")[1]
        except LeftBehindError:
            worker.note("left behind")
        except PeerLost as lost:  # the gradients are unchanged, so retry with the other members
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
