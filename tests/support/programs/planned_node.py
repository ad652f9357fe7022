"""planned_node.py NAME CONFIG ELEMENTS STEP_MS ROUNDS: train at one pace; tell what rounds took."""

import json
import sys
import time

import torch
from torch import nn

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

WARM_UP = 4  # rounds until both are connected and the buffers are there


class Net(nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(elements))

    def step(self, seconds):
        end = time.monotonic() + seconds
        with torch.no_grad():
            self.weight += torch.randn_like(self.weight)
        time.sleep(max(0.0, end - time.monotonic()))


def main(name, config, elements, step_ms, rounds):
    torch.set_num_threads(1)
    net = Net(int(elements))
    with DpwaPyTorchAdapter(net, name, config) as gossip:
        while gossip.connection.node.links[gossip.peers[0]].value != "up":
            time.sleep(0.01)
        loss = 1.0 + int(name.removeprefix("w")) / 10  # the first one leads, where leaders matter
        waits, merged, before, began = [], 0, 0, 0.0
        for number in range(WARM_UP + int(rounds)):
            if number == WARM_UP:
                before = gossip.connection.node.report()["bytes_received"]
                began = time.monotonic()
            gossip.update_send(loss)
            net.step(int(step_ms) / 1000)
            stepped = time.monotonic()
            merges = bool(gossip.update_wait())
            if number >= WARM_UP:
                merged += merges
                waits.append(time.monotonic() - stepped)
        told = {
            "round_s": (time.monotonic() - began) / len(waits),
            "wait_s": sum(waits) / len(waits),
            "bytes": (gossip.connection.node.report()["bytes_received"] - before) / len(waits),
            "merged": merged,
        }
        print(json.dumps(told), flush=True)
        sys.stdin.readline()  # until the other one has ended, too


if __name__ == "__main__":
    main(*sys.argv[1:])
