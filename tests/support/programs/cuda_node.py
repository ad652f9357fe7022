"""A node that trains on a CUDA device: mixed precision, a checkpoint, collectives."""

import hashlib
import json
import sys
import time

import torch
from torch import nn

import dpwa

device = torch.device("cuda")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
weights = torch.randn(32, 1, device=device)
steps = int(sys.argv[1])

with dpwa.connect(net, optimizer) as gossip:
    begun = gossip.updates
    torch.manual_seed(1000 + gossip.rank)
    gossip.barrier()
    merges = 0
    for _ in range(begun, steps):
        x = torch.randn(64, 32, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), x @ weights)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        merges += gossip.step(loss) is not None
        time.sleep(0.005)  # some time for a fetch
    summed = torch.full((3,), float(gossip.rank + 1), device=device)
    gossip.all_reduce(summed, "sum")
    sent = torch.full((2,), gossip.rank, dtype=torch.bfloat16, device=device)
    gossip.broadcast(sent, root="w2")
    gossip.finish()
    values = torch.cat([p.detach().flatten() for p in net.parameters()])
    momenta = [s["exp_avg"].device.type for s in optimizer.state.values()]
    print(
        json.dumps(
            {
                "begun": begun,
                "merges": merges,
                "loss": loss.item(),
                "summed": [summed.device.type, *summed.tolist()],
                "sent": [sent.device.type, *sent.tolist()],
                "device": values.device.type,
                "momenta": sorted(set(momenta)),
                "digest": hashlib.sha256(values.cpu().numpy().tobytes()).hexdigest(),
            }
        )
    )
