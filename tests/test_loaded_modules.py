"""A process loads only what is on; see "What is loaded when" in docs/architecture.md."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.nodes import config_of, eventually
from support.strangers import question
from support.times import HANGS_AFTER_S, PROCESS_HANGS_AFTER_S

from dpwa import DpwaConnection
from dpwa.config import load_config
from dpwa.errors import CollectiveTimeoutError, PeerLost
from dpwa.node.node import Node
from dpwa.wire.collecting import Hello
from dpwa.wire.messages import AskStatus, Refused, Status

PACKAGE = Path(__file__).parent.parent / "dpwa"

# What plain gossip does not load: folders, and files.
FOLDERS = (
    "collectives/",
    "demo/",
    "integrations/",
    "launch/",
    "membership/",
    "node/transactions/",
    "plan/",
    "policy/members/",
    "report/",
    "sim/",
    "tables/",
    "testing/",
)
FILES = {
    "adapters/cuda_side",
    "adapters/gradient_buckets",
    "adapters/gradient_averaging",
    "adapters/optimizer_state",
    "adapters/object_state",
    "adapters/ranks/group",
    "adapters/ranks/replicas",
    "adapters/ranks/shards",
    "algorithms/all_reduce_ea",
    "algorithms/all_reduce_sgd",
    "algorithms/elastic",
    "algorithms/outer",
    "algorithms/lsgd",
    "algorithms/push_sum",
    "algorithms/together",
    "data/shared_records",
    "data/codecs/half",
    "data/codecs/int8",
    "data/payload",
    "data/reduction",
    "node/finish_run",
    "node/query",
    "observe/prometheus",
    "observe/run_log",
    "observe/run_view",
    "observe/watch",
    "policy/ballots",
    "policy/clipping",
    "policy/elastic",
    "policy/group_views",
    "policy/wait_budgets",
    "policy/push_sum",
    "policy/quarantine",
    "policy/transactions",
    "state/checkpoints",
    "transport/calls",
    "transport/curve",
    "transport/keyring",
    "transport/keys",
    "wire/collecting",
    "wire/members",
    "wire/proposing",
    "wire/tables",
    "wire/transaction_messages",
}
MAY_BE_LOADED = {"collectives/calls"}  # which loads the rest at the first call

GOSSIP = """
import json, sys, time, torch
from dpwa import DpwaPyTorchAdapter

def merge(one, two):
    while True:
        for each in (one, two):
            each.update_send(1.0)
        time.sleep(0.01)
        if any([each.update_wait(1.0) for each in (one, two)]):
            return

for config in map(json.loads, sys.argv[1:]):
    with DpwaPyTorchAdapter(torch.nn.Linear(10, 10), "w1", config) as one:
        with DpwaPyTorchAdapter(torch.nn.Linear(10, 10), "w2", config) as two:
            merge(one, two)
print(*(name for name in sys.modules if name.startswith("dpwa.")))
"""


def fresh(code, *arguments):
    return [sys.executable, "-c", code, *arguments]


def test_plain_gossip_loads_nothing_that_is_off():
    configs = [json.dumps(config_of(2, transport=each)) for each in ("tcp", "shm")]
    done = subprocess.run(
        fresh(GOSSIP, *configs), check=True, capture_output=True, timeout=PROCESS_HANGS_AFTER_S
    )
    loaded = {name.removeprefix("dpwa.").replace(".", "/") for name in done.stdout.decode().split()}
    assert [name for name in FOLDERS if not (PACKAGE / name).is_dir()] == []
    assert [name for name in FILES if not (PACKAGE / f"{name}.py").is_file()] == []
    needless = {name for name in loaded if name in FILES or name.startswith(FOLDERS)}
    assert needless - MAY_BE_LOADED == set()


LATE = """
import importlib.abc, json, sys, time
import numpy as np
from dpwa import DpwaConnection

class Hindrance(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "dpwa.collectives.group":
            if sys.argv[2] == "fails":
                raise ImportError("no such file here")
            time.sleep(0.3)

sys.meta_path.insert(0, Hindrance())
with DpwaConnection("w2", json.loads(sys.argv[1])) as node:
    for line in sys.stdin:
        if line == "reduce\\n":
            print(node.all_reduce(np.ones(2))[1], flush=True)
        else:
            node.update_send(np.ones(1000), 0.5)
            node.update_wait()
            print("dpwa.collectives.collectives" in sys.modules, flush=True)
"""


class Late:
    """A node in a fresh process, which loads collectives slowly or not at all."""

    def __init__(self, config, how):
        pipe = subprocess.PIPE
        argv = fresh(LATE, json.dumps(config), how)
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def does(self, what):
        print(what, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def starts(self, what):
        print(what, file=self._process.stdin, flush=True)

    def ends(self):
        return self._process.communicate(timeout=HANGS_AFTER_S)


@pytest.fixture
def pair(request):
    config = config_of(2, transport="tcp", collective_timeout_s=60)
    late = Late(config, request.param)
    with DpwaConnection("w1", config) as node:
        yield node, late
        late.ends()


def gossip(node, late):
    """A round of both; whether the node has merged the parameters of the late one."""
    node.update_send(np.ones(1000), 0.5)
    late.does("round")
    return node.update_wait(0.5)[0] is not None


@pytest.mark.parametrize("pair", ["slowly"], indirect=True)
def test_messages_that_come_in_the_middle_of_an_import_are_answered_after_it(pair):
    node, late = pair
    eventually(lambda: gossip(node, late))
    assert late.does("round") == "False"
    late.starts("reduce")  # while the hello of this node has the other thread load the same
    assert node.all_reduce(np.ones(2))[1] == 2
    assert late.ends()[0].splitlines() == ["2"]


@pytest.mark.parametrize("pair", ["fails"], indirect=True)
def test_a_node_that_cannot_load_a_part_says_it_once_and_goes_on(pair):
    node, late = pair
    eventually(lambda: gossip(node, late))
    with pytest.raises((CollectiveTimeoutError, PeerLost)):
        node.barrier(timeout_s=0.5)
    eventually(lambda: gossip(node, late))
    _, errors = late.ends()
    assert errors.count("DPWA-W103") == 1
    assert "no such file here" in errors


def test_a_message_whose_code_cannot_be_loaded_is_refused(caplog):
    def load():
        raise ImportError("no such file here")

    hello = Hello(
        request=3, name="w2", incarnation=bytes(8), folder="", nonce=bytes(16), is_mapped=None
    )
    with Node("w1", load_config(config_of(1))) as node, caplog.at_level(logging.ERROR):
        node.rx.serve_later("dpwa.wire.collecting", load)
        for _ in range(2):
            assert isinstance(question(node.endpoint, hello, None), Refused)
        assert isinstance(question(node.endpoint, AskStatus(request=3), None), Status)
    assert [record.getMessage() for record in caplog.records] == [
        "w1: refused a message, because a module cannot be loaded: no such file here [DPWA-W103]"
    ]
