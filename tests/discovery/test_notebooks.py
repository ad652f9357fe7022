"""`dpwa.connect` in cells: run again, after a change, interrupted; and in a script that errs."""

import code
import sys
import textwrap
import traceback

import pytest
from support.interrupts import interrupted
from support.nodes import config_of, eventually
from torch import nn

import dpwa
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.errors import AddressError, ClosedError

CONNECT = "gossip = dpwa.connect(net, config=config, name='w1')"


class Notebook(code.InteractiveInterpreter):
    """Runs cells in names of its own, as the prompt does; what they show of errors is kept."""

    def __init__(self, **names):
        super().__init__({"__name__": "__main__", "dpwa": dpwa, **names})
        self.shown = ""

    def showtraceback(self):
        self.shown = traceback.format_exc()

    def run(self, cell):
        """Run a cell; return what is shown of an error."""
        self.shown = ""
        self.runsource(textwrap.dedent(cell), symbol="exec")
        return self.shown


@pytest.fixture
def prompt(monkeypatch):
    """What Python's prompt and IPython set, which says that the session is interactive."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    yield
    dpwa.close_all()


@pytest.fixture
def config():
    return config_of(2, initial_state="own")


@pytest.fixture
def notebook(prompt, config):
    return Notebook(net=nn.Linear(2, 2), nn=nn, config=config)


def merges(notebook, other):
    """Have the node of the notebook merge another one's parameters."""

    def attempt():
        other.step(0.5)
        assert notebook.run("merge = gossip.step(0.5)") == ""
        return notebook.locals["merge"]

    return eventually(attempt)


def test_a_cell_that_is_run_again_replaces_the_node_and_says_so(notebook, config, caplog):
    with DpwaPyTorchAdapter(nn.Linear(2, 2), "w2", config) as other:
        assert notebook.run(CONNECT) == ""
        first = notebook.locals["gossip"]
        merges(notebook, other)
        for _ in range(2):
            assert notebook.run(CONNECT) == ""
            merges(notebook, other)
        assert notebook.locals["gossip"] is not first
        with pytest.raises(ClosedError):
            first.update_send(0.5)
    said = [text for text in caplog.messages if "the earlier connection of this node" in text]
    text = "w1: dpwa closed the earlier connection of this node in this process [DPWA-W001]"
    assert said == [text] * 2


def test_the_model_and_the_settings_may_be_others_the_next_time(notebook):
    assert notebook.run(CONNECT) == ""
    assert notebook.run("net = nn.Linear(3, 3); config = {**config, 'timeout_ms': 100}") == ""
    assert notebook.run(CONNECT) == ""
    assert notebook.run("assert gossip.connection.node.config.timeout_ms == 100") == ""


def test_a_cell_that_has_failed_can_be_run_again(notebook):
    assert "ZeroDivisionError" in notebook.run(CONNECT + "\n1 / 0")
    assert "unknown key" in notebook.run(CONNECT.replace("name=", "timeout=1, name="))
    assert notebook.run("gossip.update_send(0.5)") == ""  # the mistake has closed nothing
    assert notebook.run(CONNECT) == ""


def test_a_node_of_another_cluster_is_no_former_one(notebook):
    assert notebook.run(CONNECT) == ""
    notebook.locals["config"] = config_of(2)
    assert notebook.run("critic = dpwa.connect(net, config=config, name='w1')") == ""
    assert notebook.run("gossip.update_send(0.5); critic.update_send(0.5)") == ""


def test_a_cell_that_is_interrupted_leaves_the_node_usable(notebook, config):
    with DpwaPyTorchAdapter(nn.Linear(2, 2), "w2", config) as other:
        assert notebook.run(CONNECT) == ""

        def train():
            assert notebook.run("while True: gossip.step(0.5)").endswith("KeyboardInterrupt\n")
            raise KeyboardInterrupt

        interrupted(train, 0.1)
        merges(notebook, other)
        assert notebook.run(CONNECT) == ""
        merges(notebook, other)
        assert notebook.run("gossip.close()") == ""


def test_a_script_that_connects_twice_is_told(config):
    with dpwa.connect(nn.Linear(2, 2), config=config, name="w1") as gossip:
        with pytest.raises(
            AddressError, match=r"node \'w1\' of this process uses this address\. Call close\(\)"
        ):
            dpwa.connect(nn.Linear(2, 2), config=config, name="w1")
        gossip.update_send(0.5)  # nobody has closed it
