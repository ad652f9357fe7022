"""DpwaPyTorchAdapter gossips a `torch.nn.Module`, with two calls in each training step."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dpwa.adapters.merge import Merge, center_of, require_module
from dpwa.adapters.module_state import ModuleState, warn_of_left_out
from dpwa.adapters.optimizer import Attachment, Given, Optimizers, Schedulers
from dpwa.adapters.plain_tensors import is_sharded, reshard
from dpwa.adapters.ranks.alone import Alone, Making
from dpwa.adapters.training_state import TrainingState
from dpwa.collectives.calls import CollectiveCalls
from dpwa.config import Config, ConfigSource
from dpwa.config.endpoints import same_host_key
from dpwa.connection import DpwaConnection
from dpwa.data.kernels import BY_CHANCE, Rounding, are_finite
from dpwa.errors import UserError
from dpwa.lifecycle import Closeable
from dpwa.node.finish import SECONDS, Averaged
from dpwa.node.trainer import Trainer
from dpwa.policy.beginners import TRACE_VALUES, began_apart, with_first_step
from dpwa.policy.finishing import FinishReport
from dpwa.policy.learning_rates import lr_scale
from dpwa.types import JsonObject, Loss, loss_value

if TYPE_CHECKING:
    from dpwa.adapters.gradient_averaging import GradientAveraging
    from dpwa.adapters.ranks.group import RankGroup
    from dpwa.collectives.collectives import Collectives

__all__ = ["DpwaPyTorchAdapter"]

log = logging.getLogger("dpwa")

P = ParamSpec("P")
R = TypeVar("R")


def ranks_of(net: torch.nn.Module) -> Alone:
    """Return the ranks that hold a module together.

    Raises `ParametersError` if parameters are sharded in a way that cannot be gossiped.
    """
    if not dist.is_available():
        return Alone()
    found: Alone | None = None
    if any(isinstance(module, DistributedDataParallel) for module in net.modules()):
        from dpwa.adapters.ranks.replicas import replicas_of

        found = replicas_of(net)
    reshard(net)
    if found is None and any(map(is_sharded, net.parameters())):
        from dpwa.adapters.ranks.shards import shards_of_module

        found = shards_of_module(net)
    return found or Alone()


def by_all_ranks(call: Callable[P, R]) -> Callable[P, R]:
    """Let all ranks call a method of an adapter. See `RankGroup.call`.

    Some optimizers make the module hold other values while they train. These are switched on each
    rank.
    """
    signature = inspect.signature(call)
    begins = call.__name__ == "update_send"  # when leaders are chosen
    ends = call.__name__ == "finish"

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        adapter: Any = args[0]
        if adapter._optimizers.to_prepare:
            if begins and adapter._gradients is not None and not adapter._gradients.has_begun:
                # In a call of its own, as for the others: each switch rounds what it computes.
                with adapter._optimizers.prepared():
                    adapter._gradients.update()
            with adapter._optimizers.prepared(for_good=ends):
                return called(*args, **kwargs)
        if adapter._ranks.is_inside:
            return call(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: given for name, given in bound.arguments.items() if name != "self"}
        ranks: RankGroup = adapter._ranks
        return ranks.call(partial(call, adapter), arguments, with_leader_loss=begins)

    return called


class ConnectionFacts:
    """An adapter's view of its `connection`."""

    connection: DpwaConnection

    @property
    def collectives(self) -> Collectives:
        """The object on which its collectives run."""
        return self.connection.collectives

    @property
    def name(self) -> str:
        """Name of this node."""
        return self.connection.name

    @property
    def clock(self) -> float:
        """Number of updates, interpolated at each merge like the parameters."""
        return self.connection.clock

    @property
    def updates(self) -> int:
        """The number of `update_send` calls in this node's training so far.

        If the node adopts a state at the start, this number continues from that of the state. It
        never falls. Use it for schedules, because merges average the clock, which therefore counts
        no calls.
        """
        return self.connection.updates

    def metrics(self) -> dict[str, float]:
        """Return the figures of this node for a logger, as a flat dict of numbers.

        The names are `dpwa/loss`, `dpwa/merges`, `dpwa/consensus_distance` and so on. docs/watch.md
        lists them. Unknown figures are left out.

            for tag, value in gossip.metrics().items():
                writer.add_scalar(tag, value, step)      # a SummaryWriter of TensorBoard
        """
        return self.connection.metrics()

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers in view."""
        return self.connection.peers

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.connection.described()}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.connection.__reduce_ex__(protocol)


class DpwaPyTorchAdapter(ConnectionFacts, CollectiveCalls, Closeable):
    """Gossips a module while it trains, by the algorithm of the configuration.

        loss = None                               # not measured yet
        with DpwaPyTorchAdapter(net, "w1", "nodes.yaml") as gossip:
            for inputs, targets in batches:
                gossip.update_send(loss)          # publish, start fetching from one peer
                loss = train_step(inputs, targets)
                gossip.update_wait(loss)          # wait for it and merge it, in place
            gossip.finish()                       # average with all others, at the end

    Instead of two calls you can call `gossip.step(loss)`, or attach to the optimizer by `attach`.
    `dpwa.connect` makes an adapter and finds its arguments, whatever started the process.

    Parameters keep their identity, so optimizers stay valid. Trainable parameters of every floating
    dtype are merged, and tied ones are merged once. Frozen parameters and integer buffers are not
    changed. Floating buffers (batch-norm statistics) are averaged with `buffers: average` and kept
    with `buffers: keep`. The module may be on any device. A table in docs/pytorch.md has all kinds
    of tensors.

    The ranks of a `DistributedDataParallel` module are one node. All of them make the adapter, with
    the same name, and make the same calls. Rank 0 of the module's process group gossips, and sends
    the merged parameters to the others. The ranks of a module that `fully_shard` has sharded are
    one node, too. Each rank gossips its shards, at a port of its own. Either all ranks merge, or
    none does.

    Args:
        net: the module. Its trainable parameters may change between rounds, if they change on all
            nodes.
        name: the name of this process's node in the configuration.
        config: a path to a YAML file, a mapping, or a `Config`.
        leader_loss: returns the loss by which leaders are chosen, such as the loss of a validation
            batch that is the same on all nodes. It is called at every `update_send`, and may return
            `None` if it was not measured. By default it is the training loss.
        optimizer: the optimizer of the module, or a list of several. Its state is sent, saved and
            loaded together with the state of the module. A `GossipOptimizer` passes its own
            optimizer.
        scheduler: the learning rate scheduler, or a list of several, with a `GradScaler` if you
            have one. Its state is treated like the optimizer's. With an empty list, the schedulers
            are your own task when a node adopts a state.

    If the node starts from the state of its peers, the constructor may take up to
    `initial_state_timeout_s`. When it returns, the module has this state. See the setting
    `initial_state`.

    Raises:
        ConfigError: the configuration has mistakes.
        UnknownNameError: the configuration has no node of this name.
        AddressError: the node cannot listen at its address.
        ParametersError: the module has nothing to gossip, or a parameter has no dense memory of its
            own, because it is sharded, nested, sparse, quantised, or has no values yet.
    """

    _attachment: Attachment | None = None
    _gradients: GradientAveraging | None = None  # of algorithms that do so

    def __init__(
        self,
        net: torch.nn.Module,
        name: str,
        config: ConfigSource,
        leader_loss: Callable[[], Loss] | None = None,
        optimizer: Given = None,
        scheduler: Schedulers = None,
    ) -> None:
        require_module(net)
        self._ranks = ranks_of(net)
        given = Making(net, name, config, leader_loss, optimizer, scheduler)
        try:
            self._ranks.make(given, self._build, self._begin_with_state)
        except BaseException:
            if hasattr(self, "connection"):
                self.connection.close()
            raise

    def _build(self, given: Making, connection: DpwaConnection) -> tuple[ModuleState, Optimizers]:
        """Make all but the state that it begins with."""
        self.connection = connection
        rounding = BY_CHANCE
        if self._ranks.has_node:
            self._node, self._states = connection.node, connection.states
            self._rounds = self._node.rounds
            rounding = Rounding(self._node.rng("rounding"))
        else:
            elsewhere: Any = connection
            self._node = self._rounds = self._states = elsewhere
        settings = self._node.config
        self._state = ModuleState.from_module(
            given.net, settings, self._ranks.whole_norm(), rounding
        )
        self._generation = self._state.generation
        self._optimizers = Optimizers()
        self._optimizers.begin_watching(self._state)
        self._leader_loss = given.leader_loss
        if self._ranks.has_node:
            check = partial(are_finite, spared=self._state.spared)
            self._trainer = Trainer.from_config(self._rounds, self._state, settings, check)
            if self._ranks.is_alone:  # all ranks must do alike
                self._trainer.took_over = self._optimizers.note_replaced
            self._training = TrainingState.from_module(
                given.net, self._state, settings, self._optimizers
            )
            self._node.describe("training", self._report)
            self._node.describe("model", self._contents)
            warn_of_left_out(given.net, given.name)
            if problem := _crowding(given.name, settings):
                log.warning("%s: %s [DPWA-W104]", given.name, problem)
            if self._rounds.algorithm.averages_gradients:
                self._gradients = self._averaging(given.net)
        self._optimizers.include(given.optimizer, given.scheduler)
        if self._gradients is not None:
            self._gradients.follow()
        return self._state, self._optimizers

    def _averaging(self, net: torch.nn.Module) -> GradientAveraging:
        if not self._ranks.is_alone:
            raise UserError(
                f"`algorithm: {self._node.config.algorithm}` averages the gradients of a module "
                "that each node has whole: expected one that is neither sharded nor in "
                "DistributedDataParallel [DPWA-E308]"
            )
        from dpwa.adapters.gradient_averaging import GradientAveraging

        return GradientAveraging(
            self.connection, net, self._state, self._training, self._optimizers
        )

    def _begin_with_state(self) -> None:
        if self._states.start(self._training.model()) is None:
            self._rounds.begin_with(self._optimizers.trace())
        if self._optimizers.given:
            self._take_over_optimizers()

    def include_optimizer(self, optimizer: Given, scheduler: Schedulers = None) -> None:
        """Send, save and load the state of an optimizer together with the module's state.

        If the module's state was adopted from a peer or a checkpoint, the optimizer's is loaded
        now.

        Args:
            optimizer: one or several. Each replaces those that have the same parameters.
            scheduler: one or several of their schedulers, and a `GradScaler`.

        Raises:
            UserError: one is no optimizer, or no scheduler.
        """
        is_new = self._optimizers.include(optimizer, scheduler)
        if is_new and self._take_over_optimizers():
            self._ranks.share_optimizers(self._optimizers)
        if self._gradients is not None:  # a loop whose optimizer is followed has no update_send
            self._gradients.update()

    @by_all_ranks
    def _take_over_optimizers(self) -> bool:
        """Load the optimizers' state, and return whether the module's state was adopted."""
        self._training.warn_of_left_out(self.name)
        self._states.add_part(self._training.optimizer_target())
        return self._states.origin is not None

    @by_all_ranks
    def update_send(self, loss: Loss = None) -> None:
        """Publish the module's parameters and start to fetch a peer's, without waiting.

        Args:
            loss: the training loss as a number, a numpy scalar, a 0-d tensor, or `None`.

        Raises:
            ParametersError: the module has nothing to gossip.
            ClosedError: the adapter was closed.
            MismatchError: every peer is refused, and `if_refused` is `raise`.
        """
        self._refresh()
        if self._rounds.is_under_way:  # whoever never waits has taken its step by now
            self._copy_state()
        self._states.complete()
        if self._leader_loss is not None:
            self._rounds.choose_leaders_by(loss_value(self._leader_loss()))
        if self._optimizers.is_beginning:
            self._begin()
        if self._gradients is not None:
            self._gradients.update()
        self._trainer.update_send(loss_value(loss))
        if self._rounds.is_ahead:
            self._copy_state()

    def _begin(self) -> None:
        if self.updates == 0:
            trace = self._optimizers.began_with or self._optimizers.trace()
            if began_apart(self._rounds.progress.trace, trace):  # it was loaded meanwhile
                self._rounds.begin_with(trace)
        origin = self._states.origin
        if origin is not None and self.updates == origin.updates:
            self._optimizers.require_schedulers(self.name, self.updates)
        if self.updates > 0:  # some is there only after a step
            self._training.warn_of_left_out(self.name)
        self._optimizers.updated(self.name)

    @by_all_ranks
    def update_wait(self, loss: Loss = None) -> Merge | None:
        """Wait for the fetch that `update_send` started, and merge the snapshot into the module.

        This waits at most until `timeout_ms` after that `update_send`. If `lsgd` jumps to a second
        leader, and if it averages buffers, it waits up to `timeout_ms` again for each. This call
        also does the work of the algorithm that follows a step of the optimizer, and completes the
        exchanges on which peers have agreed with this node.

        Args:
            loss: the current training loss. `None` stands for the loss passed to `update_send`.

        Returns:
            The merge, or the first of several. `None` if no snapshot arrived that can be merged. A
            peer whose loss or parameters have diverged is not merged.

        Raises:
            ClosedError: the adapter was closed.
        """
        self._refresh()  # a tensor that was replaced meanwhile must not be merged into
        self._rounds.is_ahead |= self._rounds.began_at is None
        if self.updates <= 1 and self._gradients is None:
            self._note_first_step(loss_value(loss))
        arrival = self._trainer.update_wait(loss_value(loss))
        if self._gradients is not None:
            self._gradients.stepped()
        if not self._rounds.is_ahead:  # else `update_send` has still to count the step
            self._copy_state()
        return None if arrival is None else Merge.of(arrival, self._trainer.consensus_distance)

    def _note_first_step(self, loss: float | None) -> None:
        """Send peers the trace of the first step. Peers with the same data warn of it."""
        if loss is not None and self._rounds.merges == 0:
            values = self._state.values().samples(TRACE_VALUES)
            self._rounds.begin_with(with_first_step(self._rounds.progress.trace, loss, values))

    def step(self, loss: Loss = None) -> Merge | None:
        """Do all that follows a training step: `update_wait(loss)`, then `update_send(loss)`.

        The fetch that it starts continues during the next training step.

        Returns:
            The merge, as for `update_wait`. The first call returns `None`.
        """
        if self._optimizers.to_prepare:  # once for both calls
            with self._optimizers.prepared():
                return self.step(loss)
        self._rounds.is_ahead = True
        merge = self.update_wait(loss)
        self.update_send(loss)
        return merge

    def _copy_state(self) -> None:
        """Copy the state if a copy is due and as many steps were taken as updates."""
        training, states = self._training, self._states
        if not self._optimizers.tell_steps:
            states.copy_if_due(training.capture)
        elif states.copy_if_due(training.capture_model, training.capture_optimizers):
            self._optimizers.before_next_step(states.complete)

    @by_all_ranks
    def finish(self, *, seconds: float = SECONDS, timeout_s: float | None = None) -> FinishReport:
        """End the training together with the peers. Call this after the last step.

        The node serves its peers until all living peers have taken their last step. It then
        averages its parameters with theirs, until all nodes have the same parameters or come no
        closer. It returns when no node needs this node any more. Nodes do not wait for a peer that
        is dead, does not answer, has left, or has not connected within 10 s after it came into
        view. The call takes at most `timeout_s + seconds`, and a few seconds. It raises no error if
        a peer fails.

        A second call returns the report of the first if all nodes took part in it without a
        problem, no node has trained since, and this node's parameters are the same.

        Args:
            seconds: maximum time to average.
            timeout_s: maximum time to wait for peers that still train. By default it is as long as
                this node has trained itself, and at least a minute.

        Returns:
            The nodes that took part, those that were missing and why, and the distance between
            nodes.

        Raises:
            ClosedError: the adapter was closed.
        """
        self._refresh()
        self._states.complete()
        if self._gradients is not None:
            self._gradients.leave_rounds()
        read, length = self._trainer.merge_peer, self._state.norm
        rest = self._ranks.rest(self._state.rest())
        averaged = Averaged(self._trainer.publish_model, read, self._go_on, length, rest)
        run = partial(self._node.finish.run_finish, seconds=seconds, timeout_s=timeout_s)
        try:
            report = self._ranks.run_finish(averaged, run)
        finally:
            self._state.rounding.forget_rests()
        if report.took_part:  # what the algorithm remembers is of other parameters
            self._rounds.renew_algorithm()
        return report

    def _go_on(self, others_train: bool) -> bool:
        """Take part in exchanges that training peers have begun, and serve new nodes."""
        has_merged = self._trainer.go_on(others_train)
        self._states.copy_if_due(self._training.capture, saves=False)
        self._ranks.still_at_work()
        return has_merged

    def _report(self) -> JsonObject:
        problem = _crowding(self.name, self._node.config)
        return {"consensus_distance": self._trainer.consensus_distance, "problem": problem}

    def _contents(self) -> JsonObject:
        return self._state.contents

    def _refresh(self) -> None:
        self._node.check_process()
        self._state.refresh()
        if self._generation != self._state.generation:
            self._generation = self._state.generation
            self._rounds.renew_algorithm()
            self._optimizers.begin_watching(self._state)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate gradients in the block, where the algorithm averages them."""
        with nullcontext() if self._gradients is None else self._gradients.off():
            yield

    def average_gradients(self) -> None:
        """Average the gradients now, in place, if the algorithm does so and has not done it yet.

        Averaging happens at the end of a backward pass that has given all parameters a gradient. If
        some parameters have none, it happens when the optimizer steps. Call this before that step
        if you want to clip the averaged gradients.
        """
        if self._gradients is not None:
            self._gradients.average()

    @property
    def lr_scale(self) -> float:
        """The factor for this node's learning rate, according to `lr_spread`."""
        spread, nodes = self._node.config.lr_spread, self._node.config.nodes
        if spread == "none":  # with `join`, this node may not be listed
            return 1.0
        return lr_scale(spread, [node.name for node in nodes].index(self.name), len(nodes))

    @property
    def leader(self) -> str | None:
        """The node with the lowest running loss that this node knows of, which may be itself.

        `None` if no leader is known, or the nodes follow no leader.
        """
        self._node.check_process()
        return self._rounds.view.leader()

    def center(self) -> dict[str, torch.Tensor]:
        """Return a copy of this node's center, to test or save in place of the module.

            tester.load_state_dict(gossip.center())

        Returns:
            A copy of the module's state dict, under names without wrappers. The center replaces the
            gossiped parameters. Frozen parameters and buffers are the module's own.

        Raises:
            UserError: the algorithm has no center, or there was no `update_send` yet.
        """
        algorithm = self._rounds.algorithm
        if algorithm.has_center:
            self._refresh()
        return self._state.state_with(center_of(algorithm, self._node.config.algorithm))

    def seed(self, seed: int = 0) -> int:
        """Return a seed for the data of this node, from 0 to 2^32 - 1, which differs between nodes.

            torch.manual_seed(0)                       # the same model on all nodes
            net = Net()
            with dpwa.connect(net) as gossip:
                torch.manual_seed(gossip.seed())       # from here on, other batches on each node

        Each rank of one model has a seed of its own, too. A restarted node has the same seed as
        before.

        Args:
            seed: the seed of the run. A different one gives different seeds on all nodes.
        """
        return zlib.crc32(f"{seed} {self.name} {self._ranks.rank}".encode())

    def attach(self, optimizer: torch.optim.Optimizer) -> Attachment:
        """Let every step of an optimizer be followed by a step of gossip, until the adapter is
        closed.

        One optimizer is followed at a time, and its state is sent with the module's. If the loop
        knows the loss, it can set the `loss` of the returned object.
        """
        if self._attachment is not None:
            self._attachment.close()
        self._attachment = Attachment(optimizer, self)
        return self._attachment

    def close(self) -> None:
        """Stop serving and fetching. This is idempotent and bounded in time."""
        if self._attachment is not None:
            self._attachment.close()
        is_whole = sys.exc_info()[1] is None  # else the loop was interrupted within a step
        if is_whole and self._ranks.has_node and self._node.is_own:
            self._states.complete()
        if self._gradients is not None:
            self._gradients.close()
        self.connection.close()


def _crowding(name: str, config: Config) -> str:
    """Return a warning if the nodes on a host have more threads than it has cores, by default."""
    hosts = {node.name: same_host_key(node.host) for node in config.nodes}
    count = sum(host == hosts.get(name) for host in hosts.values())
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    # By default torch has one for each logical or each real core.
    is_chosen = bool(os.environ.get("OMP_NUM_THREADS")) or threads not in (cores, cores // 2)
    if is_chosen or threads == 1 or threads * count <= cores:
        return ""
    return (
        f"each of the {count} nodes on this host computes with {threads} threads, and the host has "
        f"{cores} cores, so they slow each other down: set OMP_NUM_THREADS={max(1, cores // count)}"
    )
