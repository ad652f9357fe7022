"""What a node tells of itself, written for TensorBoard and read back."""

import warnings

import numpy as np
import pytest
import torch
from support.nodes import config_of

from dpwa.adapters.pytorch import DpwaPyTorchAdapter

with warnings.catch_warnings():  # of what it is built on
    warnings.simplefilter("ignore")
    pytest.importorskip("tensorboard", reason="needs the extra: pip install dpwa[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter


def test_the_events_file_has_the_scalars(tmp_path):
    net, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    config = config_of(2, transport="tcp")
    with (
        DpwaPyTorchAdapter(net, "w1", config) as gossip,
        DpwaPyTorchAdapter(other, "w2", config) as peer,
        SummaryWriter(tmp_path) as writer,
    ):
        step = 0
        while step < 5 or gossip.metrics()["dpwa/merges"] < 2:
            peer.step(1.0)
            gossip.step(1.0 / (1 + step))
            step += 1
            for tag, value in gossip.metrics().items():
                writer.add_scalar(tag, value, step)
        last = gossip.metrics()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert {"dpwa/loss", "dpwa/consensus_distance", "dpwa/staleness"} < set(found.Tags()["scalars"])
    losses = found.Scalars("dpwa/loss")
    assert [event.step for event in losses] == [*range(1, step + 1)]
    assert losses[-1].value == np.float32(last["dpwa/loss"])
    assert found.Scalars("dpwa/consensus_distance")[-1].value == np.float32(
        last["dpwa/consensus_distance"]
    )
