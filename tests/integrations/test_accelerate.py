"""Gossip within loops of Accelerate, the real one."""

import sys

import pytest
import torch
from support import trainers
from support.extras import needs
from support.nodes import config_of

from dpwa.errors import ClosedError, UserError

pytestmark = needs("accelerate")
EXAMPLE = trainers.EXAMPLES / "accelerate_loop.py"


def test_it_merges_at_every_optimizer_step_and_goes_on_after_an_interruption(tmp_path):
    trainers.assert_merges_at_every_step_and_goes_on_after_an_interruption(
        "accelerate_node.py", tmp_path
    )


def test_the_example_runs(tmp_path):
    printed = trainers.launch(tmp_path, EXAMPLE)
    trainers.assert_trained_to_the_end(printed, 60)
    assert printed.count("finished together with") == 2


def test_an_accelerator_of_several_processes_is_refused_by_name(tmp_path):
    done = trainers.run(
        tmp_path, sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node=2", EXAMPLE,
    )  # fmt: skip
    assert done.returncode != 0
    assert "the Accelerator is MULTI_CPU with 2 process(es)" in done.stderr


@pytest.fixture
def alone():
    """One of two nodes; the other is not there."""
    import accelerate

    from dpwa.integrations.accelerate import DpwaGossip

    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
    net = torch.nn.Linear(3, 1)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    config = config_of(2, timeout_ms=1, initial_state="own", log_level="error")
    yield DpwaGossip(accelerator, model, optimizer, config=config, name="w2", finish=False)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def fail_after_a_step(gossip):
    gossip.step(0.5)
    raise ZeroDivisionError


def test_a_block_that_fails_closes_the_node(alone):
    with pytest.raises(ZeroDivisionError), alone:
        fail_after_a_step(alone)
    assert alone.gossip.updates == 1
    with pytest.raises(ClosedError):
        alone.gossip.step()


def test_there_is_no_step_outside_of_the_block(alone):
    with pytest.raises(UserError, match=r"DpwaGossip\.step works only in a block"):
        alone.step()
    with alone:
        pass
    with pytest.raises(ClosedError):
        alone.step()
