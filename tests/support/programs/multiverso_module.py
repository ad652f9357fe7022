"""A worker whose module takes part in shared training, and what its parameters have changed by."""

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
print(json.dumps([value for change in changes for value in change.flatten().tolist()]), flush=True)
mv.shutdown()
