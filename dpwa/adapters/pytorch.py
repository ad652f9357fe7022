"""DpwaPyTorchAdapter: gossip for a `torch.nn.Module`, in two calls a training step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dpwa.adapters.merging import Terms
from dpwa.adapters.module_state import ModuleState
from dpwa.data.kernels import are_finite
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Copy
from dpwa.lifecycle import Closeable
from dpwa.node.arrival import Arrival, FetchTerms
from dpwa.node.connection import ConfigSource, DpwaConnection
from dpwa.types import Loss, loss_value


@dataclass(frozen=True)
class Merge:
    """What one `update_wait` merged.

    Attributes:
        peer: whose parameters.
        factor: weight f they had, from 0 to 1; at 0 nothing was changed.
        peer_clock: the peer's clock when it published them.
        peer_loss: its loss then; `None` when it had not measured one.
        staleness: by how many updates the peer was behind this node (negative: ahead).
        waited_s: seconds that `update_wait` waited for them.
        consensus_distance: Euclidean distance between the peer's parameters and this node's
            before the merge (with `merge: delta`, this node's as published), over all trainable
            parameters; estimated from a sample of them in models of more than 64 Ki parameters.
    """

    peer: str
    factor: float
    peer_clock: float
    peer_loss: float | None
    staleness: float
    waited_s: float
    consensus_distance: float


class DpwaPyTorchAdapter(Closeable):
    """Gossips the parameters of a module while it trains.

        loss = None                               # not measured yet
        with DpwaPyTorchAdapter(net, "w1", "nodes.yaml") as gossip:
            for inputs, targets in batches:
                gossip.update_send(loss)          # publish, start fetching from one peer
                loss = train_step(inputs, targets)
                gossip.update_wait(loss)          # wait for it and merge it, in place

    Parameters keep their identity, so optimizers stay valid. Trainable parameters of every floating
    dtype are merged, tied ones once; frozen parameters and integer buffers are left alone; floating
    buffers (batch-norm statistics) are interpolated with `buffers: average` and left alone with
    `buffers: keep`. The module may be on any device.

    Args:
        net: the module; its trainable parameters may change between rounds, in step with its peers.
        name: which node of the configuration this process is.
        config: a path to a YAML file, a mapping, or a `Config`.

    Raises:
        ConfigError: the configuration has mistakes.
        UnknownNameError: it has no node of this name.
        AddressError: the node's address cannot be listened on.
        ParametersError: the module has nothing to gossip.
    """

    def __init__(self, net: torch.nn.Module, name: str, config: ConfigSource) -> None:
        self.connection = DpwaConnection(name, config)
        try:
            settings = self.connection.node.config
            self._merge_delta = settings.merge == "delta"
            self._guards = settings.guard == "finite"
            self._terms = FetchTerms(settings.fraction, are_finite if self._guards else None)
            self._state = ModuleState(net, with_buffers=settings.buffers == "average")
            self._sent = self._state.layout
            self._consensus_distance = 0.0
        except BaseException:
            self.connection.close()
            raise

    def update_send(self, loss: Loss = None) -> None:
        """Publish the module's parameters and start fetching a peer's; returns without waiting.

        Args:
            loss: training loss; a number, a numpy scalar, a 0-d tensor, or `None`.

        Raises:
            ParametersError: the module has nothing to gossip.
            ClosedError: the adapter was closed.
        """
        self._state.refresh()
        self._sent = self._state.layout
        self.connection.node.send(
            self._sent, self._state.nbytes, loss_value(loss), self._write, self._terms
        )

    def _write(self, data: ByteArray) -> Copy:
        return self._state.start_copy(data, check_finite=self._guards)

    def update_wait(self, loss: Loss = None) -> Merge | None:
        """Wait for the fetch that `update_send` started, and merge what came into the module.

        Waits at most until `timeout_ms` after that `update_send`.

        Args:
            loss: training loss now; `None` stands for the one passed to `update_send`.

        Returns:
            What was merged, or `None` when nothing came that can be merged. A peer that has
            diverged, by its loss or its parameters, is not merged.

        Raises:
            ClosedError: the adapter was closed.
        """
        self._state.refresh()  # a tensor that was replaced meanwhile must not be merged into
        if self._state.layout != self._sent:
            self.connection.node.skip()
            return None
        arrival = self.connection.node.wait(loss_value(loss), self._merge)
        if arrival is None:
            return None
        return Merge(
            peer=arrival.peer,
            factor=arrival.factor,
            peer_clock=arrival.standing.clock,
            peer_loss=arrival.standing.loss,
            staleness=arrival.staleness,
            waited_s=arrival.waited_s,
            consensus_distance=self._consensus_distance,
        )

    def _merge(self, arrival: Arrival) -> None:
        """Merge all parts of what came, or nothing."""
        published = arrival.published if self._merge_delta else None
        terms = Terms(
            factor=arrival.factor,
            published=None if published is None else published.data,
            undo=arrival.room,
        )
        merging = self._state.merging(terms)
        try:
            for start, part in arrival.parts:
                merging.take(start, part)
        except BaseException:
            if arrival.room is not None:
                merging.undo()
            raise
        self._consensus_distance = merging.consensus_distance

    @property
    def name(self) -> str:
        """Name of this node."""
        return self.connection.name

    @property
    def clock(self) -> float:
        """Number of updates, interpolated at each merge like the parameters."""
        return self.connection.clock

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers in view."""
        return self.connection.peers

    def close(self) -> None:
        """Stop serving and fetching; idempotent and bounded in time."""
        self.connection.close()
