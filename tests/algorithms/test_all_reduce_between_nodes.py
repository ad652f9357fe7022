"""AllReduceSGD and AllReduceEA on the collectives of real nodes, some of which leave and return."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
import torch
from support.nodes import at_once, config_of

from dpwa import DpwaConnection
from dpwa.algorithms import AllReduceSGD

NAMES = ("w1", "w2", "w3")


def together(config, task, names=NAMES):
    """Run `task(connection)` on a thread for each node; return what they return, by name."""
    outcomes = {}
    with ExitStack() as stack:
        made = [stack.enter_context(DpwaConnection(name, config)) for name in names]

        def run(connection):
            outcomes[connection.name] = task(connection)

        at_once([lambda connection=connection: run(connection) for connection in made])
    return outcomes


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_epochs_are_uneven_and_parameters_equal_after_each(transport):
    def task(connection):
        sgd, net = AllReduceSGD(connection), torch.nn.Linear(3, 2)
        params, seen = list(net.parameters()), []
        for steps in ((2, 0, 3), (0, 1, 1), (0, 0, 0)):
            for _ in range(steps[connection.rank]):
                net(torch.ones(1, 3)).sum().backward()
                seen.append(sgd.sum_and_normalize_gradients([p.grad for p in params]))
                with torch.no_grad():
                    params[0] -= params[0].grad
            sgd.synchronize_parameters(params)
            seen.append(params[0].detach().numpy().tobytes())
        return seen

    outcomes = together(config_of(3, transport=transport), task)
    counts = {name: [n for n in seen if isinstance(n, int)] for name, seen in outcomes.items()}
    assert counts == {"w1": [2, 2], "w2": [2], "w3": [2, 2, 1, 2]}
    copies = {tuple(n for n in seen if isinstance(n, bytes)) for seen in outcomes.values()}
    assert len(copies) == 1


@pytest.mark.slow
def test_a_restarted_node_gets_the_optimizer_and_the_epoch_as_the_page_shows():
    config, is_gone, is_back = config_of(2), threading.Event(), threading.Event()

    def begin(connection):
        net, epoch = torch.nn.Linear(2, 1), torch.zeros(1)
        optimizer = torch.optim.AdamW(net.parameters())
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        state = [value for kept in optimizer.state.values() for value in kept.values()]
        sgd, everything = AllReduceSGD(connection), [net.state_dict(), state, epoch]
        sgd.synchronize_parameters(everything)
        return sgd, optimizer, everything

    def values(everything):
        return [value.tolist() for value in (*everything[0].values(), *everything[1])]

    def leaves(connection):
        begin(connection)
        connection.close()
        is_gone.set()
        with DpwaConnection("w2", config) as again:
            is_back.set()
            *_, everything = begin(again)
            return values(everything)

    def task(connection):
        if connection.name == "w2":
            return leaves(connection)
        sgd, optimizer, everything = begin(connection)
        assert is_gone.wait(60)
        while not is_back.is_set() or connection.world_size < 2:
            sgd.sum_gradients(torch.zeros(1))
            optimizer.step()
            everything[2] += 1
            sgd.synchronize_parameters(everything)
        assert everything[2] > 0
        return values(everything)

    one, two = together(config, task, ("w1", "w2")).values()
    assert one == two
