"""Processes that train on a CUDA device, with mixed precision, checkpoints and collectives."""

import json

import pytest
import torch
import yaml
from support.launched import nodes_of, said_by
from support.nodes import config_of
from support.processes import PROGRAMS, ended, start

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def train(folder, steps, **settings):
    file = folder / "dpwa.yaml"
    checkpoint = {"dir": str(folder / "checkpoints"), "every_steps": 50}
    file.write_text(yaml.safe_dump(config_of(2, checkpoint=checkpoint, **settings)))
    nodes = nodes_of([str(PROGRAMS / "cuda_node.py"), str(steps)], ["w1", "w2"], file)
    said = said_by(nodes)
    assert [node.returncode for node in nodes] == [0, 0], said
    return [json.loads(out) for out, _ in said]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("algorithm", ["gossip", "elastic", "noloco"])
def test_nodes_train_together_on_a_device_and_go_on_from_a_checkpoint(
    tmp_path, transport, algorithm
):
    first = train(tmp_path, 200, transport=transport, algorithm=algorithm)
    assert [node["begun"] for node in first] == [0, 0]
    for told in first, train(tmp_path, 300, transport=transport, algorithm=algorithm):
        assert len({node["digest"] for node in told}) == 1
        for node in told:
            assert node["merges"] > 0
            assert node["loss"] < 5.0  # 32 at the beginning
            assert node["summed"] == ["cuda", 3.0, 3.0, 3.0]
            assert node["sent"] == ["cuda", 1.0, 1.0]
            assert (node["device"], node["momenta"]) == ("cuda", ["cuda"])
    assert all(node["begun"] >= 200 for node in told)


@pytest.mark.parametrize("kind", ["replicas", "shards"])
def test_ranks_that_hold_a_model_together_gossip_on_a_device(tmp_path, kind):
    program = start("cuda_ranks.py", tmp_path, kind)
    with ended(program):
        out, errors = program.communicate(timeout=110)
    assert program.returncode == 0, errors
    found = [told for *_, told in map(json.loads, out.splitlines())]
    assert len(found) == 4
    for told in found:
        assert (told["merges"] >= 5, told["device"]) == (True, "cuda")
        # All values are moved alike: a rank that is half merged has others than the other ones.
        assert told["least"] == pytest.approx(found[0]["least"], abs=1e-5)
        assert told["largest"] == pytest.approx(told["least"], abs=1e-5)
    assert len({told["digest"] for told in found}) == 1
