"""Gossip for modules: what is merged, in place, and what is left alone."""

import math
import threading
import time

import numpy as np
import pytest
import torch
from support.nodes import config_of, eventually, is_connected, merge_of, status_of
from support.state_donors import two_of
from torch import nn

from dpwa.adapters.merge import Merge
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.errors import ClosedError, ParametersError, UnknownNameError


def filled(net, value):
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.fill_(value)
    return net


def test_a_merge_says_what_was_merged():
    with two_of(filled(nn.Linear(2, 2), 1.0), filled(nn.Linear(2, 2), 3.0)) as (first, second):
        for _ in range(4):
            second.update_send(0.25)
        began = time.monotonic()
        merge = merge_of(first, second, 0.5)
        took_s = time.monotonic() - began
    assert isinstance(merge, Merge)
    assert merge.peer == "w2"
    assert merge.factor == 0.5
    assert merge.peer_loss == 0.5
    assert merge.peer_clock >= 5
    assert merge.staleness < 0  # the peer is ahead
    assert 0.0 <= merge.waited_s <= took_s
    assert merge.consensus_distance == pytest.approx(2 * math.sqrt(6))
    with pytest.raises(AttributeError):
        merge.factor = 1.0


@pytest.mark.parametrize(("transport", "more"), [("shm", 1), ("tcp", 2)])
def test_of_what_was_read_late_the_step_that_a_peer_is_ahead_is_not_counted_twice(transport, more):
    one, two = filled(nn.Linear(2, 2), 1.0), filled(nn.Linear(2, 2), 3.0)
    with two_of(one, two, transport=transport) as (first, second):
        for _ in range(more):  # so its clock is ahead of that of w1 by one at least
            second.update_send(0.5)

        def attempt():
            filled(one, 1.0)
            first.update_send(0.5)
            filled(one, 2.0)  # a step
            second.update_send(0.5)
            return first.update_wait(0.5)

        merge = eventually(attempt)
    ahead = -merge.staleness
    assert 0.9 < ahead <= more
    late = ahead / (1 + 0.5 * ahead) if transport == "shm" else 0.0
    expected = 2 + 0.5 * (3 - (1 - late) * 1 - late * 2)
    for parameter in one.parameters():
        torch.testing.assert_close(parameter, torch.full_like(parameter, expected))


def test_interpolate_scales_the_local_step_and_delta_keeps_it():
    for merge, expected in (("interpolate", 0.5 * 3 + 0.5 * (1 + 10)), ("delta", 2 + 10)):
        one, two = filled(nn.Linear(1, 1), 1.0), filled(nn.Linear(1, 1), 3.0)

        def step(net=one):
            filled(net, 11.0)  # a local step of +10 while the fetch is under way

        with two_of(one, two, merge=merge) as (first, second):
            eventually(lambda: is_connected(first.connection, "w2"))
            merge_of(first, second, 0.5)  # from now on both are ready
            filled(one, 1.0)
            merge_of(first, second, 0.5, step)
        assert one.weight.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    "loss", [0.5, np.float64(0.5), torch.tensor(0.5, requires_grad=True), None]
)
def test_a_loss_may_be_any_number_or_none(loss):
    with two_of(nn.Linear(1, 1), nn.Linear(1, 1)) as (first, second):
        assert merge_of(first, second, loss).peer_loss == (None if loss is None else 0.5)


@pytest.mark.parametrize("merge", ["interpolate", "delta"])
@pytest.mark.parametrize("interpolation", ["constant", "clock", "loss", "leader"])
@pytest.mark.parametrize("told_loss", [math.nan, 0.2])
def test_a_diverged_node_poisons_nobody(merge, interpolation, told_loss, caplog):
    """Whether its loss tells, or its parameters broke in the step after the loss was measured."""
    one, two = filled(nn.Linear(2, 2), math.nan), filled(nn.Linear(2, 2), 3.0)
    with two_of(one, two, interpolation=interpolation, merge=merge) as (first, second):

        def refused():
            first.update_send(told_loss)
            second.update_send(0.1)
            assert second.update_wait(0.1) is None
            return status_of(second.connection, "w1")["health"] == "diverged"

        eventually(refused)
        for _ in range(3):
            refused()
    assert bool((two.weight == 3.0).all())
    told = [m for m in caplog.messages if m.startswith("w2: peer w1 has diverged")]
    assert len(told) == 1


@pytest.mark.parametrize("merge", ["interpolate", "delta"])
def test_a_diverged_node_takes_over_a_healthy_peer(merge):
    one, two = filled(nn.Linear(2, 2), math.nan), filled(nn.Linear(2, 2), 3.0)
    with two_of(one, two, interpolation="loss", merge=merge) as (first, second):

        def attempt():
            second.update_send(0.1)
            first.update_send(math.nan)
            return first.update_wait(math.nan)

        assert eventually(attempt).factor == 1.0
    assert bool((one.weight == 3.0).all())


def test_a_tensor_that_is_replaced_during_the_fetch_is_not_merged_into_nor_the_old_one():
    one, two = filled(nn.Linear(2, 2), 1.0), filled(nn.Linear(2, 2), 3.0)
    with two_of(one, two, merge="interpolate") as (first, second):
        merge_of(first, second, 0.5)
        old = one.weight
        before = old.clone()

        def replace():
            one.weight = nn.Parameter(torch.full((2, 2), 9.0))

        assert merge_of(first, second, 0.5, replace) is not None
        assert torch.equal(old, before)
        assert bool((one.weight == (9.0 + two.weight) / 2).all())

        second.update_send(0.5)
        first.update_send(0.5)
        one.half()
        assert first.update_wait(0.5) is None  # of another layout by now


def compiled(net):
    return torch.compile(net, backend="eager")


NEEDS_CUDA = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize(
    "wrap", [compiled, nn.DataParallel, pytest.param(nn.Module.cuda, marks=NEEDS_CUDA)]
)
def test_a_module_that_is_wrapped_or_elsewhere_gossips_with_a_plain_one(wrap):
    one, two = filled(nn.Linear(2, 2), 1.0), filled(nn.Linear(2, 2), 3.0)
    wrapped = wrap(one)
    device = one.weight.device
    with two_of(wrapped, two) as (first, second):
        merge_of(first, second, 0.5)
    assert one.weight.device == device
    assert bool((one.weight == 2.0).all())


@pytest.mark.parametrize(
    "loss", ["high", [1.0], torch.ones(2), object()], ids=lambda loss: type(loss).__name__
)
def test_a_loss_that_is_no_number_is_the_users_error(loss):
    with (
        DpwaPyTorchAdapter(nn.Linear(1, 1), "w1", config_of(1)) as adapter,
        pytest.raises(ParametersError, match="a loss must be one number or None"),
    ):
        adapter.update_send(loss)


def test_nothing_to_gossip_is_the_users_error_and_leaves_nothing_open():
    before = threading.active_count()
    for net in (nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)):
        with pytest.raises(ParametersError, match="no trainable floating-point parameter"):
            DpwaPyTorchAdapter(net, "w1", config_of(2))
    assert threading.active_count() == before


def test_a_wrong_name_and_use_after_close_are_clear():
    with pytest.raises(UnknownNameError):
        DpwaPyTorchAdapter(nn.Linear(1, 1), "nobody", config_of(2))
    with DpwaPyTorchAdapter(nn.Linear(1, 1), "w1", config_of(2)) as adapter:
        assert (adapter.name, adapter.peers, adapter.clock) == ("w1", ("w2",), 0.0)
    adapter.close()
    with pytest.raises(ClosedError):
        adapter.update_send(0.1)


def test_without_a_fetch_update_wait_returns_none():
    with DpwaPyTorchAdapter(nn.Linear(1, 1), "w1", config_of(1)) as adapter:
        adapter.update_send(0.1)
        assert adapter.update_wait(0.1) is None


def test_what_is_no_module_is_refused():
    with pytest.raises(ParametersError, match=r"net: expected a torch.nn.Module \(got str\)"):
        DpwaPyTorchAdapter("w1", "net", {})
