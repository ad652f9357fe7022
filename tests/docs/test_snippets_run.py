"""The code of the documentation runs on one machine, each block in a process of its own."""

import ast
import json
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from support.nodes import config_of
from support.run_logs import write_log
from support.snippets import ROOT, SHELL, blocks, commands, environment, is_among, words

pytestmark = pytest.mark.slow

# What does not run here, by page and beginning, with the reason.
NOT_RUN = {
    ("README.md", ""): "tests/test_readme.py runs all of it",
    ("docs/testing.md", ""): "tests/testing/test_testing_docs.py runs all of it",
    ("docs/pytorch.md", "from dpwa.integrations."): "tests/integrations run the examples",
    ("docs/pytorch.md", "gossip = DpwaGossip("): "needs Accelerate: tests/integrations resume",
    ("docs/pytorch.md", "model = get_peft_model"): "needs PEFT: tests run examples/lora.py",
    ("docs/fsdp.md", ""): "needs torchrun: tests run examples/fully_sharded.py",
    ("docs/launch.md", "@ray.remote"): "needs Ray: tests/integrations run actors",
    ("docs/watch.md", "wandb.log("): "needs Weights & Biases, MLflow and a trainer",
    ("docs/membership.md", "with DpwaPyTorchAdapter(net"): "waits for three other nodes",
    ("docs/tutorial.md", "# "): "the test of the tutorial runs these, as files",
}
NEEDED = {  # a library of an extra
    ("docs/watch.md", "from torch.utils.tensorboard"): "tensorboard",
    ("docs/watch.md", "import dpwa.observe"): "pandas",
}
COMMANDS_NOT_RUN = {
    "dpwa bench ": "needs two machines: tests/bench run it",
    "dpwa launch --engine ray": "needs Ray",
    "dpwa launch --nodes-from": "needs a list with this host: tests/launch run it",
    "dpwa launch -n 2 -- torchrun": "needs torchrun: tests run examples/fully_sharded.py",
    "dpwa sim ": "takes minutes: tests/cli runs all scenarios, in a short form",
    "dpwa dashboard": "does not end: tests/observe/dashboard run it",
    "dpwa report runs/1 -o /tmp/report --open": "opens a browser",
    "dpwa top -c nodes.yaml  ": "needs a terminal: tests/cli run it",
    "dpwa top --at": "needs a node at that address",
    "dpwa top  ": "finds the runs of the whole machine: tests/cli run it",
    "dpwa doctor -c others.yaml": "needs a cluster at that address",
    "dpwa launch -n 4 -- python examples/cifar10": "needs the data set",
    "dpwa launch -n 4 -- python train.py --epochs 3": "an example of options of one's own",
}
# What a block takes for granted. A node is made only where a block has none of its own.
PREPARED = """\
import itertools, json, signal, sys
from pathlib import Path
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
import dpwa
from dpwa import DpwaConnection
from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.algorithms import AllReduceEA, AllReduceSGD
from dpwa.dataset import SharedSampler
from dpwa.errors import LeftBehindError, PeerLost

Net = lambda: torch.nn.Linear(2, 1)
net, name, config, loss, epochs, first_epoch = Net(), "w1", "nodes.yaml", 0.5, 2, 0
model, params = net, [np.zeros(3)]
optimizer, path = torch.optim.Adam(net.parameters()), Path("state.json")
criterion = torch.nn.functional.mse_loss
common_inputs, common_targets = torch.ones(4, 2), torch.ones(4, 1)
batches = [(common_inputs, common_targets)] * 3
dataset = TensorDataset(torch.ones(300, 2), torch.ones(300, 1))
parameters, grads, tensor = np.zeros(3), np.ones(3), torch.ones(3)
gradients = compute = lambda *_: [np.ones(3)]
step = lambda *_: None

def train_step(*_):
    optimizer.zero_grad()
    loss = criterion(net(common_inputs), common_targets)
    loss.backward()
    optimizer.step()
    return loss.item()

train = lambda *_: train_step()
"""
MORE_PREPARED = {
    "gossip": "gossip = dpwa.connect(net)\n",
    "connection": "connection = DpwaConnection(name, config)\n",
    "sampler": "sampler = SharedSampler(len(dataset), gossip)\nsampler.set_epoch(0)\n",
    "loader": "loader = DataLoader(dataset, batch_size=64, sampler=sampler)\n",
}
OTHER_VALUES = {
    ("docs/pytorch.md", "for inputs, targets in batches:\n    gossip.update_send()"): (
        "private_gradients = lambda *_: [torch.zeros_like(each) for each in net.parameters()]\n"
    ),
    ("docs/api.md", "tester.load_state_dict("): (
        "gossip.close()\n"
        "gossip = dpwa.connect(net, algorithm='elastic')\n"
        "gossip.update_send()\n"
        "tester = Net()\n"
    ),
    ("docs/api.md", "import dpwa.multiverso"): (
        "row_ids, gradients = [0, 1], np.ones((2, 64), np.float32)\n"
    ),
    ("docs/api.md", "for tag, value in gossip.metrics()"): (
        "class writer:\n    add_scalar = lambda tag, value, step: float(value)\n"
    ),
    ("docs/tables.md", "import dpwa.multiverso"): (
        "batches = [([0, 1], None)]\ngradients = lambda rows, _: np.ones_like(rows)\n"
    ),
}


def python_blocks():
    return [block for block in blocks("python") if not is_among(block, NOT_RUN)]


def prepared_for(block):
    """Return the code before a block: what it uses, and does not make itself."""
    names = [node for node in ast.walk(ast.parse(block.code)) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    used = {node.id for node in names} - own
    if "loader" in used:
        used |= {"sampler"} - own
    if "sampler" in used:
        used |= {"gossip"} - own
    more = [code for name, code in MORE_PREPARED.items() if name in used]
    other = [code for key, code in OTHER_VALUES.items() if is_among(block, [key])]
    return "".join([PREPARED, *more, *other])


@pytest.mark.parametrize("block", python_blocks(), ids=str)
def test_python_runs(block, tmp_path):
    for key, library in NEEDED.items():
        if is_among(block, [key]):
            pytest.importorskip(library)
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump(config_of(1)))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config_of(2)))
    prepare_runs(tmp_path)
    (tmp_path / "block.py").write_text(f"{prepared_for(block)}\n{block.code}")
    own = environment(DPWA_NAME="w1", DPWA_CONFIG="nodes.yaml")
    run_in(tmp_path, [sys.executable, "block.py"], own)


def run_in(folder, command, environ, timeout_s=120):
    found = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=timeout_s
    )
    assert found.returncode == 0, f"{command}\n{found.stdout}\n{found.stderr}"
    return found.stdout


def pages_with_commands():
    return sorted({command.page for command in runnable()})


def runnable():
    told = [command for command in commands(*SHELL) if "..." not in command.code]
    generated = {"docs/cli.md"}  # help texts; the pages say the same
    left = [command for command in told if not command.code.startswith(tuple(COMMANDS_NOT_RUN))]
    return [command for command in left if command.page not in {*generated, "docs/tutorial.md"}]


@pytest.mark.parametrize("page", pages_with_commands())
def test_commands_run(page, tmp_path):
    prepare(tmp_path)
    for command in runnable():
        if command.page == page:
            variables, arguments = words(command)
            run_command(tmp_path, arguments, environment(**variables))


def prepare(folder):
    """Give a folder what commands take for granted: a script, configurations, examples."""
    (folder / "examples").symlink_to(ROOT / "examples")
    shutil.copy(ROOT / "examples" / "quickstart.py", folder / "train.py")
    (folder / "edges.txt").write_text("w1 w2\n")
    for name in ("nodes.yaml", "run.yaml"):
        (folder / name).write_text(yaml.safe_dump(config_of(2)))
    (folder / "link.json").write_text(json.dumps({"latency_ms": 0.5, "bandwidth_mbps": 95.0}))
    prepare_runs(folder)


def prepare_runs(folder):
    """Give a folder the logs of some runs."""
    for run in ("1", "2", "3", "gossip", "push_sum"):
        for name in ("w1", "w2"):
            write_log(folder / "runs" / run, name)


def run_command(folder, arguments, environ):
    for cut in {">", "|"} & set(arguments):
        arguments = arguments[: arguments.index(cut)]
    if "-o" in arguments:
        (folder / arguments[arguments.index("-o") + 1]).unlink(missing_ok=True)
    key = folder / "keys" / "allowed" / "w2.pub"
    if key.exists():
        shutil.copy(key, folder / "w2.pub")
    if arguments[1] in ("status", "doctor", "top"):
        with_nodes_beside(folder, arguments, environ)
    else:
        run_in(folder, arguments, environ)


def with_nodes_beside(folder, arguments, environ):
    """Run a command that asks the nodes of nodes.yaml, while they run."""
    (folder / "stay.py").write_text(
        "import time, dpwa, torch\nwith dpwa.connect(torch.nn.Linear(2, 1)):\n    time.sleep(120)\n"
    )
    launch = ["dpwa", "launch", "-c", "nodes.yaml", "--", sys.executable, "stay.py"]
    nodes = subprocess.Popen(
        launch, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        ask = ["dpwa", "status", "-c", "nodes.yaml"]
        end = time.monotonic() + 60
        while subprocess.run(ask, cwd=folder, env=environ, capture_output=True).returncode:
            assert time.monotonic() < end
        run_in(folder, arguments, environ)
    finally:
        nodes.terminate()
        nodes.wait(30)


def test_the_tutorial(tmp_path):
    for block in blocks("python"):
        if block.page == "docs/tutorial.md" and block.code.startswith("# "):
            file = block.code.partition("\n")[0].removeprefix("# ")
            (tmp_path / file).write_text(block.code)
    assert "whole curve" in run_in(tmp_path, [sys.executable, "plain.py"], environment())
    for command in commands(*SHELL):
        if command.page == "docs/tutorial.md":
            variables, arguments = words(command)
            run_command(tmp_path, arguments, environment(**variables))
    assert len([*tmp_path.glob("*-*.txt")]) == 8  # four nodes alone, four with gossip
    assert {file.name for file in tmp_path.glob("*.pt")} == {"alone.pt", "gossip.pt"}
    run_in(tmp_path, [sys.executable, "plot.py"], environment())
    assert (tmp_path / "errors.png").stat().st_size > 10_000


def test_the_tables_name_code_that_is_there():
    for page, text in [*NOT_RUN, *OTHER_VALUES, *NEEDED]:
        assert [block for block in blocks("python") if is_among(block, [(page, text)])], page
    told = [command.code for command in commands(*SHELL)]
    for start in COMMANDS_NOT_RUN:
        assert any(code.startswith(start) for code in told), start
