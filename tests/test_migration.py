"""docs/migration.md: what it says of old programs is so."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from support.nodes import config_of
from torch.utils.data.distributed import DistributedSampler

import dpwa
from dpwa import DpwaConnection
from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.algorithms import EASGD, AllReduceEA, AllReduceSGD
from dpwa.config import load_config

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "migration.md").read_text()

OF_2017 = """---
- nodes:
  - {name: w1, host: localhost, port: 45000}
  - {name: w2, host: localhost, port: 45001}

# The probability of initiating a fetch parameter request
- fetch_probability: 1
- timeout_ms: 2500
- interpolation: clock
- constant: { value: 0.5 }
- clock: 0
- loss: 0
"""


def test_a_configuration_of_2017_means_what_it_meant(tmp_path):
    path = tmp_path / "dpwa.yaml"
    path.write_text(OF_2017)
    config = load_config(str(path))
    assert [node.name for node in config.nodes] == ["w1", "w2"]
    assert (config.interpolation, config.merge) == ("clock", "interpolate")
    assert (config.fetch_probability, config.timeout_ms, config.algorithm) == (1.0, 2500, "gossip")


@pytest.mark.parametrize(
    ("owner", "kind"),
    [("sgd", AllReduceSGD), ("ea", AllReduceEA), ("connection", DpwaConnection)],
)
def test_every_method_that_it_names_is_there(owner, kind):
    names = set(re.findall(rf"`{owner}\.([a-z_]+)", PAGE))
    assert len(names) >= 2
    assert not [name for name in names if not hasattr(kind, name)]
    assert issubclass(EASGD, AllReduceEA)


def test_every_setting_of_lsgd_that_it_names_loads():
    nodes = [{"name": f"w{n}", "host": "localhost", "port": 45000 + n} for n in range(4)]
    config = {
        "nodes": nodes,
        "algorithm": "lsgd",
        "lsgd": {"p1": 0, "p2": 0, "local_period": 16, "global_period": 64},
        "loss_window": 10,
        "lr_spread": "linear",
        "checkpoint": {"dir": "checkpoints"},
    }
    assert load_config(config).options_of("lsgd").periods(4) == (16, 64)


def test_its_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)", PAGE)
    assert targets
    for target in targets:
        assert (DOCS / target).is_file()


# What stands in the right column of the tables of today's systems is run, settings are loaded.

TODAY = ("DistributedDataParallel", "torchft", "hivemind", "BlueFog")


def new_lines(system):
    """The code in the right column of a system's table, in order."""
    section = PAGE.partition(f"\n## {system}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE)[1:]
    assert len(rows) >= 10
    return [code for _, new in rows for code in re.findall(r"`([^`]+)`", new)]


def kind_of(code):
    if code.startswith("dpwa "):
        return "command"
    return "setting" if re.match(r"[a-z_]+: ", code) else "python"


def lines_of(kind):
    found = [(system, code) for system in TODAY for code in new_lines(system)]
    return [line for line in dict.fromkeys(found) if kind_of(line[1]) == kind]


def shown(line):
    return " ".join(line)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What a script has at hand, as the only node of a configuration in its folder."""
    (tmp_path / "dpwa.yaml").write_text(yaml.safe_dump(config_of(1, log_level="error")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPWA_NAME", "w1")
    net = torch.nn.Linear(2, 1)
    loss = net(torch.ones(3, 2)).square().mean()
    loss.backward()
    return {
        "dpwa": dpwa,
        "torch": torch,
        "net": net,
        "loss": loss,
        "optimizer": torch.optim.SGD(net.parameters(), lr=0.1),
        "data": [1.0, 2.0, 3.0],
        "value": torch.ones(2),
        "x": torch.ones(2),
        "AllReduceSGD": AllReduceSGD,
        "GossipOptimizer": GossipOptimizer,
        "DistributedSampler": DistributedSampler,
    }


@pytest.mark.parametrize("line", lines_of("python"), ids=shown)
def test_new_lines_run(line, names):
    code = line[1]
    if code.endswith(":"):
        code = code.replace('name="w7"', 'name="w1"')
        exec(f"{code}\n    gossip.step(0.5)", names)
        assert names["gossip"].updates == 1
        return
    with dpwa.connect(names["net"], names["optimizer"]) as gossip:
        names |= {"gossip": gossip, "sgd": AllReduceSGD(gossip)}
        exec(code, names)


@pytest.mark.parametrize("line", lines_of("setting"), ids=shown)
def test_new_settings_load(line):
    (setting,) = yaml.safe_load(line[1]).items()
    base = {} if setting[0] in ("join", "listen", "advertise") else config_of(4)
    beside = {"listen": {"join": []}, "advertise": {"join": [], "listen": "tcp://*:7000"}}
    config = load_config({**base, **beside.get(setting[0], {}), **dict([setting])}, environ={})
    loaded = getattr(config, setting[0], None)
    if isinstance(setting[1], dict):
        loaded = config.options_of(setting[0]).model_dump()
        assert setting[1].items() <= loaded.items()
    elif setting[0] == "join":
        assert len(loaded) == len(setting[1])
    else:
        assert loaded == setting[1]


@pytest.mark.parametrize("line", lines_of("command"), ids=shown)
def test_new_commands_are_those_of_the_readme(line):
    """The README has it, too, and the tests of the examples run it."""
    start, _, script = line[1].rpartition(" ")
    assert script == "train.py"
    assert start in (DOCS.parent / "README.md").read_text()
