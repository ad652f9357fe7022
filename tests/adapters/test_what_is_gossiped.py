"""What of a module is gossiped and what is not: each row of the table in docs/pytorch.md."""

import gc
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.nodes import at_once, config_of, eventually, merge_of
from support.state_donors import two_of
from torch import nn

import dpwa
from dpwa import DpwaConnection
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.adapters.training_state import TrainingState
from dpwa.errors import AddressError, ParametersError, UserError

DOCS = Path(__file__).parents[2] / "docs" / "pytorch.md"
F8 = torch.float8_e5m2


class Holder(nn.Module):
    """A module with one parameter to gossip, and one tensor in question."""

    def __init__(self, tensor=None, *, persistent=None):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        if persistent is None:
            self.other = tensor
        else:
            self.register_buffer("other", tensor, persistent=persistent)


def parameter(dtype, *, frozen=False):
    is_trainable = not frozen and (dtype.is_floating_point or dtype.is_complex)
    return lambda value: Holder(
        nn.Parameter(torch.full((3,), value).to(dtype), requires_grad=is_trainable)
    )


def buffer(dtype, *, persistent=True):
    return lambda value: Holder(torch.full((3,), value).to(dtype), persistent=persistent)


def expanded(value):
    return Holder(torch.tensor([value]).expand(3), persistent=True)


def mask(*values):
    """Bits that differ between both nodes, or what stays as it is with them."""
    return lambda value: Holder(torch.tensor([value, 1.0 - value, *values]), persistent=True)


def transposed(value):
    net = Holder(nn.Parameter(torch.full((1, 3), value)))
    net.again = nn.Parameter(net.other.detach().t())
    return net


def tied(value):
    net = Holder(nn.Parameter(torch.full((3,), value)))
    net.again = net.other
    return net


# Row of the table: how to make the module, and whether its tensor is merged.
ROWS = {
    "trainable parameters: float64, float32, float16, bfloat16, float8": [
        (parameter(dtype), True)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, F8)
    ],
    "trainable complex parameters": [(parameter(torch.complex64), True)],
    "tied parameters": [(tied, True)],
    "parameters that share memory, such as a transposed one": [(transposed, True)],
    "frozen parameters that count as buffers, with `statistics`": [
        (parameter(dtype, frozen=True), True) for dtype in (torch.float32, torch.bfloat16)
    ],
    "frozen parameters": [(parameter(torch.float32, frozen=True), False)],
    "integer and bool parameters": [(parameter(torch.int64), False)],
    "floating buffers, with `buffers: average`": [
        (buffer(dtype), True) for dtype in (torch.float32, torch.bfloat16, F8)
    ],
    "masks and other constants in floating buffers": [
        (mask(0.0), False),
        (mask(float("-inf")), False),
        (mask(float("nan")), False),
    ],
    "floating buffers, with `buffers: keep`": [(buffer(torch.float32), False)],
    "integer and bool buffers": [(buffer(torch.int64), False), (buffer(torch.bool), False)],
    "complex buffers": [(buffer(torch.complex64), False)],
    "non-persistent buffers": [(buffer(torch.float32, persistent=False), False)],
    "expanded buffers": [(expanded, False)],
}


def table():
    """Rows of the table in the docs: what it says of gossip, and of the state."""
    lines = DOCS.read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return {row[0]: row[1:] for row in rows if len(row) == 4}


def test_every_row_is_tested():
    assert set(ROWS) < set(table())
    left = set(table()) - set(ROWS)
    others = [
        "DTensors of `fully_shard`",
        "nested, sparse, quantised, meta, fake",
        "tensor",
    ]
    assert sorted(left)[1:] == others  # see test_sharded_models.py for the first


@pytest.mark.parametrize(
    ("row", "make", "is_merged"),
    [(row, *case) for row, cases in ROWS.items() for case in cases],
)
def test_a_row_of_the_table_is_true(row, make, is_merged):
    says = table()[row]
    assert says[0].startswith("yes" if is_merged else "no")
    one, two = make(1.0), make(0.0)
    settings = {"buffers": "keep"} if "keep" in row else {}
    settings |= {"statistics": ["ot*r"]} if "`statistics`" in row else {}
    with two_of(one, two, interpolation="constant", **settings) as (first, second):
        merge_of(first, second)
        model = first.connection.node.report()["model"]
    value = one.other.detach().reshape(-1)[0].to(torch.complex64).real.item()
    assert value == (0.5 if is_merged else 1.0)
    counts = {name: model[name]["tensors"] for name in ("parameters", "buffers", "frozen")}
    own = {p.data_ptr(): p for p in nn.Module.parameters(one)}.values()
    assert counts["parameters"] == sum(p.requires_grad for p in own)
    assert counts["buffers"] == int(is_merged and "buffers" in row)
    assert counts["frozen"] == int(row in ("frozen parameters", "integer and bool parameters"))
    is_shared = row in ("tied parameters", "parameters that share memory, such as a transposed one")
    left = 0 if (is_merged and not is_shared) or counts["frozen"] else 1
    assert sum(model["left_alone"].values()) == left
    assert model["elements"] == 2 + (3 if is_merged else 0)
    in_state = [spec.name for spec in TrainingState(one).capture()["model"].kind.tensors]
    assert says[1].startswith("yes") == ("other" in in_state)


class Statistics(nn.Module):
    """Keeps its statistics in frozen parameters, as Keras does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.mean, self.base = (nn.Parameter(torch.zeros(2), requires_grad=False) for _ in "ab")

    def forward(self, batch):
        with torch.no_grad():
            self.mean.lerp_(batch.mean(0), 0.5)
        return self.layer(batch - self.mean)


@pytest.mark.parametrize("settings", [{"algorithm": "together"}, {"state": "trainable"}])
def test_statistics_in_frozen_parameters_are_averaged_while_they_change(settings, caplog):
    config = config_of(2, statistics=["mean"], **settings)
    nets = Statistics(), Statistics()
    nets[1].load_state_dict(nets[0].state_dict())

    def train(number):
        net, optimizer = nets[number], torch.optim.SGD(nets[number].parameters(), 0.01)
        with DpwaPyTorchAdapter(net, f"w{number + 1}", config, optimizer=optimizer) as gossip:
            assert gossip.connection.wait_for_peers()
            for step in range(60):
                optimizer.zero_grad()
                net(torch.full((4, 2), float(2 * number + step % 2))).sum().backward()
                optimizer.step()
                gossip.update_send(1.0)
                gossip.update_wait(1.0)
            report = gossip.finish()
            assert not report.differing
            assert gossip.connection.node.report()["model"]["buffers"]["tensors"] == 1
            assert gossip.connection.node.report()["model"]["frozen"]["tensors"] == 1

    at_once([lambda number=number: train(number) for number in range(2)])
    torch.testing.assert_close(nets[0].mean, nets[1].mean)
    assert 0.5 < nets[0].mean[0] < 2.5  # means of both, 0 to 1 and 2 to 3
    assert not [text for text in caplog.messages if "mean" in text]


def test_statistics_that_are_unfrozen_train_and_names_that_fit_nothing_are_refused():
    net = Statistics()
    with DpwaPyTorchAdapter(net, "w1", config_of(1, statistics=["m?an"])) as gossip:
        net.mean.requires_grad_(True)
        gossip.update_send(1.0)
        gossip.update_wait(1.0)
        assert gossip.connection.node.report()["model"]["buffers"]["tensors"] == 0
    with pytest.raises(UserError, match=r"'\*/moving_mean' \(frozen parameters: base\) .*E311"):
        DpwaPyTorchAdapter(net, "w1", config_of(1, statistics=["*/moving_mean"]))


@pytest.fixture(scope="module")
def _group_of_one():
    """A process group of this process alone; torch keeps some of its sockets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        sharded()
        yield
        dist.destroy_process_group()


def sharded():
    from torch.distributed.fsdp import fully_shard

    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    for layer in net:
        fully_shard(layer)
    return fully_shard(net)


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return nn.Linear(2, 2)


def freed():
    net = nn.Linear(2, 2)
    net.weight.untyped_storage().resize_(0)
    return net


def nested(layout):
    parts = [torch.ones(2), torch.ones(3)]
    return Holder(nn.Parameter(torch.nested.nested_tensor(parts, layout=layout)))


def quantised():
    values = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    return Holder(nn.Parameter(values, requires_grad=False))


UNFIT = {
    "nested": (lambda: nested(torch.strided), "'other' cannot be gossiped: it is a nested tensor"),
    "jagged": (lambda: nested(torch.jagged), "'other' cannot be gossiped: it is a nested tensor"),
    "sparse": (
        lambda: Holder(nn.Parameter(torch.eye(2).to_sparse())),
        "'other' cannot be gossiped: its layout is torch.sparse_coo, not dense",
    ),
    "frozen sparse": (
        lambda: Holder(nn.Parameter(torch.eye(2).to_sparse(), requires_grad=False)),
        "'other' cannot be sent or saved in checkpoints: its layout is torch.sparse_coo",
    ),
    "quantised": (quantised, "'other' cannot be sent or saved in checkpoints: it is quantised"),
    "conjugated": (
        lambda: Holder(nn.Parameter(torch.ones(3, dtype=torch.complex128).conj())),
        "'other' cannot be gossiped: it is a lazy view .* `.resolve_conj\\(\\)`",
    ),
    "negated": (
        lambda: Holder(nn.Parameter(torch.ones(3, dtype=torch.complex64).conj().imag)),
        "'other' cannot be gossiped: it is a lazy view .* `.resolve_neg\\(\\)`",
    ),
    "fake": (fake, "'weight' cannot be gossiped: it is a FakeTensor"),
    "freed": (freed, "'weight' cannot be gossiped: its memory was freed"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), "'weight' .* it is on the meta device"),
    "lazy": (lambda: nn.LazyLinear(3), "'weight' cannot be gossiped: it has no shape before"),
    "only empty": (
        lambda: nn.Linear(0, 0),
        "Linear has no trainable .* parameter with any elements",
    ),
    "none": (nn.ReLU, "ReLU has no trainable floating-point parameter"),
}


@pytest.mark.parametrize("kind", UNFIT)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_group_of_one")
def test_tensors_without_memory_of_their_own_are_refused_by_name(kind):
    make, words = UNFIT[kind]
    net = make()
    with pytest.raises(ParametersError, match=words):
        DpwaPyTorchAdapter(net, "w1", config_of(2))
    if kind not in ("only empty", "none"):
        with pytest.raises(ParametersError, match=words):
            TrainingState(net).capture()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_group_of_one")
def test_a_module_that_is_sharded_over_one_rank_is_like_a_plain_one():
    from torch.distributed.fsdp import fully_shard

    net = nn.Linear(4, 4)
    with DpwaPyTorchAdapter(net, "w1", config_of(2)) as gossip:
        plain = gossip._state.layout
        gossip.update_send()
        fully_shard(net)
        gossip.update_send()
        assert gossip._state.layout == plain


def test_a_sparse_buffer_is_left_out_with_a_warning(caplog):
    net = Holder(torch.eye(2).to_sparse(), persistent=True)
    with DpwaPyTorchAdapter(net, "w1", config_of(2)) as gossip:
        model = gossip.connection.node.report()["model"]
    assert "buffer 'other' is not gossiped, sent or saved" in caplog.text
    assert model["left_alone"] == {"buffers without dense memory of their own": 1}


@pytest.mark.usefixtures("_group_of_one")
def test_a_distributed_module_of_one_rank_is_a_plain_one():
    settings = {"merge": "interpolate", "constant": {"value": 1.0}}  # copies, bit for bit
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    with two_of(nn.parallel.DistributedDataParallel(one), two, **settings) as (first, second):

        def attempt():
            second.update_send()
            return first.step()

        eventually(attempt, timeout_s=30)
        assert first.members == ("w1", "w2")
    assert torch.equal(one.weight, two.weight)


# A cell of a notebook that is run again


def test_a_second_node_of_a_name_is_told_who_holds_the_port():
    config = config_of(2)
    with DpwaPyTorchAdapter(nn.Linear(2, 2), "w1", config):
        with pytest.raises(
            AddressError, match=r"node \'w1\' of this process uses this address\. Call close\(\)"
        ):
            DpwaPyTorchAdapter(nn.Linear(2, 2), "w1", config)
        with pytest.raises(AddressError, match=re.escape("dpwa.close_all()")):
            DpwaConnection("w1", config)


def test_a_node_that_nobody_holds_is_closed_when_another_of_its_name_is_made():
    config = config_of(2)
    forgotten = [DpwaPyTorchAdapter(nn.Linear(2, 2), "w1", config)]
    forgotten.append(forgotten)  # only the collector finds out
    gc.disable()
    try:
        del forgotten
        with DpwaPyTorchAdapter(nn.Linear(2, 2), "w1", config) as gossip:
            assert not gossip.connection.node.closed
    finally:
        gc.enable()


def test_all_nodes_of_a_process_can_be_closed_at_once():
    config = config_of(2)
    gossip = DpwaPyTorchAdapter(nn.Linear(2, 2), "w1", config)
    dpwa.close_all()
    assert repr(gossip).endswith("closed>")
    with DpwaConnection("w1", config):
        pass


def test_what_is_shown_of_adapters_connections_and_merges():
    config = config_of(2)
    with (
        DpwaPyTorchAdapter(nn.Linear(2, 2), "w1", config) as gossip,
        DpwaConnection("w2", config) as connection,
    ):
        port = config["nodes"][0]["port"]
        shown = f"<DpwaPyTorchAdapter 'w1' at tcp://127.0.0.1:{port}, clock 0, "
        assert repr(gossip).startswith(shown)
        eventually(lambda: repr(gossip).endswith("1 of 1 peers connected>"))
        assert repr(connection).startswith("<DpwaConnection 'w2' at tcp://")
    merge = dpwa.adapters.merge.Merge("w2", 0.5, 12.0, None, -1.0, 0.00123456, 1.23456)
    assert repr(merge) == (
        "Merge(peer='w2', factor=0.5, peer_clock=12, peer_loss=unknown, staleness=-1, "
        "waited_s=0.00123, consensus_distance=1.235)"
    )


def test_an_adapter_cannot_be_pickled():
    import pickle

    with (
        DpwaPyTorchAdapter(nn.Linear(2, 2), "w1", config_of(2)) as gossip,
        pytest.raises(UserError, match="cannot be pickled or copied"),
    ):
        pickle.dumps(gossip)
