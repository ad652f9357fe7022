"""fork_users.py CHECKPOINTS: fork children that use their parent's nodes, and end in several ways.

One line of JSON for each way to end: [way, what the calls raised, exit status, value that the
parent's peer merges afterwards, slots of the parent that are there].
"""

import gc
import json
import multiprocessing
import os
import sys
import time
import warnings
from pathlib import Path

import torch

from dpwa import DpwaConnection
from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.launch.ports import free_ports
from dpwa.tables.node_tables import Tables

warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
ports = free_ports(3)
nodes = [{"name": f"w{i}", "host": "127.0.0.1", "port": ports[i - 1]} for i in (1, 2)]
config = {
    "nodes": nodes,
    "interpolation": "constant",
    "constant": {"value": 1.0},
    "checkpoint": {"dir": sys.argv[1], "every_steps": 1},
}
net = torch.nn.Linear(3, 3)
gossip = DpwaPyTorchAdapter(net, "w1", config)
optimizer = GossipOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), gossip)
other = torch.nn.Linear(3, 3)
peer = DpwaPyTorchAdapter(other, "w2", config)
alone = DpwaConnection("alone", {"join": [], "listen": f"tcp://127.0.0.1:{ports[2]}"})
tables = Tables(alone)
table = tables.array(4)
table.add([1, 1, 1, 1], sync=True)


def publish(value):
    with torch.no_grad():
        net.weight.fill_(value)
    gossip.update_send(0.1)


def merged(value):
    """What the peer merges once the parent has published a value, after some rounds at most."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        publish(value)
        peer.update_send(0.1)
        if peer.update_wait(0.1) is not None and other.weight[0, 0].item() == value:
            gossip.update_wait()
            return value
        gossip.update_wait()
    return other.weight[0, 0].item()


def use():
    with torch.no_grad():
        net.weight.fill_(749.0)
    calls = {
        "update_send": lambda: gossip.update_send(0.1),
        "update_wait": lambda: gossip.update_wait(0.1),
        "step": lambda: gossip.step(0.1),
        "optimizer": lambda: optimizer.step(loss=0.1),
        "include_optimizer": lambda: gossip.include_optimizer(torch.optim.SGD(net.parameters())),
        "clock": lambda: gossip.clock,
        "peers": lambda: gossip.peers,
        "leader": lambda: gossip.leader,
        "barrier": lambda: gossip.barrier(),
        "members": lambda: gossip.members,
        "all_reduce": lambda: gossip.all_reduce(torch.ones(1)),
        "connection.send": lambda: alone.update_send(b"749"),
        "connection.wait": lambda: alone.update_wait(),
        "connection.fetch_state": lambda: alone.fetch_state(),
        "connection.wait_for_peers": lambda: alone.wait_for_peers(),
        "connection.add_peer": lambda: alone.add_peer("w9", "127.0.0.1", 1),
        "table.add": lambda: table.add([1, 1, 1, 1]),
        "table.get": lambda: table.get(),
        "tables.barrier": lambda: tables.barrier(),
        "tables.array": lambda: tables.array(4),
        "close": lambda: (tables.close(), gossip.close(), alone.close()),
        "repr": lambda: repr(gossip) + repr(alone),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = ""
        except Exception as error:  # noqa: BLE001
            found[name] = type(error).__name__
    return found


def child(way, writer):
    global gossip, optimizer, peer, alone, tables, table
    os.write(writer, json.dumps(use()).encode())
    os.close(writer)
    if way == "collected":
        del gossip, optimizer, peer, alone, tables, table
        gc.collect()
    if way == "os._exit":
        os._exit(0)
    if way == "inside with":
        with gossip:
            sys.exit(0)
    if way != "multiprocessing":
        sys.exit(0)


def ended(way):
    reader, writer = os.pipe()
    if way == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=child, args=(way, writer))
        process.start()
        os.close(writer)
        process.join()
        status = process.exitcode
    else:
        pid = os.fork()
        if pid == 0:
            sys.stdout = None  # the lines are the parent's
            child(way, writer)
        os.close(writer)
        status = os.waitpid(pid, 0)[1]
    with open(reader) as told:  # noqa: PTH123
        return json.load(told), status


class Holding(torch.utils.data.Dataset):
    def __init__(self):
        self.gossip = gossip

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


merged(1.0)
folder = Path("/dev/shm") / gossip.connection.node._context.pool.shared.name
ways = ["sys.exit", "os._exit", "multiprocessing", "collected", "inside with"]
for number, way in enumerate(ways, start=2):
    found, status = ended(way)
    slots = sum(path.name.startswith("slot") for path in folder.iterdir())
    print(json.dumps([way, found, status, merged(float(number)) == number, slots]), flush=True)
loader = torch.utils.data.DataLoader(
    Holding(), num_workers=2, multiprocessing_context="fork", persistent_workers=True
)
seen = sorted(int(item) for batch in loader for item in batch)
print(json.dumps(["loader", seen, 0, merged(9.0) == 9.0, table.get().tolist()]), flush=True)
del loader  # else its workers keep the port
gossip.close()
again = DpwaPyTorchAdapter(net, "w1", config)
print(json.dumps(["again", repr(again)]), flush=True)
again.close()
peer.close()
tables.close()
alone.close()
