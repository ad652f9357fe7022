"""A worker of dpwa.multiverso that changes the parameters of a module; it prints their changes."""

import json

import torch

import dpwa.multiverso as mv

mv.init()
torch.manual_seed(mv.worker_id())
net = torch.nn.Linear(3, 2)
manager = mv.ModuleParameterManager(net)
mv.barrier()
start = [p.detach().clone() for p in net.parameters()]
with torch.no_grad():
    for parameter in net.parameters():
        parameter += 1.0 + mv.worker_id()
manager.sync()
mv.barrier()
manager.sync()
changes = [p - s for p, s in zip(net.parameters(), start, strict=True)]
found = sorted({round(value, 4) for change in changes for value in change.flatten().tolist()})
mv.shutdown()
print(json.dumps(found), flush=True)
