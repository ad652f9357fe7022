"""Compare GoSGD in a loop with `push_sum` between nodes. Each node has digits of few classes."""

from __future__ import annotations

import argparse
import random
import threading
from typing import Any

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="steps of each node (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.003, help="learning rate (%(default)s)")
    parser.add_argument("--seeds", type=int, default=8, help="seeds, at least 2 (%(default)s)")
    parser.add_argument("--probability", type=float, nargs="+", default=[0.4, 1.0])
    options = parser.parse_args()
    for probability in options.probability:
        print(f"p = {probability:g}")
        for name, run in WAYS.items():
            show(name, [run(Nodes(options, seed), probability) for seed in range(options.seeds)])


def show(name: str, runs: list[tuple[float, float]]) -> None:
    import numpy as np

    accuracies, weights = np.array(runs).T
    error = accuracies.std(ddof=1) / len(runs) ** 0.5
    weight = "" if np.isnan(weights).all() else f"   mean weight of a step {weights.mean():.2f}"
    print(f"  {name:44}{accuracies.mean():.3f} +- {error:.3f}{weight}", flush=True)


class Nodes:
    """Learners with equal parameters. Each has one part of the digits, sorted by label."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        import numpy as np
        import torch

        from dpwa.demo.data import load_digits
        from dpwa.demo.training import build_model

        torch.set_num_threads(1)
        train, self.test = load_digits()
        order = np.argsort(train.labels, kind="stable")
        self.shards = [train.subset(part) for part in np.array_split(order, options.nodes)]
        self.models = [build_model(seed) for _ in self.shards]
        self.batches = [np.random.default_rng(1000 * seed + rank) for rank in range(options.nodes)]
        self.lr, self.steps, self.seed, self.count = options.lr, options.steps, seed, options.nodes
        self.weights = [1.0] * options.nodes
        self.stepped = 0.0  # the sum of the weights at all steps

    def step(self, rank: int) -> float:
        import torch
        from torch.nn import functional

        shard, model = self.shards[rank], self.models[rank]
        batch = shard.subset(self.batches[rank].integers(len(shard.labels), size=BATCH))
        logits = model(torch.from_numpy(batch.images))
        loss = functional.cross_entropy(logits, torch.from_numpy(batch.labels))
        parameters = list(model.parameters())
        with torch.no_grad():
            for value, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                value.sub_(grad, alpha=self.lr)
        self.stepped += self.weights[rank]
        return float(loss.detach())

    def vector(self, rank: int) -> Any:
        from torch.nn.utils import parameters_to_vector

        return parameters_to_vector(self.models[rank].parameters()).detach().clone()

    def take(self, rank: int, shares: list[tuple[Any, float]]) -> None:
        """Merge all received parameters, with x = (w x + u y) / (w + u), and then w = w + u."""
        import torch
        from torch.nn.utils import vector_to_parameters

        for sent, weight in shares:
            total = self.weights[rank] + weight
            mixed = (self.weights[rank] * self.vector(rank) + weight * sent) / total
            with torch.no_grad():
                vector_to_parameters(mixed, self.models[rank].parameters())
            self.weights[rank] = total
        shares.clear()

    def accuracy(self) -> float:
        import torch
        from torch.nn.utils import vector_to_parameters

        mean = torch.stack([self.vector(rank) for rank in range(self.count)]).mean(0)
        with torch.no_grad():
            vector_to_parameters(mean, self.models[0].parameters())
            guesses = self.models[0](torch.from_numpy(self.test.images)).argmax(1).numpy()
        return float((guesses == self.test.labels).mean())


def in_a_loop(nodes: Nodes, probability: float, *, in_turns: bool) -> tuple[float, float]:
    """Train in a loop. A node merges, takes a step, and may send half of its weight to a peer.

    The nodes do this one after the other, or all at the same time. Source: Blot et al., Gossip
    Training for Deep Learning (2016), algorithm 1.
    """
    rng, everybody = random.Random(nodes.seed), list(range(nodes.count))
    sent: list[list[tuple[Any, float]]] = [[] for _ in everybody]
    for _ in range(nodes.steps):
        for together in [[rank] for rank in everybody] if in_turns else [everybody]:
            for rank in together:
                nodes.take(rank, sent[rank])
            for rank in together:
                nodes.step(rank)
            for rank in together:
                if rng.random() < probability:
                    other = rng.choice([peer for peer in everybody if peer != rank])
                    nodes.weights[rank] /= 2
                    sent[other].append((nodes.vector(rank), nodes.weights[rank]))
    for rank in everybody:
        nodes.take(rank, sent[rank])
    return nodes.accuracy(), nodes.stepped / nodes.steps / nodes.count


def between_nodes(
    nodes: Nodes, probability: float, *, in_step: bool, step_first: bool
) -> tuple[float, float]:
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.launch.ports import free_ports

    listed = [
        {"name": f"w{rank}", "host": "127.0.0.1", "port": port}
        for rank, port in enumerate(free_ports(nodes.count))
    ]
    common = {"seed": nodes.seed, "transport": "tcp", "log_level": "error"}
    config = {"nodes": listed, "algorithm": "push_sum", **common}
    config["push_sum"] = {"probability": probability}
    barrier = threading.Barrier(nodes.count)

    def meet() -> None:
        if in_step:
            barrier.wait()

    def train(rank: int) -> None:
        with DpwaPyTorchAdapter(nodes.models[rank], f"w{rank}", config) as gossip:
            barrier.wait()
            loss = None
            for _ in range(nodes.steps):
                if step_first:
                    loss = nodes.step(rank)
                    meet()
                gossip.update_send(loss)
                meet()
                if not step_first:
                    loss = nodes.step(rank)
                    meet()
                gossip.update_wait(loss)
                meet()
            barrier.wait()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(nodes.count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return nodes.accuracy(), float("nan")


WAYS: dict[str, Any] = {
    "GoSGD in a loop, one node at a time": lambda n, p: in_a_loop(n, p, in_turns=True),
    "GoSGD in a loop, all nodes at once": lambda n, p: in_a_loop(n, p, in_turns=False),
    "push_sum, a barrier after each call": lambda n, p: between_nodes(
        n, p, in_step=True, step_first=False
    ),
    "push_sum, step, update_send, update_wait": lambda n, p: between_nodes(
        n, p, in_step=True, step_first=True
    ),
    "push_sum, without barriers": lambda n, p: between_nodes(n, p, in_step=False, step_first=False),
}


if __name__ == "__main__":
    main()
