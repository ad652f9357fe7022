"""`algorithm: together`: gradients of one node that are not finite spoil no other node."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.nodes import config_of
from torch import nn

import dpwa

RATE = 0.5
LARGE, SMALL = 5000, 7  # numbers: the first do not travel along with what is said of them
STEPS = 6


class Constant(nn.Module):
    """The gradient of each of its numbers is what `forward` is given."""

    def __init__(self):
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in (LARGE, SMALL))

    def forward(self, gradient):
        return sum(gradient * each.sum() for each in self.tensors)


def train(count, damage, steps=STEPS, **settings):
    """Train nodes that have the gradients 1, 2, 4, ...; return their numbers after each step.

    `damage(node, step, gradient)` is what becomes of that of a tensor, which is made last.
    """
    config = config_of(count, algorithm="together", **settings)

    def run(index):
        net, found = Constant(), []
        optimizer = torch.optim.SGD(net.parameters(), RATE)
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:
            net.tensors[0].register_hook(lambda g: damage(index, len(found), g))
            for _ in range(steps):
                gossip.update_send()
                optimizer.zero_grad()
                net(2.0**index).backward()
                optimizer.step()
                gossip.update_wait()
                found.append([each.detach().clone() for each in net.tensors])
            gossip.barrier()
        return found

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def expected(shares):
    """Return what a number is after each step, given what shares are averaged in each."""
    at, found = 0.0, []
    for each in shares:
        at -= RATE * sum(each) / len(each)
        found.append(at)
    return found


DAMAGES = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf}


ALWAYS = range(STEPS)


@pytest.mark.parametrize(
    ("count", "transport", "damage", "when"),
    [
        (2, "auto", "nan", (0,)),
        (2, "auto", "-inf", ALWAYS),
        (2, "tcp", "inf", ALWAYS),
        (3, "auto", "-inf", (3,)),
        (3, "auto", "inf", (0, 2)),
        (3, "tcp", "nan", (3,)),
    ],
)
def test_the_share_of_a_node_that_is_not_finite_is_left_out(count, transport, damage, when, caplog):
    bad = count - 1 if damage != "inf" else 0

    def damaged(node, step, gradient):
        if node == bad and step in when:
            gradient = gradient.clone()
            gradient[LARGE - 1 - step] = DAMAGES[damage]
        return gradient

    found = train(count, damaged, transport=transport)
    every = [2.0**node for node in range(count)]
    sound = every[:bad] + every[bad + 1 :]
    right = expected([sound if step in when else every for step in range(STEPS)])
    for node in found:
        for step, tensors in enumerate(node):
            for tensor in tensors:
                torch.testing.assert_close(tensor, torch.full_like(tensor, right[step]))
    said = caplog.text
    for name in range(1, count + 1):
        assert (
            f"w{name}: the gradients of w{bad + 1} are not finite, so the average excludes" in said
        )
    assert said.count("DPWA-W084") == count  # once a minute


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_only_the_bucket_that_is_damaged_is_left_out(transport, monkeypatch):
    monkeypatch.setattr("dpwa.adapters.gradient_averaging.BUCKET_BYTES", 1)
    found = train(3, lambda node, _, g: g * torch.nan if node == 1 else g, transport=transport)
    for node in found:
        for step, (large, small) in enumerate(node, start=1):
            torch.testing.assert_close(large, torch.full((LARGE,), -step * RATE * (1 + 4) / 2))
            torch.testing.assert_close(small, torch.full((SMALL,), -step * RATE * (1 + 2 + 4) / 3))


@pytest.mark.parametrize("damaged", [range(2), [1]])
def test_what_is_damaged_on_all_nodes_or_not_guarded_is_averaged_as_it_is(damaged, caplog):
    guard = "off" if len(damaged) == 1 else "finite"
    found = train(
        2, lambda node, step, g: g * torch.nan if node in damaged and step else g, 2, guard=guard
    )
    for first, (large, small) in found:
        assert torch.equal(first[0], torch.full((LARGE,), -RATE * 1.5))
        assert large.isnan().all()
        assert torch.equal(small, torch.full((SMALL,), -2 * RATE * 1.5))
    assert "DPWA-W084" not in caplog.text


def test_what_is_too_large_for_a_codec_counts_as_damaged():
    found = train(2, lambda node, _, g: g * 1e5 if node == 1 else g, codec="fp16")
    for node in found:
        assert torch.equal(node[-1][0], torch.full((LARGE,), -STEPS * RATE))


def test_buffers_of_a_damaged_batch_are_those_of_the_others():
    config = config_of(2, algorithm="together", log_level="error")

    def run(index):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 50), nn.BatchNorm1d(50), nn.Linear(50, 100))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:
            for step in range(4):
                gossip.update_send()
                optimizer.zero_grad()
                inputs = torch.randn(8, 3)
                net(inputs * torch.nan if (index, step) == (1, 2) else inputs).sum().backward()
                optimizer.step()
                gossip.update_wait()
            gossip.barrier()
            return net.state_dict()

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(run, range(2))
    for name, value in one.items():
        assert value.isfinite().all(), name
        assert torch.equal(value, two[name]), name
