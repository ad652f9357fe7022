"""`algorithm: together` beside DistributedDataParallel itself, on the same batches."""

import json

import pytest
from support.nodes import config_of
from support.processes import ended, start
from support.times import PROCESS_HANGS_AFTER_S

# Relative to the length of all parameters. Muon computes its steps in bfloat16, which makes much of
# what differs in rounding. The mean of two is the same in any order.
MAX_APART = {"SGD": 1e-6, "AdamW": 1e-6, "Muon": 2.0**-8}


@pytest.mark.parametrize(
    ("count", "transport"),
    [
        (3, "auto"),
        pytest.param(2, "tcp", marks=pytest.mark.slow),
        pytest.param(2, "auto", marks=pytest.mark.slow),
        pytest.param(3, "tcp", marks=pytest.mark.slow),
    ],
)
def test_fifty_steps_are_those_of_ddp_to_rounding(count, transport, tmp_path):
    configs = {
        kind: config_of(count, algorithm="together", log_level="error", transport=transport)
        for kind in MAX_APART
    }
    program, store = "together_beside_ddp.py", tmp_path / "store"
    ranks = [start(program, rank, count, store, json.dumps(configs)) for rank in range(count)]
    with ended(*ranks):
        found = [json.loads(rank.communicate(timeout=PROCESS_HANGS_AFTER_S)[0]) for rank in ranks]
    for kind, most in MAX_APART.items():
        assert {rank[kind][1] for rank in found} == {count}
        assert len({rank[kind][2] for rank in found}) == 1
        assert max(rank[kind][0] for rank in found) <= (0.0 if count == 2 else most)
