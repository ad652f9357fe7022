"""Donors that die or stand still while they hand on their state: real processes."""

import contextlib
import re
import threading

import numpy as np
import pytest
from support.nodes import config_of, eventually, is_connected
from support.state_donors import ALONE, donor_process, wait_until_training

from dpwa import DpwaConnection
from dpwa.state import joining
from dpwa.testing import Fault, FaultPlan
from dpwa.wire.state import AskPiece

ELEMENTS = 4_000_000  # of float64
PIECES = 31


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("state.asked", 1, "SIGKILL"), marks=pytest.mark.slow),
        Fault("state.offered.values", 1, "SIGSTOP"),
        Fault("state.piece_served", 5, "SIGKILL"),
        pytest.param(Fault("state.piece_served", 5, "SIGSTOP"), marks=pytest.mark.slow),
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


def pieces_asked(joiner):
    """Which pieces a node asks for from now on."""
    asked, tell = [], joiner.states._joiner.tell

    def told(peer, message):
        if isinstance(message, AskPiece):
            asked.append(message.index)
        tell(peer, message)

    joiner.states._joiner.tell = told
    return asked


def had_come(text):
    """How many MB of how many the last warning says had come."""
    found = re.findall(r"no peer has sent all .*\((.*) of (.*) MB arrived\)", text)
    return tuple(map(float, found[-1]))


def test_a_fetch_that_is_cut_off_says_how_much_had_come_and_the_next_goes_on_with_it(
    tmp_path, caplog
):
    config = config_of(2, **ALONE, initial_state_timeout_s=0.8)
    plan = FaultPlan((Fault("state.piece_served", 9, "SIGSTOP"),))
    with (
        donor_process(tmp_path, "w1", config, ELEMENTS, 1.0, plan=plan) as donor,
        DpwaConnection("w2", config) as joiner,
    ):
        wait_until_training(donor)
        eventually(lambda: is_connected(joiner, "w1"))
        asked, is_stopped = pieces_asked(joiner), False
        while not is_stopped:  # on a busy machine, later than in the first fetch
            assert joiner.fetch_state() is None
            with contextlib.suppress(TimeoutError):
                is_stopped = donor.wait_for_fault(0.0).name == "SIGSTOP"
        came, nbytes = had_come(caplog.text)
        assert nbytes == pytest.approx(8 * ELEMENTS / 1e6, abs=0.1)
        assert 0 < came < nbytes
        donor.resume()
        asked.clear()
        found = None
        while found is None:
            found = joiner.fetch_state()
        parameters, _ = found
    assert len(set(asked)) == PIECES - round(came / 1.048_576)
    assert np.unique(parameters).tolist() == [1.0]


def test_a_fetch_whose_only_donor_dies_says_how_much_had_come(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(joining, "CONNECT_S", 0.3)  # how long it may take to be back
    config = config_of(2, **ALONE)
    plan = FaultPlan((Fault("state.piece_served", 9, "SIGKILL"),))
    with (
        donor_process(tmp_path, "w1", config, ELEMENTS, 1.0, plan=plan) as donor,
        DpwaConnection("w2", config) as joiner,
    ):
        wait_until_training(donor)
        eventually(lambda: is_connected(joiner, "w1"))
        assert joiner.fetch_state() is None
        came, _ = had_come(caplog.text)
        assert came > 0
