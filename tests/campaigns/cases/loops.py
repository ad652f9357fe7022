"""One training loop with all that people do to loops, and what makes its nodes exchange."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from support.nodes import eventually
from support.optimizers import ScheduleFree
from torch import nn
from torch.utils.data import DataLoader

from dpwa import DpwaConnection
from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.algorithms import EASGD, AllReduceEA, AllReduceSGD
from dpwa.dataset import SharedSampler
from dpwa.errors import PeerLost

ROWS = 8  # of a batch
ITEMS = 40  # of an epoch of a sampler
MAX_WAIT_S = 20.0  # for other threads of a cell


@dataclass
class Plan:
    """What all nodes of a cell do. A feature changes some of it.

    Attributes:
        settings: of the configuration.
        nodes: how many there are.
        steps: how many each takes; `short_steps` says how many fewer the last node takes.
        loop: which calls exchange: send, step, attach or wrapped (a `GossipOptimizer`).
        kind: which class exchanges, in place of an adapter.
        dtype: of all parameters.
        micro: batches of a step.
        has_no_sync: whether all but the last backward pass of a step are in `no_sync`.
        clip: the norm that gradients are clipped to, or the value, by name.
        frozen: tells whether the head is frozen at a step.
        pause_s: how long a node sleeps in a step.
        fault: what happens to the last node in mid-run; then nodes are processes.
        epochs: over items that a `SharedSampler` hands out, in place of a number of steps.
        inside: what is within each node: ddp or fsdp, of two ranks, or the trainer of a library.
            Then nodes are processes, too.
        rank: of this process in its node.
        wrap: makes of the module what is trained.
        late_steps: how many steps the others have taken when the last node connects.
        extras: what a node does after each step, with its driver and the number of the step.
        per_node: settings of one node alone, by its index.
        makes: which parts the module has: batch_norm, tied, sparse, unused.
        kept: what must last as long as the cell.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    nodes: int = 2
    steps: int = 40
    short_steps: int = 0
    loop: str = "send"
    kind: str = ""
    dtype: torch.dtype = torch.float32
    optimizer: str = "SGD"
    has_two_optimizers: bool = False
    has_scheduler: bool = False
    autocasts: bool = False
    scales: bool = False
    micro: int = 1
    has_no_sync: bool = True
    clip: tuple[str, float] | None = None
    frozen: Callable[[int], bool] | None = None
    pause_s: Callable[[int, int], float] = lambda *_: 0.0
    late_steps: int = 0
    fault: str = ""
    epochs: int = 0
    inside: str = ""
    rank: int = 0
    wrap: Callable[[nn.Module], nn.Module] = lambda net: net
    finishes: int = 1
    skips: Callable[[int], bool] = lambda _: False
    chooses_leaders: bool = False
    extras: list[Callable[[Any, int], None]] = field(default_factory=list)
    per_node: list[Callable[[Plan, int], dict[str, Any]]] = field(default_factory=list)
    makes: set[str] = field(default_factory=set)
    kept: list[Any] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """How many processes are a node."""
        return 2 if self.inside in ("ddp", "fsdp") else 1

    @property
    def are_processes(self) -> bool:
        """Whether nodes are processes, else threads."""
        return bool(self.fault or self.inside)

    @property
    def is_lockstep(self) -> bool:
        """Whether all nodes begin each step together."""
        return not (self.late_steps or self.short_steps or self.epochs or self.are_processes)

    def steps_of(self, index: int) -> int:
        """Return how many steps a node takes."""
        return self.steps - (self.short_steps if index == self.nodes - 1 else 0)


class Net(nn.Module):
    """A small regression: what it is to learn is in its reach."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        makes = plan.makes
        self.first = nn.Linear(4, 4)
        self.table = nn.Embedding(6, 4, sparse=True) if "sparse" in makes else None
        self.norm = nn.BatchNorm1d(4) if "batch_norm" in makes else nn.Identity()
        self.second = nn.Linear(4, 4)
        if "tied" in makes:
            self.second.weight = self.first.weight
        self.unused = nn.Linear(3, 3) if "unused" in makes else None
        self.head = nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return two values for each row."""
        hidden = self.first(inputs)
        if self.table is not None:
            hidden = hidden + self.table(rows)
        return self.head(self.second(torch.tanh(self.norm(hidden))))


def net_of(plan: Plan) -> Net:
    """Make the module that all nodes begin with."""
    with _one_seeds:  # torch's generator is that of all threads
        torch.manual_seed(5)
        return Net(plan).to(plan.dtype)


_one_seeds = threading.Lock()
_teacher = torch.randn(4, 2, generator=torch.Generator().manual_seed(11))


Batches = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # of one step


def batch_of(index: int, step: int, micro: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make a batch: inputs, rows of the table, and targets."""
    generator = torch.Generator().manual_seed(100_003 * index + 101 * step + micro)
    inputs = torch.randn(ROWS, 4, generator=generator)
    rows = torch.randint(0, 6, (ROWS,), generator=generator)
    return inputs, rows, torch.tanh(inputs) @ _teacher


def loss_of(net: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the mean squared error of a batch."""
    dtype = next(net.parameters()).dtype
    inputs, rows, targets = batch
    found = net(inputs.to(dtype), rows)
    return (found.float() - targets).square().mean()


def validation_loss(plan: Plan, net: nn.Module) -> float:
    """Return the error on batches that nobody trains on, computed in float64."""
    copied = _plain_copy(plan, net).double()
    batches = [batch_of(977, step, 0) for step in range(4)]
    with torch.no_grad():
        return sum(float(loss_of(copied, batch)) for batch in batches) / len(batches)


def _plain_copy(plan: Plan, net: nn.Module) -> nn.Module:
    """Copy a module, whole if it is sharded, without what is around it."""
    net = getattr(net, "module", net)
    if not any(hasattr(p, "full_tensor") for p in net.parameters()):
        return copy.deepcopy(net)
    copied = net_of(plan)
    for own, shard in zip(copied.parameters(), net.parameters(), strict=True):
        own.data = _whole(shard)
    return copied


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


class Training:
    """A module with its optimizers, scheduler and scaler, as a plan has them."""

    def __init__(self, plan: Plan) -> None:
        self.net = plan.wrap(net_of(plan))
        parameters = list(self.net.parameters())
        groups = [parameters[:2], parameters[2:]] if plan.has_two_optimizers else [parameters]
        self.optimizers = [OPTIMIZERS[plan.optimizer](plan, group) for group in groups]
        self.schedulers = self.schedulers_of(plan)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if plan.scales else None
        for each in self.optimizers:
            if isinstance(each, ScheduleFree):
                each.train()

    def schedulers_of(self, plan: Plan) -> list[torch.optim.lr_scheduler.LRScheduler]:
        """Make a scheduler for each optimizer, if the plan has some."""
        every = self.optimizers if plan.has_scheduler else []
        return [torch.optim.lr_scheduler.StepLR(each, 7, 0.9) for each in every]

    @property
    def to_hand_on(self) -> list[Any]:
        """Schedulers, and the scaler."""
        return [*self.schedulers, *([] if self.scaler is None else [self.scaler])]

    def evaluate(self) -> None:
        """Have the module hold what is to be tested."""
        for each in self.optimizers:
            if hasattr(each, "eval"):
                each.eval()

    def values(self) -> torch.Tensor:
        """Return all parameters in one vector of float64."""
        return torch.cat([_whole(p.detach()).double().flatten() for p in self.net.parameters()])

    def buffers(self) -> torch.Tensor:
        """Return the floating buffers in one vector."""
        kept = [b.double().flatten() for b in self.net.buffers() if b.is_floating_point()]
        return torch.cat(kept) if kept else torch.zeros(0)

    def rates(self) -> list[float]:
        """Return the learning rates."""
        return [group["lr"] for each in self.optimizers for group in each.param_groups]


def _sgd(plan: Plan, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.0 if "sparse" in plan.makes else 0.5)


OPTIMIZERS: dict[str, Callable[[Plan, list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": _sgd,
    "AdamW": lambda _, parameters: torch.optim.AdamW(parameters, 0.02),
    "ScheduleFree": lambda _, parameters: ScheduleFree(parameters, 0.1),
}


class Driver:
    """What exchanges, around one training; this one exchanges nothing."""

    counts_updates = False  # else the loop counts its steps itself
    is_exact = False  # whether all nodes are equal after each step

    def __init__(self, training: Training, index: int) -> None:
        self.training, self.index = training, index
        self.step = 0
        self.skipped_at = -1
        self.merges = 0
        self.reports: list[Any] = []
        self.collectives: Any = None
        self.seen: list[tuple[int, int]] = []

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, loss: float | None) -> None:
        """Do what comes before the forward pass."""

    def gradients(self, loss: float) -> None:
        """Do what comes after the last backward pass."""

    def end(self, loss: float) -> None:
        """Do what comes after the step."""

    def finish(self) -> None:
        """End together."""

    @property
    def pace(self) -> tuple[str, ...]:
        return ()


class Gossip(Driver):
    """An adapter, called as the loop of a plan does."""

    counts_updates = True

    def __init__(self, plan: Plan, training: Training, index: int, adapter: Any) -> None:
        super().__init__(training, index)
        self.plan, self.adapter, self.collectives = plan, adapter, adapter
        self.is_exact = plan.settings.get("algorithm") == "together"
        self.wrapped: GossipOptimizer | None = None
        self._follower = None
        if plan.loop == "attach":
            self._follower = adapter.attach(training.optimizers[-1])
        elif plan.loop == "wrapped":
            self.wrapped = GossipOptimizer(training.optimizers[-1], adapter)
            training.optimizers[-1] = self.wrapped
            training.schedulers = training.schedulers_of(plan)  # made from the wrapper
            adapter.include_optimizer(self.wrapped.optimizer, training.to_hand_on)

    def no_sync(self) -> AbstractContextManager[None]:
        return self.adapter.no_sync()

    def begin(self, loss: float | None) -> None:
        if self.plan.loop == "send":
            self.adapter.update_send(loss)

    def gradients(self, loss: float) -> None:
        for follower in (self._follower, self.wrapped):
            if follower is not None:
                follower.loss = loss
        if self.plan.makes & {"unused"}:
            self.adapter.average_gradients()

    def end(self, loss: float) -> None:
        merge = None
        if self.plan.loop == "send":
            merge = self.adapter.update_wait(loss)
        elif self.plan.loop == "step":
            merge = self.adapter.step(loss)
        elif self._follower is not None:
            merge = self._follower.last_merge
        elif self.wrapped is not None:
            merge = self.wrapped.last_merge
        self.merges += merge is not None
        self.step = self.adapter.updates

    def finish(self) -> None:
        for _ in range(self.plan.finishes):
            end = self.adapter if self.wrapped is None else self.wrapped
            self.reports.append(end.finish(seconds=10.0, timeout_s=20.0))

    @property
    def pace(self) -> tuple[str, ...]:
        """Who is in sync, as this node has it."""
        if self.plan.rank > 0:  # it may have no node
            return ()
        found = self.adapter.connection.node.report().get("pace")
        return tuple(found["in_pace"]) if found else ()


def _state_after_a_step(training: Training) -> list[torch.Tensor]:
    """Return what the optimizers keep, which they have after a step without gradients."""
    for parameter in training.net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in training.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    kept = [
        value
        for each in training.optimizers
        for kept in each.state.values()
        for value in kept.values()
    ]
    return [value for value in kept if isinstance(value, torch.Tensor)]


class Synchronous(Driver):
    """AllReduceSGD, AllReduceEA or EASGD in the loop."""

    def __init__(self, plan: Plan, training: Training, index: int, connection: Any) -> None:
        kind = plan.kind
        super().__init__(training, index)
        self.collectives = connection
        self._parameters = list(training.net.parameters())
        self._state = _state_after_a_step(training) if plan.fault else []
        made = {"AllReduceSGD": AllReduceSGD, "AllReduceEA": AllReduceEA, "EASGD": EASGD}[kind]
        self.sync = made(connection, **({"tau": 5} if kind == "AllReduceEA" else {}))
        self._averages_gradients = kind == "AllReduceSGD"
        self.is_exact = self._averages_gradients
        # Nodes that come later begin with the next epoch, at the step where the others are.
        self._epoch_steps = 20 if plan.fault else 0
        self._synchronize()
        self._agree_on_the_step()

    def _agree_on_the_step(self) -> None:
        while self._epoch_steps:
            tag = "AllReduceSGD" if self._averages_gradients else "AllReduceEA"  # it serves others
            own = torch.tensor(float(self.step))
            with suppress(PeerLost):  # the others go on, and ask again
                self.step = int(self.collectives.all_reduce(own, "max", tag=tag)[0])
                return

    def _synchronize(self) -> None:
        state = self._state if self._averages_gradients else []
        self.sync.synchronize_parameters([*self._parameters, *state])

    def _end_epoch(self) -> None:
        if self._averages_gradients:
            self._synchronize()
        else:
            self.sync.synchronize_center(self._parameters)
        self._agree_on_the_step()

    def gradients(self, loss: float) -> None:
        if self._averages_gradients:
            trained = [p for p in self._parameters if p.requires_grad]
            for parameter in trained:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self.sync.sum_and_normalize_gradients([p.grad for p in trained])

    def end(self, loss: float) -> None:
        if not self._averages_gradients:
            self.sync.average_parameters(self._parameters)
        self.step += 1
        if self._epoch_steps and self.step % self._epoch_steps == 0:
            self._end_epoch()

    def finish(self) -> None:
        self._end_epoch()
        if not self._averages_gradients:
            with torch.no_grad():
                self.sync.copy_center([p.data for p in self._parameters])


class Board:
    """Where threads of one cell meet, and see what the others have."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)
        self.slots: list[Any] = [None] * count
        self.steps = [0] * count
        self.has_begun = [False] * count

    def meet(self) -> None:
        """Wait until all threads are here."""
        self.barrier.wait(MAX_WAIT_S)

    def shared(self, index: int, value: Any) -> list[Any]:
        """Return what all have brought."""
        self.slots[index] = value
        self.meet()
        found = list(self.slots)
        self.meet()
        return found


class Exact(Driver):
    """The reference: threads that average gradients and buffers exactly, without dpwa."""

    def __init__(self, training: Training, index: int, board: Board, kind: str) -> None:
        super().__init__(training, index)
        self._board, self._kind = board, kind
        self._center = [p.detach().clone() for p in training.net.parameters()]
        self._tau, count = {"AllReduceEA": 5, "EASGD": 1}.get(kind, 0), len(board.slots)
        self._alpha = min(0.2, 0.9 / count) if kind == "AllReduceEA" else 0.9 / count

    def gradients(self, loss: float) -> None:
        if self._tau:
            return
        parameters = list(self.training.net.parameters())
        mine = [None if p.grad is None else p.grad.clone() for p in parameters]
        every = self._board.shared(self.index, mine)
        for parameter, *grads in zip(parameters, *every, strict=True):
            used = [grad.to_dense() for grad in grads if grad is not None]
            if used:
                parameter.grad = sum(used[1:], used[0]) / len(every)

    def end(self, loss: float) -> None:
        self.step += 1
        buffers = [b for b in self.training.net.buffers() if b.is_floating_point()]
        every = self._board.shared(self.index, [b.clone() for b in buffers])
        for buffer, *found in zip(buffers, *every, strict=True):
            buffer.copy_(torch.stack(found).mean(0))
        if self._tau and self.step % self._tau == 0:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        parameters = list(self.training.net.parameters())
        moves = [self._alpha * (p - c) for p, c in zip(parameters, self._center, strict=True)]
        every = self._board.shared(self.index, moves)
        for parameter, center, own, *all_of_it in zip(
            parameters, self._center, moves, *every, strict=True
        ):
            parameter.sub_(own)
            center.add_(sum(all_of_it))

    def finish(self) -> None:
        if self._tau:
            self._exchange()
            with torch.no_grad():
                for parameter, center in zip(
                    self.training.net.parameters(), self._center, strict=True
                ):
                    parameter.copy_(center)


@dataclass
class Told:
    """What one node has to say at its end.

    Attributes:
        rows: after each step: its number, who is in sync, and the parameters.
        before: the parameters before `finish`; `after`: at the end.
        losses: on the validation batches, at the begin, then after each step.
        seen: the epoch and the number of each item that a sampler has handed out.
    """

    rows: list[tuple[int, tuple[str, ...], torch.Tensor]]
    losses: list[float]
    before: torch.Tensor
    after: torch.Tensor
    buffers: torch.Tensor
    rates: list[float]
    merges: int
    reports: list[Any]
    updates: int
    seen: list[tuple[int, int]] = field(default_factory=list)


def train(plan: Plan, training: Training, driver: Driver, board: Board) -> Told:
    """Train as a plan says; return what has come of it."""
    index, rows, loss = driver.index, [], None
    losses = [validation_loss(plan, training.net)]
    board.has_begun[index] = True
    if not (plan.late_steps or plan.are_processes):
        board.meet()
    for batches in _from_a_sampler(plan, driver) if plan.epochs else _counted(plan, driver):
        board.steps[index] = step = driver.step
        if plan.is_lockstep:
            board.meet()
        if plan.late_steps and step > plan.late_steps and not board.has_begun[-1]:
            # Without a list, a node that has ended its run is not there for one that comes later.
            time.sleep(0.2)
        loss = _one_step(plan, training, driver, step, batches, loss)
        for extra in plan.extras:
            extra(driver, step)
        rows.append((driver.step, driver.pace, training.values()))
        losses.append(validation_loss(plan, training.net))
    board.steps[index] = plan.steps
    if plan.is_lockstep:
        board.meet()
    before = training.values()
    driver.finish()
    training.evaluate()
    return Told(
        rows,
        [*losses, validation_loss(plan, training.net)],
        before,
        training.values(),
        training.buffers(),
        training.rates(),
        driver.merges,
        driver.reports,
        driver.step,
        driver.seen,
    )


def _counted(plan: Plan, driver: Driver) -> Iterator[Batches]:
    """Yield the batches of each step until there are as many as the plan has."""
    own = driver.index + plan.nodes * plan.rank
    while driver.step < plan.steps_of(driver.index):
        yield [batch_of(own, driver.step, micro) for micro in range(plan.micro)]


def _from_a_sampler(plan: Plan, driver: Driver) -> Iterator[Batches]:
    """Yield batches whose numbers all nodes share."""
    with SharedSampler(ITEMS, driver.collectives, range_size=2) as sampler:
        loader = DataLoader(range(ITEMS), batch_size=1, sampler=sampler)
        for epoch in range(plan.epochs):
            sampler.set_epoch(epoch)
            for item in map(int, sampler.batches(loader)):
                driver.seen.append((epoch, item))
                yield [batch_of(epoch, item, 0)]


def _one_step(
    plan: Plan,
    training: Training,
    driver: Driver,
    step: int,
    batches: Batches,
    loss: float | None,
) -> float:
    if plan.frozen is not None:
        training.net.head.requires_grad_(not plan.frozen(step))
    driver.begin(loss)
    time.sleep(plan.pause_s(driver.index, step))
    for optimizer in training.optimizers:
        optimizer.zero_grad()
    loss = _passes(plan, training, driver, batches)
    driver.gradients(loss)
    if plan.skips(step) and driver.skipped_at != step:
        driver.skipped_at = step  # where only steps are updates, it is the same one again
    else:
        _apply(plan, training)
    _schedule(training)
    driver.end(loss)
    return loss


def _passes(plan: Plan, training: Training, driver: Driver, batches: Batches) -> float:
    total = 0.0
    for micro, batch in enumerate(batches):
        is_last = micro == plan.micro - 1
        waits = plan.has_no_sync and not is_last
        cast = torch.autocast("cpu", torch.bfloat16) if plan.autocasts else nullcontext()
        with driver.no_sync() if waits else nullcontext():
            with cast:
                loss = loss_of(training.net, batch) / plan.micro
            scaler = training.scaler
            (loss if scaler is None else scaler.scale(loss)).backward()
        total += float(loss.detach())
    return total


def _apply(plan: Plan, training: Training) -> None:
    scaler = training.scaler
    if plan.clip is not None:
        for optimizer in training.optimizers if scaler is not None else ():
            scaler.unscale_(optimizer)
        kind, limit = plan.clip
        clip = nn.utils.clip_grad_norm_ if kind == "norm" else nn.utils.clip_grad_value_
        clip(training.net.parameters(), limit)
    for optimizer in training.optimizers:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)


def _schedule(training: Training) -> None:
    if training.scaler is not None:
        training.scaler.update()
    for scheduler in training.schedulers:
        scheduler.step()


@contextmanager
def connected(
    plan: Plan, training: Training, index: int, config: dict[str, Any]
) -> Iterator[Driver]:
    """Connect a training as an algorithm has it, or as a synchronous class does."""
    name = f"w{index + 1}"
    own = {key: value for make in plan.per_node for key, value in make(plan, index).items()}
    if plan.kind:
        with DpwaConnection(name, {**config, **own}) as connection:
            meet_peers(plan, connection)
            yield Synchronous(plan, training, index, connection)
        return
    with DpwaPyTorchAdapter(
        training.net,
        name,
        {**config, **own},
        leader_loss=(lambda: validation_loss(plan, training.net)) if plan.chooses_leaders else None,
        optimizer=training.optimizers[:-1] if plan.loop == "wrapped" else training.optimizers,
        scheduler=training.to_hand_on,
    ) as adapter:
        driver = Gossip(plan, training, index, adapter)
        if plan.rank == 0:
            meet_peers(plan, adapter.connection)
        driver.step = adapter.updates
        yield driver


def meet_peers(plan: Plan, connection: Any) -> None:
    """Wait until all peers are connected; until one is, where another may have ended."""
    if plan.late_steps:
        return
    count = 1 if plan.fault else plan.nodes - 1
    eventually(
        lambda: [link.value for link in connection.node.links.values()].count("up") >= count,
        MAX_WAIT_S,
    )
