"""loader_workers.py fork|spawn|unguarded PORT PORT: gossip while workers of a DataLoader load.

Prints the sum of what was loaded, and how many batches came while something was merged. An
unguarded script does without `if __name__ == "__main__":`, and spawns.
"""

import sys

import torch
from torch.utils.data import DataLoader

import dpwa


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def main():
    way, *ports = sys.argv[1:]
    nodes = [
        {"name": f"w{index}", "host": "127.0.0.1", "port": int(port)}
        for index, port in enumerate(ports, start=1)
    ]
    settings = {"nodes": nodes, "initial_state": "own"}
    torch.manual_seed(0)
    net, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    with (
        dpwa.connect(other, name="w2", **settings) as peer,
        dpwa.connect(net, name="w1", **settings) as gossip,
    ):
        context = "fork" if way == "fork" else "spawn"
        loader = DataLoader(Numbers(), 4, num_workers=2, multiprocessing_context=context)
        total, merges = 0.0, 0
        for _ in range(2):
            for batch in loader:
                peer.step(0.5)
                merges += gossip.step(net(batch).mean()) is not None
                total += batch.sum().item()
    print(total, merges)


if __name__ == "__main__" or sys.argv[1] == "unguarded":
    main()
