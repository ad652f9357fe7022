"""All parts of a late node's state are of one moment, whoever dies: real processes."""

import json

import pytest
from support.nodes import config_of
from support.processes import PROGRAMS, ended, start
from support.state_donors import ForkedProcess

from dpwa.data.layout import Layout
from dpwa.state.safetensors_image import ImageLayout, State, StatePart
from dpwa.state.service import DonorSnapshot
from dpwa.testing import Fault, FaultPlan

FAST, SLOW = 0.002, 0.011


def trained(config, name, pause, plan=None):
    """A node that trains from the beginning, in a process of its own."""
    own = json.dumps({**config, "initial_state": "own"})
    arguments = [name, own, "--pause", pause]
    return ForkedProcess(PROGRAMS / "staggered.py", *arguments, plan=plan or FaultPlan())


def wait_until(process, updates):
    counts, _ = json.loads(process.popen.stdout.readline())
    assert counts[0] == 0
    while int(process.popen.stdout.readline()) < updates:
        pass


def late(config, *options):
    """The counts that a late node begins with, and its donors."""
    process = start("staggered.py", "w3", json.dumps(config), *options)
    with ended(process):
        return json.loads(process.stdout.readline())


@pytest.mark.parametrize("options", [(), ("--later",)], ids=["at once", "the optimizer later"])
def test_all_that_a_late_node_takes_over_is_of_one_update(options):
    config = config_of(3, transport="tcp")
    with trained(config, "w1", FAST) as one, trained(config, "w2", SLOW) as two:
        wait_until(one, 100)
        wait_until(two, 50)
        counts, donors = late(config, *options)
    assert len(set(counts)) == 1
    assert counts[0] >= 50
    assert len(donors) == 1


@pytest.mark.parametrize("signal", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.slow)])
def test_if_the_donor_is_lost_between_two_parts_both_are_of_another(signal):
    config = config_of(3, transport="tcp", initial_state_timeout_s=20, fetch_probability=0.0)
    # The module is offered first, then the optimizer: of the latter, nothing comes.
    plan = FaultPlan((Fault("state.offered.optimizer", 1, signal),))
    with trained(config, "w1", FAST, plan) as one, trained(config, "w2", FAST) as two:
        wait_until(one, 50)
        two.stop()  # so that the first one is asked first
        process = start("staggered.py", "w3", json.dumps(config))
        with ended(process):
            assert one.wait_for_fault().name == signal
            two.resume()
            counts, donors = json.loads(process.stdout.readline())
    assert donors == ["w2"]
    assert len(set(counts)) == 1
    assert counts[0] > 0


def test_if_the_only_donor_is_lost_between_two_parts_the_module_stays_and_it_is_said():
    config = config_of(3, transport="tcp", initial_state_timeout_s=20)
    plan = FaultPlan((Fault("state.offered.optimizer", 1, "SIGKILL"),))
    with trained(config, "w1", FAST, plan) as one:
        wait_until(one, 50)
        process = start("staggered.py", "w3", json.dumps(config))
        with ended(process):
            (updates, batches, *rest), donors = json.loads(process.stdout.readline())
            process.kill()
            told = process.stderr.read()
    assert donors == ["w1"]
    assert updates == batches >= 50
    assert rest == [0, 0, 0]
    assert "w3: this node starts with its own optimizer, because no peer has sent all of" in told


LAYOUT = ImageLayout(Layout(()))


def token(updates=7, numbers=b"numbers", byte=3):
    image = LAYOUT.empty()
    image = image.repeat(1 << 18)
    image[1 << 20] = byte
    parts = {"model": StatePart(LAYOUT.tensors, LAYOUT, image, numbers)}
    return DonorSnapshot(State(float(updates), updates, parts), taken=0.0, asked=0.0).token


def test_copies_have_the_same_name_if_and_only_if_they_are_equal():
    assert token() == token()
    assert len({token(), token(updates=8), token(numbers=b"others"), token(byte=4)}) == 4
