"""`algorithm: together`: parameters are compared by value, a part in each step."""

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.nodes import config_of, eventually
from support.patience import patience
from torch import nn

import dpwa
from dpwa.adapters.module_state import ModuleState
from dpwa.collectives.comparison import EVERY_STEPS

LARGE = 300  # rows and columns
FEW_STEPS = 20  # in which nodes that train here compare all of their state


@pytest.fixture
def _compares_sooner(monkeypatch):
    for place in ("adapters.gradient_averaging", "collectives.comparison"):
        monkeypatch.setattr(f"dpwa.{place}.EVERY_STEPS", FEW_STEPS)
    monkeypatch.setattr("dpwa.collectives.comparison.AGAIN_STEPS", 3 * FEW_STEPS)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.large = nn.Linear(LARGE, LARGE)
        self.tied = nn.Linear(LARGE, LARGE, bias=False)
        self.tied.weight = self.large.weight
        self.norm = nn.BatchNorm1d(LARGE)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.small = nn.Linear(LARGE, 2)

    def forward(self, inputs):
        return self.small(self.norm(self.tied(self.large(inputs)))) * self.frozen[0]


def train(count, changed, change, *, steps, transport="auto", kind=torch.optim.SGD):
    """Train nodes, of which one is changed after its steps; return their modules at the end."""
    config = config_of(count, algorithm="together", transport=transport, timeout_ms=20_000)

    def run(index):
        net = Net()
        optimizer = kind([each for each in net.parameters() if each.requires_grad], 1e-3)
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:
            for step in range(steps):
                gossip.update_send()
                optimizer.zero_grad()
                torch.manual_seed(10 * step + index)
                net(torch.randn(4, LARGE)).square().mean().backward()
                optimizer.step()
                if index == changed:
                    change(net, step)
                gossip.update_wait()
            pace = gossip.connection.node.report()["pace"]["in_pace"]
            gossip.barrier()
        return net, pace

    with patience(), ThreadPoolExecutor(count) as pool:
        found = list(pool.map(run, range(count)))
    assert {tuple(pace) for _, pace in found} == {tuple(f"w{i + 1}" for i in range(count))}
    return [net for net, _ in found]


def once(change):
    def do(net, step):
        if step == 4:
            with torch.no_grad():
                change(net)

    return do


def first_element(net):
    net.large.weight[0, 0] += 1


def last_element(net):
    net.small.bias[-1:] = torch.tensor(-0.0) if net.small.bias[-1] == 0 else net.small.bias[-1] * 2


def inner_element(net):
    net.tied.weight[LARGE // 2, 7] = torch.nan


def frozen(net):
    net.frozen[2] = 5


def loaded(net):
    net.load_state_dict(Net().state_dict())


CHANGES = {
    first_element: ["large.weight"],
    last_element: ["small.bias"],
    inner_element: ["large.weight"],
    frozen: ["frozen"],
    loaded: ["large.weight", "large.bias", "norm.weight", "small.weight"],
}


def are_equal(nets):
    first, *others = [[*net.parameters()] for net in nets]
    return all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.usefixtures("_compares_sooner")
@pytest.mark.parametrize(
    ("change", "count", "transport"),
    [
        pytest.param(first_element, 2, "auto", marks=pytest.mark.slow),
        (last_element, 3, "tcp"),
        pytest.param(inner_element, 3, "auto", marks=pytest.mark.slow),
        (frozen, 2, "tcp"),
        pytest.param(loaded, 3, "auto", marks=pytest.mark.slow),
    ],
)
def test_what_one_node_changes_is_found_named_once_and_made_equal(change, count, transport, caplog):
    changed = 0 if count == 3 else 1  # all take over what most have, or the first one
    nets = train(count, changed, once(change), steps=FEW_STEPS + 8, transport=transport)
    assert are_equal(nets)
    assert nets[0].frozen.tolist() == [1, 1, 1]
    odd = "w1" if count == 3 else "w1, w2"
    lines = [
        each.getMessage() for each in caplog.records if "parameters differ" in each.getMessage()
    ]
    assert len(lines) == count
    tensors = [repr(name) for name in CHANGES[change]]
    giver = "w2" if count == 3 else "w1"
    for line in lines:
        assert f"differ on {odd} in " in line or f"now on {odd} in " in line
        assert any(name in line for name in tensors), line
        assert f"copy the state of {giver}" in line


@pytest.mark.usefixtures("_compares_sooner")
def test_what_one_node_changes_in_every_step_is_told_and_the_run_goes_on(caplog):
    def clamp(net, step):
        with torch.no_grad():
            net.small.weight.clamp_(-0.01, 0.01)

    train(2, 1, clamp, steps=3 * FEW_STEPS + 20)
    again = [each for each in caplog.messages if "parameters differ repeatedly" in each]
    assert len(again) == 2
    assert "now on w1, w2 in 'small.weight'" in again[0]


HIDDEN = weakref.WeakKeyDictionary()


class HiddenMomentum(torch.optim.Optimizer):
    """Keeps its momentum outside of itself, where no node looks for state."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        HIDDEN[self] = {}

    @torch.no_grad()
    def step(self):
        momentum = HIDDEN[self]
        for group in self.param_groups:
            for number, each in enumerate(group["params"]):
                kept = [0.9 * v for v in momentum.get(number, [0.0] * each.numel())]
                momentum[number] = [
                    k + g for k, g in zip(kept, each.grad.flatten().tolist(), strict=True)
                ]
                each.sub_(group["lr"] * torch.tensor(momentum[number]).view(each.shape))


def train_late(optimizer_of, until):
    """Train, from step 20 on with a second node, until something is so."""
    config, stop = config_of(2, algorithm="together"), threading.Event()
    updates = [0, 0]

    def run(index):
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        optimizer = optimizer_of(net.parameters(), 0.1)
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:
            if hasattr(optimizer, "train"):
                optimizer.train()
            while not stop.is_set():
                gossip.update_send()
                optimizer.zero_grad()
                net(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
                gossip.update_wait()
                updates[index] = gossip.updates

    with patience(), ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, 0)
        try:
            eventually(lambda: updates[0] > 20 or first.done())
            late = pool.submit(run, 1)
            eventually(lambda: until(updates) or first.done() or late.done())
        finally:
            stop.set()
        first.result(60), late.result(60)


def test_a_late_node_whose_optimizer_hides_its_state_is_told(caplog):
    train_late(HiddenMomentum, lambda _: "DPWA-W082" in caplog.text)
    assert "parameters differ on w1, w2 in '" in caplog.text
    assert "An optimizer must keep all of its state in its attribute `state`" in caplog.text


def samples_of(net, **settings):
    state = ModuleState(net, with_buffers=True, **settings)
    return [state.sample(turn, EVERY_STEPS) for turn in range(EVERY_STEPS)]


def differing(before, after):
    return {
        name for a, b in zip(before, after, strict=True) for name in b if a.get(name) != b[name]
    }


class Kinds(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Parameter(torch.zeros(()))
        self.none = nn.Parameter(torch.zeros(0, 3))
        self.image = nn.Parameter(torch.randn(5, 4, 3, 3).to(memory_format=torch.channels_last))
        self.turned = nn.Parameter(torch.randn(40, 7).T)
        self.narrow = nn.Parameter(torch.randn(333).bfloat16())
        self.frozen = nn.Parameter(torch.arange(12, dtype=torch.uint8), requires_grad=False)


@pytest.mark.parametrize("name", ["one", "image", "turned", "narrow", "frozen"])
def test_every_element_is_compared_within_so_many_steps_bit_by_bit(name):
    before = samples_of(Kinds())
    size = getattr(Kinds(), name).numel()
    for place in {0, size // 3, size - 1}:
        net = Kinds()
        tensor = getattr(net, name)
        index = torch.unravel_index(torch.tensor(place), tensor.shape)
        with torch.no_grad():
            tensor[index] = -0.0 if name == "one" else 77
        assert differing(before, samples_of(net)) == {name}
    assert differing(before, samples_of(Kinds())) == set()
    same = Kinds()
    same.image = nn.Parameter(same.image.detach().contiguous())
    assert differing(before, samples_of(same)) == set()


def test_frozen_parameters_that_are_not_handed_on_are_not_compared():
    assert not any("frozen" in each for each in samples_of(Kinds(), fits_frozen=True))


def test_nan_of_the_same_bits_is_the_same():
    net = nn.Linear(2, 2)
    net.weight.data.fill_(torch.nan)
    before = samples_of(net)
    assert samples_of(net) == before
    net.weight.data[0, 0].neg_()
    assert differing(before, samples_of(net)) == {"weight"}


@pytest.mark.parametrize("shape", [(8000, 16), (3, 100_000)])
def test_each_step_compares_a_hundredth_only(shape):
    count, size = shape
    found = samples_of(nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in range(count)))
    assert max(map(len, found)) <= count // EVERY_STEPS + 2
    assert set().union(*found) == {str(index) for index in range(count)}


@pytest.mark.parametrize("is_in_module", [True, False])
def test_what_an_optimizer_trains_beside_the_module_is_named(caplog, is_in_module):
    net, loss = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *loss.parameters()], 0.1)
    given = nn.ModuleList([net, loss]) if is_in_module else net
    config = config_of(1, algorithm="together")
    with dpwa.connect(given, optimizer, config=config, name="w1") as gossip:
        for _ in range(2):
            gossip.update_send()
            loss(net(torch.randn(4, 3))).square().mean().backward()
            optimizer.step()
            gossip.update_wait()
    told = (
        "2 tensors in the param_groups of SGD are not parameters of the module. The first tensor "
        "has the shape [1, 2]"
    )
    assert caplog.text.count(told) == (not is_in_module)
