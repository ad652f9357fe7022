"""Gossip within the Trainer of Transformers, the real one."""

import sys
from types import SimpleNamespace

import pytest
import torch
from support import trainers
from support.extras import needs
from support.nodes import config_of

pytestmark = needs("transformers", "accelerate", extra="hf")
EXAMPLE = trainers.EXAMPLES / "transformers_trainer.py"


def test_it_merges_at_every_optimizer_step_and_goes_on_after_an_interruption(tmp_path):
    trainers.assert_merges_at_every_step_and_goes_on_after_an_interruption(
        "trainer_node.py", tmp_path
    )


def test_the_example_runs(tmp_path):
    printed = trainers.launch(tmp_path, EXAMPLE)
    trainers.assert_trained_to_the_end(printed, 60)
    assert printed.count("finished together with") == 2


def test_a_trainer_that_has_started_a_process_group_is_told_what_to_do(tmp_path):
    done = trainers.run(
        tmp_path, sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node=2", EXAMPLE,
    )  # fmt: skip
    assert done.returncode != 0
    assert "the Trainer has started torch.distributed" in done.stderr


@pytest.mark.parametrize(
    ("counted", "updates", "stops"), [(40, 60, True), (39, 59, False), (60, 60, False)]
)
def test_a_trainer_that_has_taken_over_ends_with_the_others(counted, updates, stops):
    from transformers import TrainerState

    from dpwa.integrations.transformers import DpwaCallback

    callback, control = DpwaCallback(), SimpleNamespace(should_training_stop=False)
    callback.gossip = SimpleNamespace(updates=updates, clock=updates - 0.5)
    state = TrainerState(max_steps=60, global_step=counted)
    callback.on_step_end(None, state, control)
    assert control.should_training_stop == stops


def test_the_steps_of_a_peer_count_after_a_resume_too(tmp_path):
    from transformers import TrainerState

    from dpwa.integrations.transformers import DpwaCallback

    callback, control = DpwaCallback(), SimpleNamespace(should_training_stop=False)
    callback.gossip = SimpleNamespace(updates=27, clock=26.5)
    saved = TrainerState(max_steps=30, global_step=20)
    callback.on_step_end(None, saved, control)
    saved.save_to_json(tmp_path / "trainer_state.json")

    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    state = TrainerState.load_from_json(tmp_path / "trainer_state.json")
    resumed = DpwaCallback(config=config_of(1), name="w1")
    resumed.on_train_begin(
        None, state, control, model=net, optimizer=optimizer, lr_scheduler=scheduler
    )
    assert (resumed.gossip.clock, resumed.gossip.updates) == (26.5, 27)  # not 20, as counted
    while not control.should_training_stop:
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.global_step += 1
        resumed.on_step_end(None, state, control)
    resumed.gossip.close()
    assert (state.global_step, resumed.gossip.updates) == (23, 30)
