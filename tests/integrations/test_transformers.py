"""Gossip within the Trainer of Transformers, the real one."""

import sys
from types import SimpleNamespace

import pytest
from support import trainers

pytest.importorskip("transformers", reason="needs the extra: pip install dpwa[hf]")
pytest.importorskip("accelerate", reason="needs the extra: pip install dpwa[hf]")

EXAMPLE = trainers.EXAMPLES / "transformers_trainer.py"


def test_it_merges_at_every_optimizer_step_and_goes_on_after_an_interruption(tmp_path):
    trainers.assert_merges_at_every_step_and_goes_on_after_an_interruption(
        "trainer_node.py", tmp_path
    )


def test_the_example_runs(tmp_path):
    printed = trainers.launch(tmp_path, EXAMPLE)
    assert printed.count("in 60 optimizer steps") == 2
    assert printed.count("finished together with") == 2


def test_a_trainer_that_has_started_a_process_group_is_told_what_to_do(tmp_path):
    done = trainers.run(
        tmp_path, sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node=2", EXAMPLE,
    )  # fmt: skip
    assert done.returncode != 0
    assert "the Trainer has started torch.distributed" in done.stderr


@pytest.mark.parametrize(
    ("origin", "updates", "stops"), [("w1", 60, True), ("w1", 59, False), (None, 60, False)]
)
def test_a_trainer_that_has_taken_over_ends_with_the_others(origin, updates, stops):
    from dpwa.integrations.transformers import DpwaCallback

    callback, control = DpwaCallback(), SimpleNamespace(should_training_stop=False)
    connection = SimpleNamespace(states=SimpleNamespace(origin=origin))
    callback.gossip = SimpleNamespace(updates=updates, connection=connection)
    callback.on_step_end(None, SimpleNamespace(max_steps=60), control)
    assert control.should_training_stop == stops
