"""docs/migration.md: what it says of old programs is so."""

import re
from pathlib import Path

import pytest

from dpwa import DpwaConnection
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
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (DOCS / target).is_file()
