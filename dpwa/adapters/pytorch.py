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
    """Return the group of processes, called ranks, that share one sharded or replicated module.

    Raises `ParametersError` if parameters are sharded in a way that dpwa cannot gossip.
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
    """Run a method on every rank of a sharded or replicated module. See `RankGroup.call`.

    Before the call, each rank switches optimizers with modes to their evaluated parameters, and
    back after the call.
    """
    signature = inspect.signature(call)
    begins = call.__name__ == "update_send"  # the ranks also exchange the loss that picks leaders
    ends = call.__name__ == "finish"

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        adapter: Any = args[0]
        if adapter._optimizers.to_prepare:
            if begins and adapter._gradients is not None and not adapter._gradients.has_begun:
                # A separate switch, as on nodes without modes, because each switch rounds the
                # parameters.
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
    """Properties that an adapter reads from its `connection`."""

    connection: DpwaConnection

    @property
    def collectives(self) -> Collectives:
        """The object that runs the collectives of this node."""
        return self.connection.collectives

    @property
    def name(self) -> str:
        """The name of this node."""
        return self.connection.name

    @property
    def clock(self) -> float:
        """The number of updates, as a float. A merge averages this number like parameters."""
        return self.connection.clock

    @property
    def updates(self) -> int:
        """The number of `update_send` calls in this node's training so far.

        If the node adopts a state at the start, counting continues from the number in that state.
        The number never falls. Use it for schedules. The clock is no substitute, because merges
        average it.
        """
        return self.connection.updates

    def metrics(self) -> dict[str, float]:
        """Return the figures of this node for a logger, as a flat dict of numbers.

        The names are `dpwa/loss`, `dpwa/merges`, `dpwa/consensus_distance` and so on. docs/watch.md
        lists them. Figures that are not known yet are missing.

            for tag, value in gossip.metrics().items():
                writer.add_scalar(tag, value, step)      # a SummaryWriter of TensorBoard
        """
        return self.connection.metrics()

    @property
    def peers(self) -> tuple[str, ...]:
        """The names of the peers that this node knows."""
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
                gossip.update_send(loss)          # publish, start to fetch from one peer
                loss = train_step(inputs, targets)
                gossip.update_wait(loss)          # wait for that peer, and merge it in place
            gossip.finish()                       # average with all other nodes, at the end

    Instead of the two calls, you can call `gossip.step(loss)`, or call `attach(optimizer)` once.
    `dpwa.connect` finds the arguments from the launcher's environment, and makes an adapter.

    Merges write in place, so optimizers stay valid. Trainable parameters of every floating dtype
    are merged, and tied parameters are merged once. Frozen parameters and integer buffers do not
    change. Floating buffers (batch-norm statistics) are averaged with `buffers: average` and not
    changed with `buffers: keep`. The module may be on any device. A table in docs/pytorch.md lists
    all kinds of tensors.

    The ranks of a `DistributedDataParallel` module form one node. All ranks make the adapter with
    the same name, and make the same calls. Rank 0 of the module's process group gossips, and sends
    the merged parameters to the other ranks. The ranks of a module that `fully_shard` has sharded
    form one node, too. Each of these ranks gossips its own shards, at its own port. Either all
    ranks merge, or no rank merges.

    Args:
        net: the module. Between rounds you may change which parameters are trainable, if you
            make the same change on all nodes.
        name: the name of this process's node in the configuration.
        config: a path to a YAML file, a mapping, or a `Config`.
        leader_loss: a function that returns the loss by which nodes choose leaders. A good choice
            is the loss on a validation batch that is the same on all nodes. Each `update_send`
            calls the function. It may return `None` if it has no loss. The default is the training
            loss.
        optimizer: the optimizer of the module, or a list of several. Its state is sent, saved and
            loaded together with the state of the module. For a `GossipOptimizer`, this is the
            optimizer that it wraps.
        scheduler: the learning rate scheduler, or a list of several, with a `GradScaler` if you
            use one. Its state is sent, saved and loaded, too. If you pass an empty list, you must
            restore the schedulers yourself when a node adopts a state.

    If the node adopts the state of a peer at the start, the constructor takes up to
    `initial_state_timeout_s`. The module has this state when the constructor returns. See the
    setting `initial_state`.

    Raises:
        ConfigError: the configuration has mistakes.
        UnknownNameError: the configuration has no node of this name.
        AddressError: the node cannot listen at its address.
        ParametersError: the module has nothing to gossip, or a parameter has no dense memory of its
            own, because it is sharded, nested, sparse or quantised, or has no values yet.
    """

    _attachment: Attachment | None = None
    _gradients: GradientAveraging | None = None  # only if the algorithm averages gradients

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
        """Make the adapter's objects, but not yet the state with which the training starts."""
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
            if self._ranks.is_alone:  # a module of several ranks must do the same on each rank
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
                f"`algorithm: {self._node.config.algorithm}` averages gradients, so each node must "
                "have the whole module in one process. This module is sharded or in "
                "DistributedDataParallel. Pass the plain module, or choose another algorithm "
                "[DPWA-E308]"
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

        If this node adopted the module's state from a peer or a checkpoint, it loads the
        optimizer's state now.

        Args:
            optimizer: one or several. Each replaces the earlier optimizers that share a parameter.
            scheduler: one or several schedulers, and a `GradScaler` if you use one.

        Raises:
            UserError: an object is no optimizer, or no scheduler.
        """
        is_new = self._optimizers.include(optimizer, scheduler)
        if is_new and self._take_over_optimizers():
            self._ranks.share_optimizers(self._optimizers)
        if self._gradients is not None:  # an attached loop does not call update_send
            self._gradients.update()

    @by_all_ranks
    def _take_over_optimizers(self) -> bool:
        """Load the optimizers' state. Return whether the state comes from a peer or checkpoint."""
        self._training.warn_of_left_out(self.name)
        self._states.add_part(self._training.optimizer_target())
        return self._states.origin is not None

    @by_all_ranks
    def update_send(self, loss: Loss = None) -> None:
        """Publish the module's parameters and start to fetch a peer's parameters, without waiting.

        Args:
            loss: the training loss as a number, a numpy scalar, a 0-d tensor, or `None`.

        Raises:
            ParametersError: the module has nothing to gossip.
            ClosedError: the adapter was closed.
            MismatchError: this node refuses every peer, and `if_refused` is `raise`.
        """
        self._refresh()
        if self._rounds.is_under_way:  # a loop without `update_wait` has taken its step by now
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
            if began_apart(self._rounds.progress.trace, trace):  # a state was loaded meanwhile
                self._rounds.begin_with(trace)
        origin = self._states.origin
        if origin is not None and self.updates == origin.updates:
            self._optimizers.require_schedulers(self.name, self.updates)
        if self.updates > 0:  # some optimizer state exists only after a step
            self._training.warn_of_left_out(self.name)
        self._optimizers.updated(self.name)

    @by_all_ranks
    def update_wait(self, loss: Loss = None) -> Merge | None:
        """Wait for the fetch that `update_send` started, and merge the snapshot into the module.

        This waits at most until `timeout_ms` after that `update_send`. With `lsgd`, it waits up to
        `timeout_ms` longer to fetch from a second leader, and up to `timeout_ms` longer to average
        buffers. This call also does the algorithm's work after a step of the optimizer. It
        completes the exchanges on which peers have agreed with this node.

        Args:
            loss: the current training loss. `None` means the loss that `update_send` got.

        Returns:
            The merge, or the first merge if there were several. `None` if no usable snapshot
            arrived. A snapshot is not usable if the peer's loss or parameters have diverged.

        Raises:
            ClosedError: the adapter was closed.
        """
        self._refresh()  # do not merge into a tensor that was replaced since `update_send`
        self._rounds.is_ahead |= self._rounds.began_at is None
        if self.updates <= 1 and self._gradients is None:
            self._note_first_step(loss_value(loss))
        arrival = self._trainer.update_wait(loss_value(loss))
        if self._gradients is not None:
            self._gradients.stepped()
        if not self._rounds.is_ahead:  # otherwise `update_send` still has to count the step
            self._copy_state()
        return None if arrival is None else Merge.of(arrival, self._trainer.consensus_distance)

    def _note_first_step(self, loss: float | None) -> None:
        """Send peers a digest of this node's first step. A peer with an equal digest warns."""
        if loss is not None and self._rounds.merges == 0:
            values = self._state.values().samples(TRACE_VALUES)
            self._rounds.begin_with(with_first_step(self._rounds.progress.trace, loss, values))

    def step(self, loss: Loss = None) -> Merge | None:
        """Do the work that follows a training step: `update_wait(loss)`, then `update_send(loss)`.

        The fetch that this call starts continues during the next training step.

        Returns:
            The merge, as for `update_wait`. The first call returns `None`.
        """
        if self._optimizers.to_prepare:  # switch the optimizers once for both calls
            with self._optimizers.prepared():
                return self.step(loss)
        self._rounds.is_ahead = True
        merge = self.update_wait(loss)
        self.update_send(loss)
        return merge

    def _copy_state(self) -> None:
        """Copy the training state if a copy is due, at equal numbers of steps and updates."""
        training, states = self._training, self._states
        if not self._optimizers.tell_steps:
            states.copy_if_due(training.capture)
        elif states.copy_if_due(training.capture_model, training.capture_optimizers):
            self._optimizers.before_next_step(states.complete)

    @by_all_ranks
    def finish(self, *, seconds: float = SECONDS, timeout_s: float | None = None) -> FinishReport:
        """End the training together with the peers. Call this after the last step.

        The node serves its peers until all living peers have taken their last step. Then it
        averages its parameters with theirs, until all nodes have the same parameters or come no
        closer. The call returns when no node needs this node any more. Nodes do not wait for a peer
        that is dead, does not answer, has left, or has not connected within 10 s after this node
        learned of it. The call takes at most `timeout_s + seconds`, plus a few seconds. It raises
        no error if a peer fails.

        A second call returns the report of the first call, on three conditions. All nodes took part
        without a problem, no node has trained since, and this node's parameters have not changed.

        Args:
            seconds: the maximum time to average.
            timeout_s: the maximum time to wait for peers that still train. The default is the time
                that this node has trained, and at least a minute.

        Returns:
            A report with the nodes that took part, the missing nodes with the reasons, and the
            distance between nodes.

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
        if report.took_part:  # the algorithm's memory belongs to the old parameters
            self._rounds.renew_algorithm()
        return report

    def _go_on(self, others_train: bool) -> bool:
        """After training, take part in exchanges of peers that still train, and serve new nodes."""
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
        """Within the block, accumulate gradients and do not average them between nodes."""
        with nullcontext() if self._gradients is None else self._gradients.off():
            yield

    def average_gradients(self) -> None:
        """Average the gradients now, in place, if the algorithm averages gradients.

        Gradients that are already averaged stay the same. Usually nodes average at the end of a
        backward pass, if all parameters have a gradient then. If some parameters have none, nodes
        average when the optimizer steps. Call this before that step if you clip averaged gradients.
        """
        if self._gradients is not None:
            self._gradients.average()

    @property
    def lr_scale(self) -> float:
        """The factor by which the setting `lr_spread` multiplies this node's learning rate."""
        spread, nodes = self._node.config.lr_spread, self._node.config.nodes
        if spread == "none":  # with `join`, this node may not be listed
            return 1.0
        return lr_scale(spread, [node.name for node in nodes].index(self.name), len(nodes))

    @property
    def leader(self) -> str | None:
        """The node with the lowest running loss, as far as this node knows. It may be this node.

        `None` if no leader is known, or if the algorithm has no leaders.
        """
        self._node.check_process()
        return self._rounds.view.leader()

    def center(self) -> dict[str, torch.Tensor]:
        """Return a copy of this node's center, which you can test or save instead of the module.

            tester.load_state_dict(gossip.center())

        Returns:
            A copy of the module's state dict. Names have no wrapper prefixes. The center replaces
            the gossiped parameters. Frozen parameters and buffers are the module's own.

        Raises:
            UserError: the algorithm has no center, or `update_send` was not called yet.
        """
        algorithm = self._rounds.algorithm
        if algorithm.has_center:
            self._refresh()
        return self._state.state_with(center_of(algorithm, self._node.config.algorithm))

    def seed(self, seed: int = 0) -> int:
        """Return a seed for this node's data, from 0 to 2^32 - 1. Each node gets a different seed.

            torch.manual_seed(0)                       # the same model on all nodes
            net = Net()
            with dpwa.connect(net) as gossip:
                torch.manual_seed(gossip.seed())       # from now on, other batches on each node

        Each rank of a module has a different seed, too. A restarted node gets the same seed as
        before.

        Args:
            seed: the seed of the run. A different number gives different seeds on all nodes.
        """
        return zlib.crc32(f"{seed} {self.name} {self._ranks.rank}".encode())

    def attach(self, optimizer: torch.optim.Optimizer) -> Attachment:
        """Gossip after each step of an optimizer, until the adapter is closed.

        A node follows one optimizer at a time, and sends its state with the module's state. If your
        loop knows the loss, it can set the `loss` of the returned object.
        """
        if self._attachment is not None:
            self._attachment.close()
        self._attachment = Attachment(optimizer, self)
        return self._attachment

    def close(self) -> None:
        """Stop serving and fetching. You may call this twice. It takes a bounded time."""
        if self._attachment is not None:
            self._attachment.close()
        is_whole = sys.exc_info()[1] is None  # otherwise the loop was interrupted within a step
        if is_whole and self._ranks.has_node and self._node.is_own:
            self._states.complete()
        if self._gradients is not None:
            self._gradients.close()
        self.connection.close()


def _crowding(name: str, config: Config) -> str:
    """Return a warning if the nodes on a host have more default threads than the host has cores."""
    hosts = {node.name: same_host_key(node.host) for node in config.nodes}
    count = sum(host == hosts.get(name) for host in hosts.values())
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    # By default, torch has one thread for each logical core or each physical core.
    is_chosen = bool(os.environ.get("OMP_NUM_THREADS")) or threads not in (cores, cores // 2)
    if is_chosen or threads == 1 or threads * count <= cores:
        return ""
    return (
        f"each of the {count} nodes on this host computes with {threads} threads, but the host has "
        f"{cores} cores, so the nodes slow each other down. Set "
        f"OMP_NUM_THREADS={max(1, cores // count)}"
    )
