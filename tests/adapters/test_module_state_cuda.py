"""The flat view of a module on a CUDA device: the same laws as on the CPU."""

import gc
import math

import numpy as np
import pytest
import torch
from test_module_state import snapshot_of, state_of
from torch import nn

from dpwa.data.snapshot import MergeTerms

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def net_of(seed, devices=("cuda", "cuda")):
    """Several megabytes of mixed dtypes, strides and buffers."""
    torch.manual_seed(seed)
    large = nn.Sequential(nn.Linear(700, 900), nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64))
    large[1].to(memory_format=torch.channels_last)
    return nn.Sequential(
        large.to(devices[0]), nn.Linear(300, 500).to(torch.bfloat16).to(devices[1])
    )


def distance(one, two):
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return math.sqrt(sum((p.double() - q.double()).square().sum().item() for p, q in pairs))


@pytest.mark.parametrize("devices", [("cuda", "cuda"), ("cpu", "cuda")])
@pytest.mark.parametrize("with_delta", [False, True])
def test_a_module_on_a_device_is_copied_and_merged_like_one_on_the_host(devices, with_delta):
    own, other = net_of(1, ("cpu", "cpu")), net_of(2, ("cpu", "cpu"))
    host, device, apart = state_of(own), state_of(net_of(1, devices)), distance(own, other)
    before, peer = snapshot_of(device), snapshot_of(state_of(other))
    assert before.tobytes() == snapshot_of(host).tobytes()
    terms = MergeTerms(0.25, before.copy() if with_delta else None)
    merges = host.merging(terms), device.merging(terms)
    for merge in merges:
        merge.merge_bytes(0, peer)
        assert merge.consensus_distance == pytest.approx(apart, rel=0.01)  # of a sample
    for one, two in zip(host.entries, device.entries, strict=True):
        torch.testing.assert_close(one.tensor, two.tensor, check_device=False)


def test_the_snapshot_has_the_values_from_when_the_copy_was_started():
    net = net_of(1)
    state = state_of(net)
    expected, data = snapshot_of(state), np.zeros(state.nbytes, np.uint8)
    copy = state.start_copy(data, check_finite=True)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    assert copy.wait_complete()
    assert copy.is_ready()
    assert data.tobytes() == expected.tobytes()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_found_on_the_device(value):
    net = net_of(1)
    with torch.no_grad():
        net[0][0].weight[3, 5] = value
    state = state_of(net)
    assert not state.start_copy(np.zeros(state.nbytes, np.uint8), True).wait_complete()
    assert state.start_copy(np.zeros(state.nbytes, np.uint8), False).wait_complete() is None


def test_a_sum_that_overflows_is_no_value_that_is_not_finite():
    net = nn.Linear(64, 64, device="cuda")
    nn.init.constant_(net.weight, torch.finfo(torch.float32).max)
    assert snapshot_of(state_of(net)).nbytes


def test_slots_come_and_go():
    state = state_of(net_of(1))
    expected = snapshot_of(state).tobytes()
    for _ in range(20):
        slot = np.zeros(state.nbytes, np.uint8)
        assert state.start_copy(slot, True).wait_complete()
        assert slot.tobytes() == expected
        del slot
        gc.collect()


def test_a_module_that_moves_to_the_device_is_noticed():
    net = net_of(1, ("cpu", "cpu"))
    state = state_of(net)
    expected = snapshot_of(state).tobytes()
    net.cuda()
    state.refresh()
    assert all(entry.tensor.is_cuda for entry in state.entries)
    assert snapshot_of(state).tobytes() == expected
