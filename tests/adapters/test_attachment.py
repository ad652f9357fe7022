"""An optimizer that is attached: gossip follows its steps, and the loop stays as it is."""

import gc

import pytest
import torch
from support.nodes import config_of
from test_optimizer import FakeConnection, loss_of, net_of, train

import dpwa
from dpwa.adapters.optimizer import Attachment
from dpwa.errors import UserError


def attached(**settings):
    net = net_of()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    connection = FakeConnection(net, **settings)
    return net, optimizer, connection, Attachment(optimizer, connection)


def test_gossip_follows_every_step_and_training_is_as_without_it():
    plain = net_of()
    train(plain, torch.optim.Adam(plain.parameters(), lr=0.1))
    net, optimizer, connection, attachment = attached()
    train(net, optimizer)
    assert connection.optimizer is optimizer
    assert len(connection.losses) == 3
    assert attachment.last_merge == "merge 3"
    for mine, theirs in zip(plain.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for mine, seen in zip(net.parameters(), connection.seen[-1], strict=True):
        assert torch.equal(mine, seen)  # after the step, not before it


def test_the_loss_is_the_last_one_set():
    net, optimizer, connection, attachment = attached()
    train(net, optimizer, steps=1)
    attachment.loss = 0.5
    train(net, optimizer, steps=2)
    assert connection.losses == [None, 0.5, 0.5]


@pytest.mark.parametrize("fused", [False, True])  # a fused one leaves out the step by itself
def test_a_step_that_a_scaler_skips_is_none(fused):
    net = net_of()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, fused=fused)
    connection = FakeConnection(net)
    attachment = Attachment(optimizer, connection)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(loss_of(net) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(connection.losses) == attachment.merges == 2


def test_a_closed_one_follows_no_more():
    net, optimizer, connection, attachment = attached()
    with attachment:
        train(net, optimizer, steps=1)
    attachment.close()
    train(net, optimizer, steps=1)
    assert len(connection.losses) == 1


def test_other_learning_rates_are_for_a_gossip_optimizer():
    with pytest.raises(UserError, match="`lr_spread`"):
        attached(lr_scale=0.5)


def test_the_loop_goes_on_without_an_adapter_that_is_forgotten_or_closed():
    net = net_of()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    settings = config_of(2, timeout_ms=1, initial_state="own")
    for _ in range(2):  # the second time under the same name
        dpwa.connect(net, name="w1", **settings).attach(optimizer)
        gc.collect()
        train(net, optimizer, steps=1)
    gossip = dpwa.connect(net, name="w1", **settings)
    gossip.attach(optimizer)
    dpwa.close_all()
    train(net, optimizer, steps=2)
    gossip.close()


def test_the_adapter_attaches_one_at_a_time_until_it_is_closed():
    net = net_of()
    first, second = (torch.optim.SGD(net.parameters(), lr=0.1) for _ in range(2))
    settings = config_of(2, timeout_ms=1, initial_state="own")
    with dpwa.connect(net, name="w1", **settings) as gossip:
        one = gossip.attach(first)
        train(net, first, steps=2)
        assert gossip.updates == 2
        two = gossip.attach(second)
        train(net, first, steps=1)
        assert gossip.updates == 2
        train(net, second, steps=1)
        assert gossip.updates == 3
        assert one is not two
    train(net, second, steps=1)  # nobody follows, nothing is raised
