"""Modules as scripts have them: whatever they are made of, they gossip, or one error says why."""

import copy

import pytest
import torch
from support.nodes import config_of, eventually, merge_of, refuses
from support.state_donors import adapter_of, are_equal, nodes, state_of, two_of
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.adapters.training_state import TrainingState
from dpwa.errors import ParametersError

CONSTANT = {"interpolation": "constant"}


def trained(make, seed, loss):
    """A module that all nodes begin with alike, after steps of its own."""
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    torch.manual_seed(seed)
    for _ in range(3):
        optimizer.zero_grad()
        loss(net).backward()
        optimizer.step()
    return net


def means(one, two):
    """The means of the parameters of two modules."""
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return [(a.detach() + b.detach()) / 2 for a, b in pairs]


# Parametrisations: what is trained is averaged, and the weight is made of it


def weight_of(net):
    net(torch.ones(1, 6))
    return net.weight.detach()


def is_orthogonal(weight):
    torch.testing.assert_close(weight @ weight.T, torch.eye(6))


def has_norm_of_g(weight, net):
    g = net.weight_g if hasattr(net, "weight_g") else net.parametrizations.weight.original0
    torch.testing.assert_close(weight.norm(dim=1, keepdim=True), g.detach())


def has_spectral_norm_1(weight, net):
    for _ in range(30):  # power iterations, as training makes them
        weight = weight_of(net)
    assert torch.linalg.svdvals(weight)[0].item() == pytest.approx(1.0, abs=0.02)


PARAMETRISED = {
    "weight_norm": (parametrizations.weight_norm, has_norm_of_g),
    "legacy weight_norm": (nn.utils.weight_norm, has_norm_of_g),
    "spectral_norm": (parametrizations.spectral_norm, has_spectral_norm_1),
    "legacy spectral_norm": (nn.utils.spectral_norm, has_spectral_norm_1),
    "orthogonal": (parametrizations.orthogonal, lambda weight, _: is_orthogonal(weight)),
}


@pytest.mark.parametrize("kind", PARAMETRISED)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # the legacy ones are
def test_the_weight_of_a_parametrised_layer_is_made_of_averaged_parameters(kind):
    parametrised, is_right = PARAMETRISED[kind]

    def net(seed):
        return trained(
            lambda: parametrised(nn.Linear(6, 6)), seed, lambda n: n(torch.randn(4, 6)).exp().mean()
        )

    one, two = net(1), net(2)
    wanted = means(one, two)
    with two_of(one, two, **CONSTANT) as (first, second):
        merge_of(first, second)
    torch.testing.assert_close([p.detach() for p in one.parameters()], wanted)
    is_right(weight_of(one), one)
    late = TrainingState(two)
    part = TrainingState(one).capture()["model"]
    late.model().load(part.image, part.numbers)
    torch.testing.assert_close(weight_of(one), weight_of(two))


def test_a_parametrisation_of_later_is_another_model_on_both_sides_alike():
    one, two = nn.Linear(6, 6), nn.Linear(6, 6)
    with two_of(one, two, **CONSTANT) as (first, second):
        merge_of(first, second)
        for net in (one, two):
            parametrizations.weight_norm(net)
        merge_of(first, second)
        for net in (one, two):
            parametrize.remove_parametrizations(net, "weight")
        wanted = (one.weight + two.weight).detach() / 2
        merge_of(first, second)
    torch.testing.assert_close(one.weight.detach(), wanted)


# Sparse gradients and empty tensors


def words(seed):
    torch.manual_seed(seed)
    return nn.EmbeddingBag(50, 8, sparse=True, mode="sum")


def test_a_sparse_embedding_is_gossiped_with_sparse_adam_and_handed_on():
    config = config_of(2, **CONSTANT)
    nets = [words(seed) for seed in (1, 2, 3)]
    adams = [torch.optim.SparseAdam(net.parameters(), lr=0.1) for net in nets]
    made = [adapter_of(nets[i], f"w{i + 1}", config, optimizer=adams[i]) for i in (0, 1)]
    with nodes(*made):
        optimizers = [GossipOptimizer(adams[i], made[i]) for i in (0, 1)]

        def merged():
            for net, optimizer in zip(nets, optimizers, strict=False):
                optimizer.zero_grad()
                net(torch.tensor([[1, 4, 4]])).sum().backward()
                assert net.weight.grad.is_sparse
                optimizer.step()
            return optimizers[0].last_merge

        eventually(merged)
    states = [TrainingState(net) for net in nets]
    for state, adam in zip(states, adams, strict=True):
        state.optimizers.include(adam)
    part = states[0].capture()["optimizer"]
    states[2].optimizer_target().load(part.image, part.numbers)
    own, taken = adams[0].state[nets[0].weight], adams[2].state[nets[2].weight]
    assert own["step"] == taken["step"] >= 1
    assert torch.equal(own["exp_avg"], taken["exp_avg"])


@pytest.mark.parametrize(
    "settings", [{"transport": "tcp"}, {"algorithm": "symmetric"}, {"guard": "off"}]
)
def test_a_causal_mask_in_a_buffer_keeps_nobody_from_merging(settings):
    def masked(value):
        net = nn.Linear(4, 1)
        nn.init.constant_(net.weight, value)
        net.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        return net

    one, two = masked(1.0), masked(3.0)
    with two_of(one, two, **CONSTANT, **settings) as (first, second):
        merge_of(first, second)
    assert one.weight.tolist() == [[2.0] * 4]
    assert torch.equal(one.mask, two.mask)
    assert one.mask[0].tolist() == [0.0] + [-torch.inf] * 3


def test_empty_parameters_are_carried_along():
    def net(value):
        made = nn.Linear(3, 2)
        nn.init.constant_(made.bias, value)
        made.empty, made.none = nn.Parameter(torch.zeros(0, 5)), nn.Parameter(torch.zeros(0))
        made.register_buffer("nothing", torch.zeros(3, 0))
        return made

    one, two = net(1.0), net(3.0)
    with two_of(one, two, **CONSTANT) as (first, second):
        merge_of(first, second)
        assert first.connection.node.report()["model"]["parameters"]["tensors"] == 4
    assert bool((one.bias == 2.0).all())
    part = TrainingState(one).capture()["model"]
    TrainingState(two).model().load(part.image, part.numbers)
    assert are_equal(state_of(one), state_of(two))


# Quantised modules


def quantised(*layers):
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(*layers), dtype=torch.qint8)


QUANTISED = {
    "a layer": lambda: quantised(nn.LayerNorm(8), nn.Linear(8, 8)),
    "a recurrent one": lambda: quantised(nn.LayerNorm(8), nn.LSTM(8, 8)),
    "all of it": lambda: quantised(nn.Linear(8, 8)),
}


@pytest.mark.parametrize("make", QUANTISED.values(), ids=QUANTISED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_quantised_module_is_refused_by_name(make):
    with pytest.raises(ParametersError, match=r"module '[01]\..*' is a quantised .*afterwards"):
        DpwaPyTorchAdapter(make(), "w1", config_of(2))


def test_a_module_that_is_to_be_quantised_is_gossiped():
    one, two = (
        nn.Sequential(torch.ao.nn.quantized.FloatFunctional(), nn.Linear(2, 2)) for _ in range(2)
    )
    wanted = means(one, two)
    with two_of(one, two, **CONSTANT) as (first, second):
        merge_of(first, second)
    torch.testing.assert_close([p.detach() for p in one.parameters()], wanted)


# Modules that are changed after the adapter was made


def cast(dtype):
    return lambda net: net.to(dtype)


CHANGES = {
    "a parameter replaced": lambda net: setattr(net[0], "weight", nn.Parameter(torch.ones(3, 3))),
    "a layer added": lambda net: net.append(nn.Linear(3, 2)),
    "frozen": lambda net: net[0].requires_grad_(False),
    "half": lambda net: net.half(),
    "float64": cast(torch.float64),
    "bfloat16": cast(torch.bfloat16),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_module_is_changed_on_all_nodes_alike_or_refused_until_it_is(kind):
    change = CHANGES[kind]
    one, two = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2))
    with two_of(one, two, **CONSTANT) as (first, second):
        merge_of(first, second)
        change(one)
        if kind != "a parameter replaced":  # by one of the same kind: nobody can tell
            eventually(lambda: refuses(first, second, "other_model"))
        change(two)
        before = means(*(copy.deepcopy(net).float() for net in (one, two)))
        merge_of(first, second)
    for tensor, mean in zip(one.parameters(), before, strict=True):
        if tensor.requires_grad:
            torch.testing.assert_close(tensor.detach().float(), mean, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("settings", [{}, {"state": "trainable"}])
def test_an_unfrozen_layer_is_gossiped_once_both_have_unfrozen_it(settings):
    one, two = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2))
    for net in (one, two):
        net[0].requires_grad_(False)
    wanted = (one[1].bias + 3 * two[1].bias).detach() / 4  # merged twice
    with torch.no_grad():
        two[0].load_state_dict(one[0].state_dict())
    kept = one[0].weight.detach().clone()
    with two_of(one, two, **CONSTANT, **settings) as (first, second):
        merge_of(first, second)
        assert torch.equal(one[0].weight, kept)
        for net in (one, two):
            net[0].requires_grad_(True)
        nn.init.constant_(two[0].weight, 1.0)
        merge_of(first, second)
    torch.testing.assert_close(one[0].weight.detach(), (kept + 1) / 2)
    torch.testing.assert_close(one[1].bias.detach(), wanted)


# Many tensors, and several modules


class ManyTensors(nn.Module):
    """A module of very many small parameters."""

    def __init__(self, count, value):
        super().__init__()
        self.all = nn.ParameterList([torch.full((4,), value) for _ in range(count)])


def test_thousands_of_tensors_are_merged_and_handed_on():
    one, two = ManyTensors(2000, 1.0), ManyTensors(2000, 3.0)
    with two_of(one, two, **CONSTANT) as (first, second):
        merge_of(first, second)
    assert all(bool((tensor == 2.0).all()) for tensor in one.parameters())
    part = TrainingState(one).capture()["model"]
    TrainingState(two).model().load(part.image, part.numbers)
    assert all(bool((tensor == 2.0).all()) for tensor in two.parameters())


def test_two_models_of_one_process_gossip_each_with_its_own_peers():
    configs = [config_of(2, **CONSTANT) for _ in range(2)]
    generators = [nn.Linear(2, 3), nn.Linear(2, 3)]
    critics = [nn.Linear(3, 1), nn.Linear(3, 1)]
    wanted = means(*generators), means(*critics)
    made = [
        adapter_of(net, name, config)
        for nets, config in zip((generators, critics), configs, strict=True)
        for net, name in zip(nets, ("w1", "w2"), strict=True)
    ]
    with nodes(*made) as (generator, other_generator, critic, other_critic):
        merge_of(generator, other_generator)
        merge_of(critic, other_critic)
    for net, mean in zip((generators[0], critics[0]), wanted, strict=True):
        torch.testing.assert_close([p.detach() for p in net.parameters()], mean)
