"""Nodes that train on the same batches are told; a node with a seed of its own is not."""

import re

import pytest
import torch
from support.launched import run_nodes
from support.nodes import config_of, merge_of
from support.processes import PROGRAMS

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

WARNING = re.compile(r"(w\d): trains on the same batches as (w\d)\. .*\[DPWA-W100\]")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["gossip", "together"])
def test_the_same_batches_are_reported_once_and_batches_of_a_seed_of_its_own_are_not(algorithm):
    said = run_nodes(PROGRAMS / "batches_of_seed.py", 3, algorithm)
    assert [WARNING.findall(each) for each in said] == [[("w1", "w2")], [("w2", "w1")], []]
    assert len({re.search(r"seed \d+", each)[0] for each in said}) == 3


@pytest.mark.parametrize("seeds", [(11, 11), (11, 12)])
def test_nodes_with_the_same_first_step_are_reported_by_the_node_that_merges(seeds, caplog):
    config = config_of(2, interpolation="constant")
    nets = []
    for _ in seeds:
        torch.manual_seed(8)
        nets.append(torch.nn.Linear(7, 6))
    with (
        DpwaPyTorchAdapter(nets[0], "w1", config) as one,
        DpwaPyTorchAdapter(nets[1], "w2", config) as two,
    ):
        assert one.seed() == one.seed(0) != two.seed(0) != two.seed(1)
        for net, gossip, seed in zip(nets, (one, two), seeds, strict=True):
            torch.manual_seed(seed)
            loss = net(torch.randn(3, 7)).square().mean()
            loss.backward()
            with torch.no_grad():
                net.weight -= 0.1 * net.weight.grad
            gossip.step(loss)
        merge_of(one, two)
        merge_of(one, two)
    warned = WARNING.findall(caplog.text)
    assert warned == ([("w1", "w2")] if len({*seeds}) == 1 else [])
