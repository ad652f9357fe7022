"""connect_and_merge.py [LATE_S [KILL_ONCE]]: train with what the launcher says until it has merged.

KILL_ONCE, a file that is not there yet: rank 1 kills itself once, when it has merged.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import dpwa

MERGES, SECONDS = 5, 60.0

time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0)
mark = Path(sys.argv[2]) if len(sys.argv) > 2 else None
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
settings = {"timeout_ms": 500, "initial_state": "own", "repeat": "merge", "log_level": "error"}
with dpwa.connect(net, optimizer, **settings) as gossip:
    merges, end = 0, time.monotonic() + SECONDS
    links = gossip.connection.node.links
    while any(state.value != "up" for state in links.values()) and time.monotonic() < end:
        time.sleep(0.01)
        links = gossip.connection.node.links
    while merges < MERGES and time.monotonic() < end:
        merges += gossip.step(0.5) is not None
    if mark is not None and os.environ["RANK"] == "1" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    gossip.finish()
    told = {
        "name": gossip.connection.node.name,
        "nodes": [node.name for node in gossip.connection.node.config.nodes],
        "merges": merges,
        "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        "has_process_group": torch.distributed.is_initialized(),
    }
print(json.dumps(told), flush=True)
