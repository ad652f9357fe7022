"""Donors that die or stand still while they hand on their state: real processes."""

import threading

import numpy as np
import pytest
from support.nodes import config_of, eventually, is_connected
from support.state_donors import ALONE, donor_process, wait_until_training

from dpwa import DpwaConnection
from dpwa.testing import Fault, FaultPlan

ELEMENTS = 4_000_000  # of float64: 31 pieces


@pytest.mark.parametrize(
    "fault",
    [
        Fault("state.asked", 1, "SIGKILL"),
        Fault("state.offered", 1, "SIGSTOP"),
        Fault("state.piece_served", 5, "SIGKILL"),
        Fault("state.piece_served", 5, "SIGSTOP"),
    ],
    ids=str,
)
def test_the_rest_comes_from_another_when_a_donor_dies_or_stands_still(tmp_path, fault):
    config = config_of(3, **ALONE, initial_state_timeout_s=30)
    found = []
    with (
        donor_process(tmp_path, "w1", config, ELEMENTS, 1.0, plan=FaultPlan((fault,))) as one,
        donor_process(tmp_path, "w2", config, ELEMENTS, 2.0) as two,
        DpwaConnection("w3", config) as joiner,
    ):
        for process in (one, two):
            wait_until_training(process)
        eventually(lambda: all(is_connected(joiner, name) for name in ("w1", "w2")))
        two.stop()  # so that the first one is the first to be asked
        fetching = threading.Thread(target=lambda: found.append(joiner.fetch_state()))
        fetching.start()
        assert one.wait_for_fault().name == fault.signal
        two.resume()
        fetching.join()
        donors = joiner.node.report()["state"]["donors"]
    ((parameters, clock),) = found
    values = np.unique(parameters)
    assert 2.0 in values
    assert set(values) <= {1.0, 2.0}
    assert donors == [name for name, value in (("w1", 1.0), ("w2", 2.0)) if value in values]
    assert clock >= 1.0
