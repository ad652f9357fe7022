"""Gossip within the Trainer of Transformers, the real one."""

import sys

import pytest
from support import trainers

pytest.importorskip("transformers", reason="needs the extra: pip install dpwa[hf]")
pytest.importorskip("accelerate", reason="needs the extra: pip install dpwa[hf]")

EXAMPLE = trainers.EXAMPLES / "transformers_trainer.py"


def test_it_merges_at_every_optimizer_step_and_goes_on_after_an_interruption(tmp_path):
    trainers.assert_merges_at_every_step_and_goes_on_after_an_interruption(
        "trainer_node.py", tmp_path
    )


def test_the_example_is_short_and_runs(tmp_path):
    assert len(EXAMPLE.read_text().splitlines()) < 40
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
