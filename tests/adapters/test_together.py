"""`algorithm: together`: gradients are averaged over those who keep pace; nodes on threads."""

import copy
import itertools
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median

import pytest
import torch
from support.nodes import config_of, eventually
from support.optimizers import ScheduleFree
from torch import nn

import dpwa
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.data.payload import Payload
from dpwa.errors import UserError


@pytest.fixture(autouse=True)
def _no_false_alarm(caplog):
    """Parameters are compared in all that is done here, and never differ."""
    yield
    assert "parameters differ" not in caplog.text


def net_of(seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def batch_of(node, step):
    generator = torch.Generator().manual_seed(1000 * node + step)
    return torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator)


def loss_of(net, node, step):
    inputs, targets = batch_of(node, step)
    return (net(inputs) - targets).square().mean()


OPTIMIZERS = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), 0.05, momentum=0.9),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), 0.01),
    "Muon": lambda net: torch.optim.Muon([p for p in net.parameters() if p.dim() == 2], 0.01),
}


class Node:
    """A module, its optimizer and its gossip, on a thread of its own."""

    def __init__(self, index, config, kind="AdamW", seed=3):
        self.index = index
        self.net = net_of(seed)
        self.optimizer = OPTIMIZERS[kind](self.net)
        self.gossip = dpwa.connect(self.net, self.optimizer, config=config, name=f"w{index + 1}")
        self.contributions = []

    def step(self, pause_s=0.0):
        gossip = self.gossip
        gossip.update_send()
        self.optimizer.zero_grad()
        time.sleep(pause_s)
        loss_of(self.net, self.index, gossip.updates).backward()
        self.optimizer.step()
        gossip.update_wait()
        return self.pace

    @property
    def pace(self):
        return tuple(self.gossip.connection.node.report()["pace"]["in_pace"])

    def values(self):
        return [value for value in self.net.state_dict().values() if value.is_floating_point()]

    def state(self):
        tensors = self.values()
        for _, state in sorted(self.optimizer.state_dict()["state"].items()):
            tensors += [value for _, value in sorted(state.items()) if torch.is_tensor(value)]
        return [tensor for tensor in tensors if tensor.is_floating_point()]


class Nodes:
    def __init__(self, count, **settings):
        self.config = config_of(count, **{"algorithm": "together"} | settings)
        self.names = [f"w{index + 1}" for index in range(count)]
        self._stack, self._threads = ExitStack(), {}
        self.nodes = {}

    def start(self, index, *arguments, **more):
        node = Node(index, self.config, *arguments, **more)
        self._stack.callback(node.gossip.close)
        self.nodes[index] = node
        self._threads[index] = ThreadPoolExecutor(1)
        return node

    def begin(self, index, task):
        return self._threads[index].submit(task, self.nodes[index])

    def each(self, task, of=None):
        futures = [self.begin(index, task) for index in (self.nodes if of is None else of)]
        return [future.result(60) for future in futures]

    def close(self):
        self._stack.close()
        for thread in self._threads.values():
            thread.shutdown()


@contextmanager
def nodes_of(count, *, there=None, kind="AdamW", **settings):
    nodes = Nodes(count, **settings)
    try:
        for index in range(count if there is None else there):
            nodes.start(index, kind)
        yield nodes
    finally:
        nodes.close()


def are_equal(nodes):
    first, *others = [node.state() for node in nodes]
    return all(all(map(torch.equal, first, other)) for other in others)


def test_all_begin_with_the_parameters_of_the_first():
    with nodes_of(2, there=0) as nodes:
        first, _ = nodes.start(0, seed=1), nodes.start(1, seed=2)
        began = copy.deepcopy(first.net.state_dict())
        nodes.each(lambda node: node.gossip.update_send())
        assert are_equal(nodes.nodes.values())
        assert torch.equal(first.net.state_dict()["0.weight"], began["0.weight"])


@pytest.mark.parametrize("loop", ["two calls", "step"])
def test_a_late_node_with_an_iterate_of_its_own_has_the_bits_of_the_others(loop):
    """It is switched as often as that of the others, because each switch rounds."""
    count, stop = 3000, threading.Event()

    def train(index, told):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, count), nn.Tanh(), nn.Linear(count, 2))
        optimizer = ScheduleFree(net.parameters(), 0.05, beta2=0.99)
        optimizer.train()
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:
            while not stop.is_set() and (index == 0 or len(told) < 10):
                if loop == "two calls":
                    gossip.update_send()
                time.sleep(0.01)
                optimizer.zero_grad()
                loss_of(net, index, len(told)).backward()
                optimizer.step()
                gossip.update_wait() if loop == "two calls" else gossip.step()
                told.append((gossip.updates, net[0].weight.detach().clone()))

    config = config_of(2, algorithm="together", initial_state="own")
    first, late = [], []
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(train, 0, first)
        eventually(lambda: len(first) > 3)
        pool.submit(train, 1, late).result(60)
        stop.set()
        running.result(60)
    compared = [(dict(first)[updates], weight) for updates, weight in late[2:]]
    assert all(torch.equal(*pair) for pair in compared)


@pytest.mark.parametrize("left", [1, 2])
def test_the_others_go_on_when_one_is_closed_in_the_middle(left):
    def train(node):
        paces = []
        for step in range(60):
            paces.append(node.step(0.005))
            if node.index == left and step == 20:
                node.gossip.close()
                return paces
        return paces

    with nodes_of(left + 1) as nodes:
        nodes.each(train)
        survivors = [nodes.nodes[index] for index in range(left)]
        assert {node.pace for node in survivors} == {tuple(nodes.names[:left])}
        assert are_equal(survivors)
        assert [node.gossip.updates for node in survivors] == [60] * left


def test_who_stands_still_falls_out_and_comes_back_with_what_the_others_have():
    paces, longest_s, stop = [], [0.0], threading.Event()

    def train(node):
        for step in itertools.count():
            began = time.monotonic()
            pace = node.step(0.01)
            if node.index == 0 and step > 5:
                longest_s[0] = max(longest_s[0], time.monotonic() - began)
                paces.append(pace)
            if node.index == 2 and step == 20:
                time.sleep(2.0)
            if stop.is_set():
                return

    with nodes_of(3) as nodes:
        running = [nodes.begin(index, train) for index in range(3)]
        eventually(lambda: ("w1", "w2") in paces)
        at = paces.index(("w1", "w2"))
        eventually(lambda: ("w1", "w2", "w3") in paces[at:])
        stop.set()
        for future in running:
            future.result(60)
        assert longest_s[0] < 1.5


def test_who_is_much_slower_is_not_waited_for():
    """It is ten times as slow: its pauses grow where the steps of all take longer."""
    stop, steps = threading.Event(), [0, 0, 0]
    took_s = deque([0.01], maxlen=20)  # by the newest steps of the first node

    def train(node):
        while not stop.is_set():
            began = time.monotonic()
            node.step(min(10 * median(took_s), 1.0) if node.index == 2 else 0.01)
            steps[node.index] += 1
            if node.index == 0:
                took_s.append(time.monotonic() - began)

    with nodes_of(3) as nodes:
        running = [nodes.begin(index, train) for index in range(3)]
        eventually(lambda: steps[2] > 15)
        stop.set()
        for future in running:
            future.result(60)
        assert steps[0] > 3 * steps[2]


def test_gradients_that_are_only_accumulated_are_averaged_once_for_all():
    def train(node):
        for step in range(10):
            node.gossip.update_send()
            node.optimizer.zero_grad()
            with node.gossip.no_sync():
                loss_of(node.net, node.index, 2 * step).backward()
            loss_of(node.net, node.index, 2 * step + 1).backward()
            node.optimizer.step()
            node.gossip.update_wait()
        return node.gossip.connection.node.report()["pace"]["rounds"]

    with nodes_of(2) as nodes:
        assert nodes.each(train) == [10, 10]
        assert are_equal(nodes.nodes.values())


class Branches(nn.Module):
    """Of three branches, each node uses one in a step; the third is used by nobody."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, inputs, branch):
        return self.branches[branch](inputs)


def test_parameters_without_a_gradient_bring_nothing_and_stay_without_if_nobody_has_one():
    config = config_of(2, algorithm="together")

    def train(index):
        torch.manual_seed(0)
        net = Branches()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:
            gossip.update_send()
            net(torch.ones(1, 4), index).sum().backward()
            optimizer.step()
            gradients = [branch.weight.grad for branch in net.branches]
            gossip.update_wait()
            gossip.barrier()
            return gradients, net.branches[2].weight.clone()

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(train, range(2)))
    for gradients, unused in found:
        assert torch.equal(gradients[0], torch.full((2, 4), 0.5))
        assert torch.equal(gradients[1], torch.full((2, 4), 0.5))
        assert gradients[2] is None
        assert torch.equal(unused, found[0][1])


class Waiting(torch.autograd.Function):
    """In the backward pass, does what it is given."""

    @staticmethod
    def forward(context, values, wait):
        context.wait = wait
        return values.view_as(values)

    @staticmethod
    def backward(context, gradient):
        context.wait()
        return gradient, None


def rounds_of(gossip):
    return gossip.connection.node.report()["pace"]["rounds"]


def test_a_bucket_is_averaged_while_the_backward_pass_goes_on(monkeypatch):
    """The second node begins its pass when the first has come to the last buckets.

    The first step shows that all gradients are made. A bucket waits for a gradient of the next.
    """
    monkeypatch.setattr("dpwa.adapters.gradient_averaging.BUCKET_BYTES", 1)
    seen, is_there = [], threading.Semaphore(0)

    def train(node):
        first, *others = node.net
        for step in range(10):
            node.gossip.update_send()
            node.optimizer.zero_grad()
            before = rounds_of(node.gossip)

            def wait(before=before, step=step):
                if step == 0:
                    return
                if node.index == 0:
                    is_there.release()
                eventually(lambda: rounds_of(node.gossip) == before + 2)

            inputs, _ = batch_of(node.index, step)
            if node.index == 1 and step > 0:
                is_there.acquire()
            middle = Waiting.apply(first(inputs), wait)
            nn.Sequential(*others)(middle).square().mean().backward()
            seen.append(rounds_of(node.gossip) - before)
            node.optimizer.step()
            node.gossip.update_wait()

    with nodes_of(2, transport="tcp") as nodes:
        nodes.each(train)
        assert seen == [6] * 20
        assert are_equal(nodes.nodes.values())


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_pass_that_leaves_out_parameters_spoils_no_step(is_alone, monkeypatch):
    """The averages of what it has made come when its gradients have been scaled already."""
    monkeypatch.setattr("dpwa.adapters.gradient_averaging.BUCKET_BYTES", 1)
    longest = []

    def train(node):
        first, *others = node.net
        while node.gossip.updates < 40:
            node.gossip.update_send()
            node.optimizer.zero_grad()
            inputs, targets = batch_of(node.index, node.gossip.updates)
            middle = first(inputs)
            if node.gossip.updates == 20 and (node.index == 0 or not is_alone):
                middle = middle.detach()
            (1000 * (nn.Sequential(*others)(middle) - targets).square().mean()).backward()
            for parameter in node.net.parameters():
                if parameter.grad is not None:
                    parameter.grad /= 1000
                    longest.append(parameter.grad.norm().item())
            node.optimizer.step()
            longest.extend(
                each.grad.norm().item() for each in node.net.parameters() if each.grad is not None
            )
            node.gossip.update_wait()

    with nodes_of(2, kind="SGD", transport="tcp") as nodes:
        nodes.each(train)
        assert max(longest) < 10
        assert are_equal(nodes.nodes.values())
        assert {node.pace for node in nodes.nodes.values()} == {("w1", "w2")}


def test_a_node_that_is_let_in_spoils_no_bucket(monkeypatch, caplog):
    monkeypatch.setattr("dpwa.adapters.gradient_averaging.BUCKET_BYTES", 1)
    caplog.set_level("INFO", "dpwa.collectives")
    is_over = threading.Event()

    def train(node):
        while not is_over.is_set():
            node.step()

    with nodes_of(3, there=2, log_level="info", transport="tcp") as nodes:
        first = [nodes.begin(index, train) for index in (0, 1)]
        eventually(lambda: nodes.nodes[0].gossip.updates > 20)
        late = nodes.start(2, seed=4)
        first.append(nodes.begin(2, train))
        eventually(lambda: late.gossip.updates and len(late.pace) == 3)
        before = rounds_of(late.gossip)
        eventually(lambda: rounds_of(late.gossip) > before + 60)
        is_over.set()
        for future in first:
            future.result(60)
    assert "called all_gather" not in caplog.text


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Embedding(6, 3, sparse=True)
        self.unused = nn.Embedding(6, 3, sparse=True)

    def forward(self, rows):
        return self.used(rows).square().sum()


def test_sparse_gradients_are_averaged_and_stay_sparse():
    config = config_of(2, algorithm="together", log_level="error")
    rows = [torch.tensor([0, 2, 2]), torch.tensor([2, 5])]

    def train(index):
        net = nets[index]
        optimizer = torch.optim.SparseAdam(net.parameters(), 0.1)
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:
            for _ in range(3):
                gossip.update_send()
                optimizer.zero_grad()
                if gossip.updates != 2 or index == 0:  # the other has none in one of the steps
                    net(rows[index]).backward()
                optimizer.step()
                gradient = net.used.weight.grad
                gossip.update_wait()
            gossip.barrier()
            return net.used.weight.detach().clone(), gradient.coalesce(), net.unused.weight.grad

    alone = Rows()
    nets = [copy.deepcopy(alone) for _ in rows]  # before the threads, which share torch's generator
    optimizer = torch.optim.SparseAdam(alone.parameters(), 0.1)
    for step in range(1, 4):
        optimizer.zero_grad()
        (sum(alone(own) for own in (rows if step != 2 else rows[:1])) / 2).backward()
        optimizer.step()
    with ThreadPoolExecutor(2) as pool:
        (one, gradient, unused), (two, _, _) = pool.map(train, range(2))
    assert torch.equal(one, two)
    torch.testing.assert_close(one, alone.used.weight.detach())
    assert gradient.is_sparse
    assert gradient.indices().tolist() == [[0, 2, 5]]
    assert unused is None


def test_where_a_gradient_is_sparse_on_one_node_only_it_is_dense_on_all():
    config = config_of(2, algorithm="together", log_level="error")

    def train(index):
        net = Rows()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:
            gossip.update_send()
            loss = net(torch.tensor([2, 5]))
            if index:
                loss = loss + net.used.weight.sum()  # as where a weight is tied
            loss.backward()
            optimizer.step()
            gossip.update_wait()
            gossip.barrier()
            return net.used.weight.grad, net.used.weight.detach()

    with ThreadPoolExecutor(2) as pool:
        (one, weight), (two, same) = pool.map(train, range(2))
    assert not one.is_sparse
    assert torch.equal(one, two)
    assert torch.equal(weight, same)
    assert torch.equal(one[0], torch.full((3,), 0.5))


@pytest.mark.parametrize(
    ("codec", "unit", "largest"), [("fp16", 2.0**-11, torch.inf), ("bf16", 2.0**-8, 1e6)]
)
def test_gradients_travel_as_the_codec_says(codec, unit, largest, monkeypatch):
    config = config_of(2, algorithm="together", codec=codec, log_level="error", transport="tcp")
    values = [torch.tensor([1.0, 1e-3, 1e6, 0.1]), torch.tensor([2.0, 1e-3, 1e6, 0.3])]
    travelled = []

    class Watched(Payload):
        def __init__(self, value):
            super().__init__(value)
            travelled.append({each.dtype for each in self.layout.tensors})

    monkeypatch.setattr("dpwa.adapters.gradient_buckets.Payload", Watched)

    def train(index):
        net = nn.Linear(4, 1, bias=False)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:
            gossip.update_send()
            net(values[index]).sum().backward()
            optimizer.step()
            gossip.update_wait()
            gossip.barrier()
            return net.weight.grad[0]

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(train, range(2))
    assert torch.equal(one, two)
    assert one.dtype is torch.float32
    expected = torch.tensor([1.5, 1e-3, largest, 0.2])
    torch.testing.assert_close(one, expected, rtol=2 * unit, atol=0.0)
    narrow = {"fp16": "float16", "bf16": "bfloat16"}[codec]
    assert travelled == [{"float32", narrow}] * 2  # and which gradients there are


def test_alone_gradients_are_what_they_were():
    config = config_of(2, algorithm="together", codec="fp16", log_level="error", timeout_ms=100)
    net = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with dpwa.connect(net, optimizer, config=config, name="w1") as gossip:
        gossip.update_send()
        net(torch.tensor([1e6, 1e-9])).sum().backward()
        optimizer.step()
        gossip.update_wait()
    assert net.weight.grad.tolist() == [[1e6, pytest.approx(1e-9)]]


@pytest.mark.parametrize(
    ("is_given", "is_on", "scale"), [(True, True, 8.0), (True, False, 1.0), (False, True, 16.0)]
)
def test_a_scaler_that_is_given_skips_the_step_on_all_nodes(is_given, is_on, scale, caplog):
    """Of another scaler dpwa does not know, so it leaves out the gradient that is not finite."""

    def train(node):
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=is_on)
        if is_given:
            node.gossip.include_optimizer(node.optimizer, scaler)
        for step in range(20):
            node.gossip.update_send()
            node.optimizer.zero_grad()
            is_bad = step == 7 and node.index == 1
            loss = loss_of(node.net, node.index, step) * (torch.inf if is_bad else 1.0)
            scaler.scale(loss).backward()
            scaler.step(node.optimizer)
            scaler.update()
            node.gossip.update_wait()
        return scaler.get_scale(), node.pace

    with nodes_of(2) as nodes:
        assert nodes.each(train) == [(scale, ("w1", "w2"))] * 2
        assert are_equal(nodes.nodes.values())
        assert all(each.isfinite().all() for each in nodes.nodes[0].net.parameters())
    assert ("DPWA-W084" in caplog.text) == (not (is_given and is_on))


def test_all_end_with_the_parameters_of_those_who_have_most_steps():
    ends = {}

    def train(node):
        for _ in range(10 if node.index == 1 else 40):
            node.step(0.01)
        ends[node.index] = [value.clone() for value in node.values()]
        return node.gossip.finish()

    with nodes_of(3) as nodes:
        for report in nodes.each(train):
            assert len(report.took_part) == 2, report
            assert not report.problem
    assert not any(map(torch.equal, ends[1], ends[2]))
    for node in nodes.nodes.values():
        assert all(map(torch.equal, node.values(), ends[2])), node.index


def test_a_node_whose_peers_have_ended_is_not_warned_of_training_alone(caplog):
    def train(node):
        for step in range(60 if node.index == 2 else 20):
            node.step(0.01 if step < 20 else 0.05)
        node.gossip.finish()

    with nodes_of(3) as nodes:
        nodes.each(train)
    assert "DPWA-W078" not in caplog.text  # who has ended is not out of pace


@pytest.mark.parametrize("count", [2, 3])
def test_training_goes_on_together_at_once_after_an_end(count, caplog):
    def train(node):
        for part in range(3):
            began = time.monotonic()
            paces = [node.step() for _ in range(10)]
            assert set(paces[:-1]) == {tuple(nodes.names)}  # in the last, others may have ended
            assert time.monotonic() - began < 3, part
            assert node.gossip.updates == 10 * (part + 1)
            assert len(node.gossip.finish().took_part) == count - 1

    with nodes_of(count) as nodes:
        nodes.each(train)
        assert are_equal(nodes.nodes.values())
    assert "DPWA-W078" not in caplog.text


def test_it_needs_the_optimizer():
    with (
        DpwaPyTorchAdapter(net_of(), "w1", config_of(1, algorithm="together")) as gossip,
        pytest.raises(UserError, match="needs the optimizer of the module"),
    ):
        gossip.update_send()


def test_a_node_with_another_model_is_left_out_and_both_name_the_tensor(caplog):
    config = config_of(2, algorithm="together", needs_finish=False)
    last = threading.Event()

    def train(name, net, until):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with dpwa.connect(net, optimizer, config=config, name=name) as gossip:
            while True:
                gossip.update_send()
                net(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                gossip.update_wait()
                report = gossip.connection.node.report()
                if until(report["peers"][0]["health"], report["pace"]["rounds"]):
                    return report["peers"][0]

    with ThreadPoolExecutor(2) as pool:
        staying = pool.submit(train, "w1", nn.Linear(4, 2), lambda *_: last.is_set())
        peer = train("w2", nn.Linear(4, 3), lambda health, _: health == "other_model")
        net = nn.Linear(4, 2)
        net.register_buffer("count", torch.zeros(5, dtype=torch.int16))
        train("w2", net, lambda *_: "'count'" in caplog.text)
        train("w2", nn.Linear(4, 2), lambda _, rounds: rounds > 3)
        last.set()
        assert staying.result()["health"] != "other_model"
    one, two = "'weight' float32[2, 4]", "'weight' float32[3, 4]"
    difference = f"first difference: here {two}, there {one}"
    assert peer["problem"] == difference
    expected = "Use the same model and the same optimizer on all nodes [DPWA-W080]"
    buffer = "first difference: here 'count' int16[5], there no such tensor"
    for text in (difference, buffer):
        line = "w2: this node stays out of sync, because it cannot use the state of a peer: "
        line += f"w1 has a different model: {text}. {expected}"
        assert caplog.messages.count(line) == 1
    for name, other, here, there in (("w1", "w2", one, two), ("w2", "w1", two, one)):
        told = f"{name}: peer {other} has a different model: first difference: here {here}"
        assert caplog.messages.count(f"{told}, there {there} [DPWA-W007]") == 1


def diverged(nodes):
    """Return how far apart nodes are that keep pace with each other."""
    one, *others = nodes.nodes.values()
    assert {node.pace for node in nodes.nodes.values()} == {tuple(nodes.names)}
    return max(
        float((a - b).detach().abs().max())
        for other in others
        for a, b in zip(one.net.parameters(), other.net.parameters(), strict=True)
    )


def test_nodes_that_differ_again_and_again_say_so(caplog):
    def train(node):
        for _ in range(15):
            node.gossip.update_send()
            node.optimizer.zero_grad()
            for _ in range(1 + node.index):
                loss_of(node.net, node.index, 0).backward()
            node.optimizer.step()
            node.gossip.update_wait()

    with nodes_of(2, log_level="warning") as nodes:
        nodes.each(train)
    text = "nodes differ repeatedly, so some gradients are not averaged"
    assert {f"w{index}: {text}" in caplog.text for index in (1, 2)} == {True}


def leaves_out(node, passes=1):
    """Do without the step of its optimizer, such as for an odd batch."""
    node.optimizer.zero_grad()
    for _ in range(passes):
        loss_of(node.net, node.index, node.gossip.updates).backward()


def train_once(node, **passes):
    leaves_out(node, **passes)
    node.optimizer.step()


def gives_up(node):
    """Begin another one after the round of this one, such as after an error that was caught."""
    leaves_out(node)
    node.gossip.update_send()
    train_once(node)


@pytest.mark.parametrize("odd", [gives_up, leaves_out, partial(train_once, passes=2)])
def test_a_step_that_is_another_one_on_one_node_leaves_nobody_apart(odd):
    def train(node):
        while node.gossip.updates < 30:
            node.gossip.update_send()
            is_odd = node.index == 1 and node.gossip.updates in (10, 20)
            (odd if is_odd else train_once)(node)
            node.gossip.update_wait()

    with nodes_of(2) as nodes:
        nodes.each(train)
        assert diverged(nodes) == 0.0


def common_steps(train, found, stop):
    """Train with a second node that comes late; return what both have found, at the same steps.

    They find it by name and step, until they are to stop.
    """
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(train, 0)
        eventually(lambda: ("w1", 30) in found or first.done())
        late = pool.submit(train, 1)
        eventually(lambda: sum(name == "w2" for name, _ in found) > 40 or late.done())
        stop.set()
        first.result(60), late.result(60)
    common = sorted(step for name, step in found if name == "w2" and ("w1", step) in found)[20:]
    assert len(common) >= 5
    return [(found["w1", step], found["w2", step]) for step in common]


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("before update_wait", marks=pytest.mark.slow),
        "after update_wait",
        pytest.param("attached", marks=pytest.mark.slow),
    ],
)
def test_who_comes_late_has_the_learning_rate_of_the_others(place):
    stop, config = threading.Event(), config_of(2, algorithm="together", log_level="error")
    found = {}

    def train(index):
        net = net_of()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        name = f"w{index + 1}"
        with dpwa.connect(net, optimizer, scheduler=scheduler, config=config, name=name) as gossip:
            if place == "attached":
                gossip.attach(optimizer)
            while not stop.is_set():
                if place != "attached":
                    gossip.update_send()
                optimizer.zero_grad()
                loss_of(net, index, gossip.updates).backward()
                optimizer.step()
                if place == "before update_wait":
                    scheduler.step()
                if place != "attached":
                    gossip.update_wait()
                if place != "before update_wait":
                    scheduler.step()
                rate = optimizer.param_groups[0]["lr"]
                found[name, gossip.updates] = rate, net[0].weight.detach().clone()
                time.sleep(0.005)

    for (own, weight), (late, late_weight) in common_steps(train, found, stop):
        assert own == late
        assert torch.equal(weight, late_weight)


@pytest.mark.parametrize(
    "place", ["before update_wait", pytest.param("after update_wait", marks=pytest.mark.slow)]
)
def test_who_comes_late_has_the_scale_of_the_others(place):
    stop, config = threading.Event(), config_of(2, algorithm="together", log_level="error")
    found = {}

    def train(index):
        net = net_of()
        optimizer = torch.optim.AdamW(net.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", 64, growth_factor=1.5, growth_interval=7)
        name = f"w{index + 1}"
        with dpwa.connect(net, optimizer, scheduler=scaler, config=config, name=name) as gossip:
            while not stop.is_set():
                gossip.update_send()
                optimizer.zero_grad()
                scaler.scale(loss_of(net, index, gossip.updates)).backward()
                scaler.step(optimizer)
                if place == "before update_wait":
                    scaler.update()
                gossip.update_wait()
                if place == "after update_wait":
                    scaler.update()
                found[name, gossip.updates] = scaler.get_scale(), net[0].weight.detach().clone()
                time.sleep(0.005)

    for (own, weight), (late, late_weight) in common_steps(train, found, stop):
        assert own == late > 64.0
        assert torch.equal(weight, late_weight)


def test_nothing_is_averaged_after_the_end():
    def train(node):
        for _ in range(10 + 30 * node.index):
            node.step(0.01)
        node.gossip.finish()
        if node.index == 0:
            before = node.state()[0].clone()
            loss_of(node.net, 0, 0).backward()
            assert torch.equal(before, node.state()[0])

    with nodes_of(2) as nodes:
        nodes.each(train)


def test_an_optimizer_with_passes_of_its_own_is_refused():
    net = net_of()
    optimizer = torch.optim.LBFGS(net.parameters())
    with pytest.raises(UserError, match="LBFGS makes several"):
        DpwaPyTorchAdapter(net, "w1", config_of(1, algorithm="together"), optimizer=optimizer)


def test_where_gradients_are_not_averaged_nothing_is_to_be_done():
    with DpwaPyTorchAdapter(net_of(), "w1", config_of(1)) as gossip:
        gossip.average_gradients()
        with gossip.no_sync():
            pass
        assert "pace" not in gossip.connection.node.report()


def test_waiting_for_the_gradients_of_others_counts_as_waiting():
    def spent(nodes, activity):
        reports = (node.gossip.connection.node.report() for node in nodes.nodes.values())
        return [report["gossip"][activity] for report in reports]

    with nodes_of(2) as nodes:
        nodes.each(Node.step)  # the first one loads what optimizers need
        before = {activity: spent(nodes, activity) for activity in ("wait_s", "train_s")}
        for _ in range(5):
            nodes.each(lambda node: node.step(pause_s=0.3 * node.index))
        (quick_waits, slow_waits), (_, slow_trains) = (
            [now - then for now, then in zip(spent(nodes, activity), was, strict=True)]
            for activity, was in before.items()
        )
    # On a busy machine, both compute for a part of the pauses of 1.5 s in all.
    assert quick_waits > max(0.5, slow_waits)
    assert slow_trains > 1.5


def test_nodes_with_the_same_gradients_are_told(caplog):
    with nodes_of(3, kind="SGD", transport="tcp") as nodes:
        nodes.nodes[1].index = nodes.nodes[0].index  # by which it draws its batches
        for _ in range(6):
            nodes.each(Node.step)
    told = sorted(m.partition(":")[0] for m in caplog.messages if m.endswith("[DPWA-W100]"))
    assert told == ["w1", "w2"]
    assert "w1: trains on the same batches as w2. Give each node different data" in caplog.text
