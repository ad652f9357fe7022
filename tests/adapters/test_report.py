"""What `dpwa status` tells of a module in training."""

import torch
from support.members import in_lockstep, members
from support.nodes import config_of, eventually


def test_the_distance_to_the_peer_that_was_merged_last_is_told():
    with members(config_of(2, constant={"value": 0.0}), [1.0, 3.0], size=4) as nodes:

        def distances():
            in_lockstep(nodes, 2)
            told = [m.node.report()["training"]["consensus_distance"] for m in nodes]
            return told if all(told) else None

        expected = float(torch.linalg.vector_norm(torch.full((4,), 2.0)))
        assert eventually(distances) == [expected, expected]
