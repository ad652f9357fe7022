"""Snapshots of devices that are busy: the copy is complete only some time after it was begun."""

import time

import pytest
import torch
from support.inside import threads_of
from support.members import in_lockstep, members
from support.nodes import config_of, eventually

from dpwa.adapters.module_state import ModuleState

LATE_S = 0.005


class LateCopy:
    """A copy that takes as long as one from a device."""

    def __init__(self, copy):
        self._copy, self._until = copy, time.monotonic() + LATE_S

    def is_ready(self):
        return time.monotonic() >= self._until

    def wait_complete(self):
        time.sleep(max(0.0, self._until - time.monotonic()))
        return self._copy.wait_complete()


@pytest.fixture(autouse=True)
def copies_are_late(monkeypatch):
    real = ModuleState.start_copy
    monkeypatch.setattr(
        ModuleState, "start_copy", lambda *args, **how: LateCopy(real(*args, **how))
    )


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_rounds_go_by_what_is_being_published(transport):
    config = config_of(4, topology="one_peer_exponential", transport=transport)
    with members(config, [1.0, 2.0, 3.0, 4.0]) as nodes:
        eventually(
            lambda: all(
                threads_of(m.node).tx.reaches(peer) for m in nodes for peer in m.adapter.peers
            )
        )
        in_lockstep(nodes, 4)  # to find the memory of the others
        for member, number in zip(nodes, (1.0, 2.0, 3.0, 4.0), strict=True):
            with torch.no_grad():
                member.net.weight.fill_(number)
        in_lockstep(nodes, 2)
        assert [member.x[0].item() for member in nodes] == [2.5] * 4


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("algorithm", ["symmetric", "push_sum"])
def test_transactions_are_made_on_what_is_complete(algorithm, transport):
    extra = {"push_sum": {"probability": 1.0}} if algorithm == "push_sum" else {}
    config = config_of(2, algorithm=algorithm, transport=transport, timeout_ms=1500, **extra)
    merged = []

    def each(member):
        member.adapter.update_send()
        time.sleep(0.02)
        merged.append(member.adapter.update_wait())

    with members(config, [1.0, 2.0]) as nodes:
        eventually(
            lambda: all(
                threads_of(m.node).tx.reaches(peer) for m in nodes for peer in m.adapter.peers
            )
        )
        in_lockstep(nodes, 20, each)
    assert sum(merge is not None for merge in merged) > 10
