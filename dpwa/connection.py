"""DpwaConnection gossips parameters that are bytes or a numpy array."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dpwa.collectives.calls import CollectiveCalls
from dpwa.config import Config, ConfigSource, load_config
from dpwa.data.array_model import (
    ArrayModel,
    NumericArray,
    array_layout,
    as_published,
    byte_array,
    is_finite,
)
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import FinishedCopy, SnapshotCopy
from dpwa.errors import AddressError, NameTakenError, ParametersError, UserError
from dpwa.features import FEATURES
from dpwa.lifecycle import Closeable, weakly
from dpwa.node.arrival import Arrival
from dpwa.node.finish import SECONDS, Averaged
from dpwa.node.node import Node
from dpwa.node.trainer import Trainer
from dpwa.observe.figures import scalars
from dpwa.observe.recorder import Recorder
from dpwa.policy.finishing import FinishReport
from dpwa.runtime import SYSTEM, Runtime
from dpwa.state.replaced_parts import Target, values_of, values_part
from dpwa.state.state_transfer import States
from dpwa.types import Loss, loss_value
from dpwa.wire import limits

if TYPE_CHECKING:
    from dpwa.collectives.collectives import Collectives
    from dpwa.membership.members import Members

log = logging.getLogger("dpwa.connection")

Parameters = bytes | bytearray | memoryview | NumericArray
_MADE_BY = {each.name: each.made_by for each in FEATURES}
_made: weakref.WeakSet[DpwaConnection] = weakref.WeakSet()  # created by this process or its parent


class DpwaConnection(CollectiveCalls, Closeable):
    """A node that gossips raw parameters, and takes part in collectives.

    The caller merges the peer's parameters that `update_wait` returns.

        loss = None                                   # not measured yet
        with DpwaConnection("w1", "nodes.yaml") as connection:
            connection.update_send(parameters, loss)
            ...                                       # one training step
            peer_parameters, factor = connection.update_wait(loss)
            if factor > 0:
                parameters = factor * peer_parameters + (1 - factor) * parameters
            parameters, report = connection.finish(parameters, loss)  # at the very end

    Args:
        name: the name of this process's node in the configuration.
        config: a path to a YAML file, a mapping, or a `Config`.
        runtime: the source of time, threads and sockets. The simulator passes its own.

    Raises:
        ConfigError: the configuration has mistakes.
        UnknownNameError: the configuration has no node of this name.
        AddressError: the node cannot listen at its address, for example because an earlier
            connection of this process with this name is still open.
        NameTakenError: with `join`, a different living node has this name.
        UserError: the name is not a string.

    Attributes:
        node: the node of the connection, for adapters.
    """

    def __init__(self, name: str, config: ConfigSource, *, runtime: Runtime = SYSTEM) -> None:
        _require_name(name)
        self._runtime = runtime
        loaded = load_config(config)
        _collect_forgotten(name)
        self._stack = ExitStack()  # objects that are closed together; the node is closed last
        try:
            with _explained(name):
                self._make(name, loaded)
        except BaseException:
            with self._runtime.uninterrupted():
                self._stack.close()
            raise
        _made.add(self)
        self.node.rounds.guard(is_finite if loaded.guard == "finite" else None)
        self._layout = Layout.of_bytes()

    def _make(self, name: str, config: Config) -> None:
        enter = self._stack.enter_context
        with self._runtime.uninterrupted():
            self.node = enter(Node(name, config, self._runtime))
        self._parts: dict[str, Any] = {}  # by the name of the feature
        self._lock = threading.RLock()
        for each in FEATURES:
            if each.setting and attrgetter(each.setting)(config) is not None:
                self._parts[each.name] = enter(resolve_name(each.made_by)(self.node))
            elif each.made_by and not each.setting:
                self.node.rx.serve_later(each.messages, partial(weakly(self._part), each.name))
        self._states = enter(States(self.node))
        enter(Recorder(self.node))

    def update_send(self, parameters: Parameters, loss: Loss = None) -> None:
        """Publish the parameters and start to fetch a peer's parameters, without waiting.

        Args:
            parameters: bytes-like, or a numpy array of any numeric dtype and shape. They are
                copied, so you may change them at once.
            loss: the training loss as a number, a 0-d array or tensor, or `None` if it was not
                measured.

        Raises:
            ParametersError: the parameters are neither bytes-like nor a numeric array, or empty.
            ClosedError: the connection was closed.
            UserError: the algorithm of the configuration can only be used with an adapter.
            MismatchError: every peer is refused, and `if_refused` is `raise`.
        """
        self._require_gossip()
        if isinstance(parameters, np.ndarray):
            layout, source = array_layout(parameters), parameters
        else:
            layout, source = Layout.of_bytes(), byte_array(parameters)

        self._layout, check = layout, self.node.rounds.is_finite

        def write(slot: ByteArray) -> SnapshotCopy:
            np.copyto(slot.view(source.dtype).reshape(source.shape), source)
            return FinishedCopy(None if check is None else check(slot, layout.tensors[0].dtype, 0))

        rounds = self.node.rounds
        rounds.check_open()
        self._states.copy_if_due(partial(values_part, layout, source))
        view = rounds.begin_update(None if loss is None else loss_value(loss))
        rounds.publish_snapshot(layout, source.nbytes, write)
        rounds.ask(rounds.algorithm.asks(view), layout)

    def update_wait(self, loss: Loss = None) -> tuple[bytes | NumericArray | None, float]:
        """Wait at most `timeout_ms` for the peer's parameters that `update_send` started to fetch.

        Args:
            loss: the current training loss. `None` stands for the loss passed to `update_send`.

        Returns:
            `(peer_parameters, factor)`: the peer's parameters, with the type, dtype and shape that
            this node published, and the weight from 0 to 1 for merging them. `(None, 0.0)` if no
            snapshot arrived that can be merged, for any reason.

        Raises:
            ClosedError: the connection was closed.
        """
        copies: list[ByteArray] = []

        def copy(arrival: Arrival) -> float:
            copies.append(arrival.data.copy())
            return arrival.factor

        measured = None if loss is None else loss_value(loss)
        arrival = self.node.rounds.wait_and_merge(measured, copy)
        if arrival is None:
            return None, 0.0
        return as_published(self._layout, copies[-1]), arrival.factor

    def finish(
        self,
        parameters: NumericArray,
        loss: Loss = None,
        *,
        seconds: float = SECONDS,
        timeout_s: float | None = None,
    ) -> tuple[NumericArray, FinishReport]:
        """End the training together with the peers. Call this after the last step.

        The node serves its peers until all living peers have taken their last step, and averages
        its parameters with the parameters of its peers. See `DpwaPyTorchAdapter.finish`.

        Args:
            parameters: a numpy array of floats, of any shape. It is not changed.
            loss: the training loss at the end.
            seconds: maximum seconds of the averaging.
            timeout_s: maximum seconds to wait for peers that still train. By default, it is the
                time for which this node has trained, and at least a minute.

        Returns:
            `(parameters, report)`: the average as a new array, and a report about the end.

        Raises:
            ParametersError: the parameters are not an array of floating-point numbers, or empty.
            ClosedError: the connection was closed.
            UserError: the algorithm of the configuration can only be used with an adapter.
        """
        self._require_gossip()
        if not isinstance(parameters, np.ndarray) or parameters.dtype.kind not in "fc":
            found = getattr(parameters, "dtype", type(parameters).__name__)
            raise ParametersError(
                f"finish() can average only a numpy array of floating-point numbers, not {found}. "
                "For other data, call update_send and update_wait [DPWA-E144]"
            )
        layout, wide = array_layout(parameters), np.promote_types(parameters.dtype, np.float32)
        model = ArrayModel(np.array(parameters, wide, order="C").reshape(-1), layout)
        trainer = Trainer(self.node.rounds, model)

        def go_on(others_train: bool) -> bool:  # noqa: ARG001
            self._states.copy_if_due(lambda: values_part(layout, model.image()), saves=False)
            return False

        averaged = Averaged(trainer.publish_model, trainer.merge_peer, go_on, model.norm)
        self._states.copy_if_due(partial(values_part, layout, parameters))
        report = self.node.finish.run_finish(averaged, seconds, timeout_s, loss_value(loss))
        return model.image(), report

    def _require_gossip(self) -> None:
        if self.node.config.algorithm != "gossip":
            raise UserError(
                f"`algorithm: {self.node.config.algorithm}` needs an adapter that merges, such as "
                "DpwaPyTorchAdapter. With a DpwaConnection, only `algorithm: gossip` is possible"
                " [DPWA-E113]"
            )

    def fetch_state(self) -> tuple[bytes | NumericArray, float] | None:
        """Fetch the initial parameters from the peers, before the first `update_send`.

        The call waits until they have arrived, at most for `initial_state_timeout_s`. It does not
        wait if no reachable peer has trained. If the peers send nothing, the newest checkpoint of
        this node is used. The clock continues from the clock of the fetched parameters.

        Returns:
            `(parameters, clock)`, with the type, dtype and shape that the peers publish, or `None`
            if there are no parameters.
        """
        found: list[bytes | NumericArray] = []

        def load(image: ByteArray, numbers: bytes) -> None:
            found.append(values_of(image, numbers))

        target = Target("values", None, None, limits.MAX_UNSTRUCTURED_BYTES, load)
        origin = self._states.start(target, "peers")
        return None if origin is None else (found[-1], origin.clock)

    @property
    def states(self) -> States:
        """The object that sends this node's state to peers, and fetches a state from a peer."""
        return self._states

    @property
    def collectives(self) -> Collectives:
        """The object that runs the collectives of this node."""
        found: Collectives = self._parts.get("collectives") or self._part("collectives")
        return found

    def _part(self, name: str) -> Any:
        """Return the object of a feature, such as `collectives`, which the first call creates."""
        self.node.check_process()
        make = resolve_name(_MADE_BY[name])  # loaded before the lock is taken
        with self._lock, self._runtime.uninterrupted():
            if name not in self._parts:
                self._parts[name] = self._stack.enter_context(make(self.node))
            return self._parts[name]

    @property
    def name(self) -> str:
        """Name of this node."""
        return self.node.name

    @property
    def clock(self) -> float:
        """The training clock: a count of updates that a merge interpolates like the parameters."""
        return self.node.clock

    @property
    def updates(self) -> int:
        """The number of `update_send` calls in the training of this node so far.

        If a state was fetched, the number continues from the number in the state. It never falls.
        Use it for schedules. The clock does not count calls, because merges average it.
        """
        return self.node.rounds.view.updates

    def metrics(self) -> dict[str, float]:
        """Return the figures of this node for a logger, as a flat dict of numbers.

        The names are `dpwa/loss`, `dpwa/merges`, `dpwa/consensus_distance` and so on. docs/watch.md
        lists them. Unknown figures are omitted.
        """
        self.node.check_process()
        return scalars(self.node.condition())

    @property
    def peers(self) -> tuple[str, ...]:
        """The names of the peers that this node knows."""
        return self.node.peers

    def wait_for_peers(self, count: int = 1, timeout_s: float = 30.0) -> bool:
        """Wait until this node knows at least `count` peers, and return whether it does.

        You need not call this, because a node trains with the peers that are there. If the
        configuration lists the nodes, this node knows all of them from the start, even dead nodes.
        This call is no barrier. A node can know a peer before the peer trains, and the peer may
        never make this call. Call `barrier` if all nodes must begin at the same time.
        """
        self.node.check_process()
        members: Members | None = self._parts.get("membership")
        if members is None:
            return len(self.peers) >= count
        return members.wait_for(count, timeout_s)

    def add_peer(self, name: str, host: str, port: int) -> None:
        """Add a peer. This has no effect if this node already knows the peer.

        Raises:
            UserError: the name is this node's own, or known at a different address. Or the name,
                host or port is invalid.
        """
        self.node.add_peer(name, host, port)

    def remove_peer(self, name: str) -> None:
        """Remove a peer from the peers that this node knows.

        Raises:
            UnknownNameError: there is no such peer.
        """
        self.node.remove_peer(name)

    def close(self) -> None:
        """Stop serving and fetching, within a few seconds. A second call does nothing.

        In a forked child, the call does nothing, because the connection belongs to the parent.
        """
        if self.node.is_own:
            if not self.node.closed:
                self._warn_of_end(sys.exc_info()[1])
                self.node.note_end(sys.exc_info()[0])
            with self._runtime.uninterrupted():
                self._stack.close()

    def _warn_of_end(self, error: BaseException | None) -> None:
        rounds = self.node.rounds
        if isinstance(error, KeyboardInterrupt):
            done = self.updates, rounds.merges
            log.warning(
                "%s: the training was interrupted after %d updates and %d merges [DPWA-W074]",
                self.name,
                *done,
            )
        has_left = rounds.is_to_finish and self.node.finish.report() is None
        if has_left and (error is None or isinstance(error, SystemExit)):
            log.warning(
                "%s: the training has ended at update %d without finish, so the models of "
                "the peers lack the last steps of this node. Call finish() after the last step, or "
                "set needs_finish=False [DPWA-W093]",
                self.name,
                self.updates,
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.described()}>"

    def described(self) -> str:
        """Describe this node and its status in a few words."""
        return self.node.described()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UserError(
            f"node {self.name!r} cannot be pickled or copied, because its threads and sockets "
            "belong to this process [DPWA-E091]"
        )


def close_all() -> None:
    """Close every connection and adapter that this process has created and not closed.

    This is for notebooks. There, a variable may be gone, while an error still refers to its object.
    """
    for connection in list(_made):
        connection.close()


def close_former(name: str, config: Config) -> None:
    """Close an earlier connection of this process for the same node, and log a warning.

    Args:
        name: the name of the node.
        config: the configuration of the new connection. The node is the same if it listens at the
            same address, or asks the same addresses in `join`.
    """
    _collect_forgotten(name)
    for connection in _open_ones(name):
        if _place_of(name, connection.node.config) == _place_of(name, config):
            connection.close()
            log.warning(
                "%s: dpwa closed the earlier connection of this node in this process [DPWA-W001]",
                name,
            )


def _place_of(name: str, config: Config) -> object:
    return config.join if config.is_open else config.node(name).listen_endpoint


def _collect_forgotten(name: str) -> None:
    """Close unused connections of this name that only reference cycles still keep open."""
    if _open_ones(name):
        gc.collect()


def _open_ones(name: str) -> list[DpwaConnection]:
    return [c for c in list(_made) if c.name == name and c.node.is_own and not c.node.closed]


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Explain in the message of an error that an earlier node of this process is the cause."""
    try:
        yield
    except (AddressError, NameTakenError) as error:
        if not _open_ones(name):
            raise
        raise type(error)(
            f"{error.text}: an earlier node {name!r} of this process uses this address. Call "
            "close() of the earlier node, or continue with the earlier node. dpwa.close_all() "
            f"closes all open nodes of this process [{error.message_code}]"
        ) from None


def _require_name(name: object) -> None:
    if not isinstance(name, str):
        got = type(name).__name__
        raise UserError(
            f"name: expected the name of a node as text (got {got}). Is DPWA_NAME set? [DPWA-E056]"
        )
