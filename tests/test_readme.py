"""The code of the README runs as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from support.nodes import config_of

import dpwa
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.config import load_config

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(autouse=True)
def _a_node_of_its_own(tmp_path, monkeypatch):
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump(config_of(1)))  # at its end it would wait for others
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPWA_NAME", "w1")
    monkeypatch.setenv("DPWA_CONFIG", str(path))


def test_the_training_loop():
    net = torch.nn.Linear(2, 1)
    steps = []

    def train_step():
        steps.append(len(steps))
        return torch.nn.functional.mse_loss(net(torch.ones(4, 2)), torch.ones(4, 1))

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    names = {"net": net, "optimizer": optimizer, "steps": 3, "train_step": train_step}
    exec(blocks("python")[0], {"torch": torch, **names})
    assert steps == [0, 1, 2]
    assert torch.equal(torch.load("model.pt")["weight"], net.weight)


def test_the_line_by_hand_needs_no_other_import():
    (line,) = re.findall(r"instead of\s+`dpwa.connect`:\s+`(.*?)`", README)
    net = torch.nn.Linear(2, 1)
    names = {"dpwa": dpwa, "net": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}
    with eval(line, names) as gossip:
        assert gossip.name == "w1"


def test_the_optimizer_that_gossips():
    net = torch.nn.Linear(2, 1)
    with DpwaPyTorchAdapter(net, "w1", "nodes.yaml") as gossip:
        exec(blocks("python")[1], {"torch": torch, "net": net, "gossip": gossip, "loss": 0.5})
        assert gossip.clock == 1.0


def test_the_loop_of_raw_parameters():
    names = {"parameters": np.ones(5), "loss": 0.5}
    exec(blocks("python")[2], names)
    assert (names["parameters"] == 1).all()


def test_the_collectives_of_a_node_that_is_alone(tmp_path):
    (tmp_path / "alone.yaml").write_text(yaml.safe_dump(config_of(1)))
    (code,) = [block for block in blocks("python") if "AllReduceSGD" in block]
    parameters, steps = np.zeros(3), []
    names = {"name": "w1", "config": "alone.yaml", "parameters": parameters, "batches": range(3)}
    names |= {"gradients": lambda _: np.ones(3), "step": steps.append}
    exec(code, names)
    assert [list(gradients) for gradients in steps] == [[1.0] * 3] * 3
    assert (parameters == 0).all()


def test_the_configuration():
    config = load_config(yaml.safe_load(blocks("yaml")[0]), environ={})
    assert [node.name for node in config.nodes] == ["w1", "w2"]
