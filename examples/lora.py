"""Train a LoRA adapter on a frozen base. The nodes exchange only the adapter.

Run: dpwa launch -n 2 -- python examples/lora.py
"""

import torch
from torch.nn import Linear, Module, Parameter, functional, init

import dpwa


class Lora(Module):
    """A frozen layer plus the product B A. Only B is trained."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = Parameter(init.orthogonal_(torch.empty(rank, base.in_features)), False)
        self.b = Parameter(torch.zeros(base.out_features, rank))

    def forward(self, inputs):
        """Return base(x) + B A x. If A is equal on all nodes, the mean of B A is (mean of B) A."""
        return self.base(inputs) + inputs @ self.a.T @ self.b.T


torch.manual_seed(0)  # all nodes have the same base and the same A
net, inputs = Lora(Linear(64, 32), rank=48), torch.eye(64)
targets = net.base(inputs) + inputs @ net.a.T @ torch.randn(48, 32)  # of the best B
with dpwa.connect(net, adam := torch.optim.Adam([net.b], 0.03), state="trainable") as gossip:
    own = torch.arange(64).chunk(gossip.world_size)[gossip.rank]  # too few inputs to learn B alone
    if gossip.updates == 0:
        gossip.barrier(timeout_s=60)  # wait until all nodes are ready
    while gossip.updates < 300:
        adam.zero_grad()
        (loss := functional.mse_loss(net(inputs[own]), targets[own])).backward()
        adam.step()
        gossip.step(loss)
    gossip.finish()
print(f"error on all inputs {functional.mse_loss(net(inputs), targets):.5f}")
