"""The center of elastic averaging, as a tester reads it."""

import pytest
import torch
from support.members import members
from support.nodes import config_of
from torch import nn

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.errors import UserError

ELASTIC = {"algorithm": "elastic", "elastic": {"period": 1}}


class Tied(nn.Module):
    """Two names for one parameter, a frozen one and batch norm."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.full((2,), 7.0), requires_grad=False)


def test_it_is_a_state_dict_of_the_center_that_training_does_not_touch():
    net, tester = Tied(), Tied()
    with DpwaPyTorchAdapter(nn.DataParallel(net), "w1", config_of(2, **ELASTIC)) as gossip:
        with torch.no_grad():
            net.first.weight.fill_(1.0)
        gossip.update_send()
        with torch.no_grad():
            net.first.weight.add_(1.0)
            net.norm.running_mean.fill_(5.0)
        before = gossip.center()
        gossip.update_wait()  # alpha = .45 of two nodes, beta = .9: nobody answers
        after = gossip.center()
    assert (before["first.weight"] == 1.0).all()
    assert list(after) == list(net.state_dict())
    for key in ("first.weight", "last.weight"):
        torch.testing.assert_close(after[key], torch.full((3, 3), 1.9))
    torch.testing.assert_close(net.first.weight.detach(), torch.full((3, 3), 1.55))
    assert (after["frozen"] == 7.0).all()
    assert (after["norm.running_mean"] == 5.0).all()
    tester.load_state_dict(after)
    after["first.weight"].fill_(0.0)  # it is a copy
    assert float(tester.first.weight.detach().mean()) == pytest.approx(1.9)


def test_parameters_that_share_memory_without_being_one_have_the_center_both():
    net = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    net[1].weight = nn.Parameter(net[0].weight.detach())
    with DpwaPyTorchAdapter(net, "w1", config_of(2, **ELASTIC)) as gossip:
        gossip.update_send()
        began = net[0].weight.detach().clone()
        with torch.no_grad():
            net[0].weight.add_(1.0)
        center = gossip.center()
    assert sorted(center) == ["0.weight", "1.weight"]
    assert all(torch.equal(value, began) for value in center.values())


def test_parameters_that_overlap_have_the_center_where_they_do():
    net, buffer = nn.Module(), torch.arange(6.0)
    net.first, net.last = (nn.Parameter(part) for part in (buffer[:4], buffer[2:].view(2, 2)))
    with DpwaPyTorchAdapter(net, "w1", config_of(2, **ELASTIC)) as gossip:
        gossip.update_send()
        with torch.no_grad():
            buffer.add_(1.0)
        center = gossip.center()
    assert center["first"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert center["last"].tolist() == [[2.0, 3.0], [4.0, 5.0]]


def test_nodes_that_agree_have_one_center():
    with members(config_of(2, **ELASTIC), [2.0, 2.0]) as nodes:
        for member in nodes:
            member.round()
        centers = [member.adapter.center()["weight"] for member in nodes]
    assert torch.equal(*centers)


def test_there_is_none_before_the_first_update():
    refused = pytest.raises(UserError, match="elastic` has no center before the first update_send")
    with members(config_of(2, **ELASTIC), [2.0]) as [member], refused:
        member.adapter.center()


@pytest.mark.parametrize("name", ["gossip", "lsgd", "noloco"])
def test_algorithms_without_a_center_say_so(name):
    refused = pytest.raises(UserError, match=f"`algorithm: {name}` has no center. .* elastic`")
    with members(config_of(2, algorithm=name), [2.0]) as [member], refused:
        member.adapter.center()
