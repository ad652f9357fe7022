"""GossipOptimizer merges and publishes parameters after each step of an optimizer."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.plain_tensors import local, why_not_plain
from dpwa.errors import ClosedError, UserError
from dpwa.lifecycle import Closeable, uninterrupted
from dpwa.node.finish import SECONDS
from dpwa.policy.beginners import TRACE_VALUES, trace_of
from dpwa.types import Loss

if TYPE_CHECKING:
    from dpwa.adapters.merge import Merge
    from dpwa.policy.finishing import FinishReport

__all__ = ["Attachment", "GossipOptimizer", "GossipSteps", "OptimizerGossip"]

log = logging.getLogger("dpwa.adapters")

_OWN = frozenset({"optimizer", "conn", "loss", "last_merge", "step"})
_LEARNING_RATES = ("lr", "initial_lr")  # schedulers compute the `lr` from the `initial_lr`
_WATCHED_UPDATES = 3  # after these updates, all optimizers of a module have been seen to step
_MAX_UPDATES = 20  # until watching ends without a step (gradients accumulate, or no optimizer)

Given = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None
Scheduler = torch.optim.lr_scheduler.LRScheduler | torch.amp.GradScaler
Schedulers = Scheduler | Sequence[Scheduler] | None


class OptimizerGossip(Protocol):
    """The part of a `DpwaPyTorchAdapter` that the optimizer uses."""

    @property
    def lr_scale(self) -> float:
        """The factor by which learning rates are multiplied. A factor of 1 changes nothing."""
        ...

    def step(self, loss: Loss = None) -> Merge | None:
        """Merge the fetched snapshot, publish this node's parameters, and start the next fetch."""
        ...

    def finish(self, *, seconds: float = ..., timeout_s: float | None = ...) -> FinishReport:
        """End the training together with the peers. Average the parameters with them."""
        ...

    def include_optimizer(self, optimizer: Given) -> None:
        """Send, save and load the state of an optimizer together with the module's state."""
        ...


class Optimizers:
    """The optimizers and schedulers of a module, given by the caller or found when they step.

    Some optimizers keep a second copy of the parameters, such as the schedule-free ones (Defazio et
    al., 2024, arXiv:2405.15682). While they train, the module holds the points at which gradients
    are computed, not the points that are evaluated. Nodes average the evaluated points. So dpwa
    calls the `eval()` of such optimizers before gossip, and their `train()` afterwards. LBFGS
    learns curvature from its last step and gradient. A merge moves the parameters and makes it
    invalid.
    """

    _state: ModuleState  # the module whose optimizers are watched

    def __init__(self) -> None:
        # optimizers whose state is sent with the module's state; no parameter is in two of them
        self.given: list[Any] = []
        # the schedulers of `given`, or `None` if the caller gave none
        self.schedulers: list[torch.optim.lr_scheduler.LRScheduler] | None = None
        self.scalers: list[torch.amp.GradScaler] = []
        # attributes that are numbers or texts, as they were when the optimizer was given, by its
        # `id`
        self.settings: dict[int, dict[str, Any]] = {}
        # whether schedulers continue from the schedules of a training that was adopted
        self.have_schedules = False
        self.to_prepare: list[Any] = []  # optimizers with modes, and LBFGS; empty within `prepared`
        self.began_with: bytes | None = None  # digest of the parameters before the first step
        self._seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._thread = threading.get_ident()
        self._updates = 0
        self._has_warned = False
        self._has_warned_of_schedulers = False
        self.is_beginning = False  # whether the module's optimizers are still to be found
        self._is_replaced = False  # parameters were replaced by those of nodes that are far ahead
        self._before_step: Callable[[], None] | None = None
        self._are_prepared = False  # whether a `prepared` block has switched optimizers

    def begin_watching(self, state: ModuleState) -> None:
        self._state = state
        self._updates, self.is_beginning = 0, True
        _watch(self)

    def include(self, optimizer: Given, scheduler: Schedulers = None) -> bool:
        """Add optimizers and schedulers, and return whether a scheduler or a scaler is new.

        An optimizer replaces the earlier optimizers that share a parameter with it. It does not
        replace an optimizer that wraps it. Raises `UserError` if an object is no optimizer or no
        scheduler, or if two of the optimizers share parameters.
        """
        found = [_scheduler_in(each) for each in _each(scheduler, "scheduler", "load_state_dict")]
        optimizers = [*_each(optimizer, "optimizer", "load_state_dict", "param_groups")]
        _require_apart(optimizers)
        scalers = [each for each in found if isinstance(each, torch.amp.GradScaler)]
        schedulers = [each for each in found if each not in scalers]
        _each(schedulers, "scheduler", "optimizer")
        scalers = scalers or [scaler for each in optimizers if (scaler := _scaler_of(each))]
        optimizers += [each.optimizer for each in schedulers]
        known = {*(self.schedulers or ()), *self.scalers}
        is_new = not known.issuperset([*schedulers, *scalers])
        for each in map(unwrapped, optimizers):
            if not any(each is one for outer in self.given for one in _chain(outer)):
                self.given = [one for one in self.given if not _share(one, each)] + [each]
                self._trains(each)
                for one in with_inner([each]):
                    self.settings[id(one)] = {
                        name: value
                        for name, value in getattr(one, "__dict__", {}).items()
                        if isinstance(value, (bool, int, float, str, type(None)))
                    }
                is_new = True
        self.scalers = scalers or self.scalers
        if scheduler is not None and (schedulers or not scalers):
            self.schedulers = schedulers
        return is_new

    def scales(self) -> list[float]:
        """Return the factors by which the gradient scalers multiply the loss."""
        return [float(each.get_scale()) for each in self.scalers]

    def note_replaced(self) -> None:
        """Record that this node adopted the parameters of peers that are far ahead."""
        self._is_replaced = True

    @contextmanager
    def prepared(self, *, for_good: bool = False) -> Iterator[None]:
        """Switch optimizers with an `eval` mode, such as schedule-free ones, to it in the block."""
        prepared, self.to_prepare, self._is_replaced = self.to_prepare, [], False
        were_prepared = self._are_prepared
        self._are_prepared = were_prepared or bool(prepared)
        training, is_done = [each for each in prepared if is_training(each)], False
        curved = [(o, _versions_of(o)) for o in prepared if isinstance(o, torch.optim.LBFGS)]
        try:
            with uninterrupted():
                for each in training:
                    each.eval()
            yield
            is_done = True
        finally:
            self.to_prepare, self._are_prepared = prepared, were_prepared
            if self._is_replaced:  # the optimizers' copies are as old as the replaced parameters
                for each in training:
                    each.state.clear()
            for optimizer, before in curved:
                if _versions_of(optimizer) != before:
                    optimizer.state.clear()
            if not (for_good and is_done):
                with uninterrupted():
                    for each in training:
                        each.train()

    @property
    def tell_steps(self) -> bool:
        """Whether dpwa notices each step of the given optimizers, and none has a `train` mode."""
        seen = [*self._seen]
        return bool(self.given) and all(
            any(_share(each, other) for other in seen) and not _has_modes(each)
            for each in self.given
        )

    def before_next_step(self, call: Callable[[], None]) -> None:
        """Call a function once, before one of the given optimizers steps on this thread."""
        self._before_step, self._thread = call, threading.get_ident()
        _watch(self)

    def saw(self, optimizer: torch.optim.Optimizer) -> None:
        if threading.get_ident() != self._thread:
            return
        call = self._before_step
        if call is not None and any(_share(each, optimizer) for each in self.given):
            self._before_step = None
            call()
        if optimizer in self._seen:
            return
        self._seen.add(optimizer)
        if not self._memory().isdisjoint(_memory_of(_tensors_of(optimizer))):
            self._trains(optimizer)
            if self.began_with is None:
                self.began_with = self.trace()

    def trace(self) -> bytes:
        """Return a digest of the parameters, to compare the start of the training with peers."""
        return trace_of(self._state.values().samples(TRACE_VALUES))

    def updated(self, node: str) -> None:
        """Count an update. Warn once if the optimizer does not train the gossiped parameters."""
        self._updates += 1
        self._thread = threading.get_ident()
        is_known = bool(self._seen) or bool(self.given)
        if self._updates >= (_WATCHED_UPDATES if is_known else _MAX_UPDATES):
            self.is_beginning = False
            self._require_parameters(node)
            _watch()

    def require_schedulers(self, node: str, updates: int) -> None:
        """Warn once if a scheduler starts at 0, but this node adopted a later training state."""
        if self.schedulers is None:
            what = "Pass the scheduler to dpwa.connect as scheduler="
            is_left = any("initial_lr" in g for each in self.given for g in each.param_groups)
        else:
            what = "The state from the peer or checkpoint has no such scheduler"
            is_left = bool(self.schedulers) and not self.have_schedules
        if is_left and not self._has_warned_of_schedulers:
            self._has_warned_of_schedulers = True
            log.warning(
                "%s: the training continues at update %d, but the learning rate scheduler starts "
                "at step 0. The next step of the scheduler resets the learning rate. %s. See "
                "docs/state.md [DPWA-W071]",
                node,
                updates,
                what,
            )

    @property
    def is_watching(self) -> bool:
        if self.is_beginning or self._before_step is not None:
            return True
        return bool(self.to_prepare) or self._are_prepared

    def _require_parameters(self, node: str) -> None:
        optimizers = {*self.given, *self._seen}
        trained = [tensor for each in optimizers for tensor in _tensors_of(each)]
        foreign = _elsewhere(trained, self._memory())
        left = _elsewhere((e.tensor for e in self._state.parameters()), _memory_of(trained))
        if self._has_warned or not foreign or not left:
            return
        # Optimizers that were not given may train a different module. Do they train copies of this
        # one?
        others = Counter(t.shape for t in left) - Counter(t.shape for t in foreign)
        is_flat = sum(t.numel() for t in left) == sum(t.numel() for t in foreign)
        if not self.given and others and not is_flat:
            return
        self._has_warned = True
        log.warning(
            "%s: %s trains tensors that are not in the module. %d parameters of the module are "
            "missing in param_groups, so merges do not change the training. Make the optimizer "
            "from the current net.parameters(). If the optimizer trains copies, such as fp32 "
            "masters, gossip the copies instead of the module. See docs/pytorch.md [DPWA-W069]",
            node,
            " and ".join(sorted({type(each).__name__ for each in optimizers})),
            len(left),
        )

    def require_all_in_module(self, node: str) -> None:
        """Warn if the optimizers train tensors that are not parameters of the module."""
        trained = (t for each in self.given for t in _tensors_of(each) if t.grad is not None)
        foreign = _elsewhere(trained, self._memory())
        if foreign:
            log.warning(
                "%s: %d tensors in the param_groups of %s are not parameters of the module. The "
                "first tensor has the shape %s. dpwa does not average the gradients of these "
                "tensors or compare the tensors between nodes. Pass a module with all trained "
                "tensors to dpwa.connect, such as nn.ModuleList([net, loss]) [DPWA-W086]",
                node,
                len(foreign),
                " and ".join(sorted({type(each).__name__ for each in self.given})),
                list(foreign[0].shape),
            )

    def _memory(self) -> set[int]:
        return _memory_of(self._state.module_parameters())

    def _trains(self, optimizer: Any) -> None:
        """Record an optimizer of the module. Drop others that have the same parameters."""
        if any(one is optimizer for outer in self.to_prepare for one in [*_chain(outer)][1:]):
            return
        self.to_prepare = [one for one in self.to_prepare if not _share(one, optimizer)]
        if _has_modes(optimizer) or isinstance(optimizer, torch.optim.LBFGS):
            self.to_prepare.append(optimizer)


_watching: tuple[weakref.ref[Optimizers], ...] = ()  # never changed in place: threads read it
_watching_lock = threading.Lock()
_is_hooked = False


def _watch(optimizers: Optimizers | None = None) -> None:
    """Report all optimizer steps to `Optimizers` objects, and drop objects that no longer watch."""
    global _watching, _is_hooked
    with _watching_lock:
        known = {each for reference in _watching if (each := reference()) and each.is_watching}
        _watching = tuple(map(weakref.ref, known if optimizers is None else known | {optimizers}))
        if not _is_hooked:  # the hook stays, because removing it would disturb other threads' steps
            _is_hooked = True
            register_optimizer_step_pre_hook(uncompiled(_step_begins))


def _step_begins(
    optimizer: torch.optim.Optimizer,
    args: tuple[Any, ...],  # noqa: ARG001  (what torch passes)
    kwargs: dict[str, Any],  # noqa: ARG001
) -> None:
    for reference in _watching:
        watcher = reference()
        if watcher is not None:
            watcher.saw(optimizer)


def _each(given: Any, what: str, *needed: str) -> list[Any]:
    """Return the given objects as a list. Raises `UserError` if one lacks a needed attribute."""
    if given is None:
        return []
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    for each in found:
        if not all(hasattr(each, name) for name in needed):
            kind = f"{type(each).__module__}.{type(each).__qualname__}"
            raise UserError(
                f"{what}: expected an object of a torch class, or a list of such objects (got "
                f"{kind}) [DPWA-E178]"
            )
    return found


def _require_apart(optimizers: list[Any]) -> None:
    for one, other in itertools.combinations(optimizers, 2):
        is_inside = one in with_inner([other]) or other in with_inner([one])
        if _share(one, other) and not is_inside:
            raise UserError(
                f"optimizers: {type(one).__name__} and {type(other).__name__} share parameters. "
                "Put each parameter into only one optimizer [DPWA-E310]"
            )


# Optimizers that wrap an optimizer, such as those of Accelerate, Opacus and SAM

_WRAPPED = ("optimizer", "original_optimizer", "base_optimizer")  # the wrapped one's attribute


def unwrapped(optimizer: Any) -> Any:
    """Return an optimizer without the wrappers that only forward its attributes."""
    for name in _WRAPPED:
        inner: Any = getattr(optimizer, name, None)
        if _wraps(optimizer, inner) and optimizer.state is inner.state:
            return unwrapped(inner)
    return optimizer


def followed(optimizer: Any) -> torch.optim.Optimizer:
    """Return the outermost optimizer, of a chain of wrappers, that calls step hooks."""
    for each in _chain(optimizer):
        try:
            each.register_step_pre_hook(_ignore).remove()
        except AttributeError:  # its constructor has not called torch.optim.Optimizer.__init__
            continue
        found: torch.optim.Optimizer = each
        return found
    raise _not_followed(optimizer)


def uncompiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Exclude a hook from `torch.compile`, which would otherwise trace the gossip of a step."""
    kept: Callable[..., Any] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return kept


def _ignore(*_: Any) -> None:
    """Do nothing when an optimizer steps."""


def _chain(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer, then the optimizers that it wraps, from the outside in."""
    yield optimizer
    kept = [getattr(optimizer, name, None) for name in _WRAPPED]
    for inner in (*kept, *getattr(optimizer, "__dict__", {}).values()):
        if _wraps(optimizer, inner):
            yield from _chain(inner)
            return


def _wraps(outer: Any, inner: Any) -> bool:
    """Return whether an optimizer wraps another optimizer, with the same parameters."""
    if inner is outer or not _is_optimizer(inner):
        return False
    return [*map(id, _tensors_of(outer))] == [*map(id, _tensors_of(inner))]


def with_inner(optimizers: Iterable[Any]) -> list[Any]:
    """Return the optimizers, each after the optimizers that its attributes hold."""
    found: list[Any] = []
    for optimizer in optimizers:
        for value in getattr(optimizer, "__dict__", {}).values():
            values = value if isinstance(value, (list, tuple)) else [value]
            inner = with_inner(each for each in values if _is_optimizer(each))
            found += [each for each in inner if each not in found]
        found.append(optimizer)
    return found


def _is_optimizer(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("state", "param_groups", "load_state_dict"))


def _scheduler_in(scheduler: Any) -> Any:
    """Return a scheduler without Accelerate's wrapper."""
    inner = getattr(scheduler, "scheduler", None)
    return inner if hasattr(inner, "load_state_dict") else scheduler


def _scaler_of(optimizer: Any) -> torch.amp.GradScaler | None:
    """Return the gradient scaler of an optimizer wrapper such as Accelerate's, or `None`."""
    scaler = getattr(optimizer, "scaler", None)
    return scaler if isinstance(scaler, torch.amp.GradScaler) else None


def _tensors_of(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _share(one: Any, other: Any) -> bool:
    return not {*map(id, _tensors_of(one))}.isdisjoint(map(id, _tensors_of(other)))


def _memory_of(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the addresses of the tensors' storages. Some optimizers train views of one buffer."""
    plain = (local(t) for t in tensors if not why_not_plain(t))
    return {tensor.untyped_storage().data_ptr() for tensor in plain if tensor.numel()}


def _elsewhere(tensors: Iterable[torch.Tensor], memory: set[int]) -> list[torch.Tensor]:
    return [t for t in tensors if t.numel() and memory.isdisjoint(_memory_of([t]))]


def _versions_of(optimizer: torch.optim.Optimizer) -> list[int]:
    return [tensor._version for tensor in _tensors_of(optimizer)]


def _has_modes(optimizer: Any) -> bool:
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


def is_training(optimizer: Any) -> bool:
    """Return whether an optimizer has a `train` and an `eval` mode, and is in `train` mode."""
    if not _has_modes(optimizer):
        return False
    groups = optimizer.param_groups
    return bool(
        getattr(optimizer, "train_mode", any(group.get("train_mode", True) for group in groups))
    )


class GossipOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer. Its `step` updates the parameters, merges a peer's, and publishes.

        with DpwaPyTorchAdapter(net, "w1", "nodes.yaml") as gossip:
            optimizer = GossipOptimizer(torch.optim.Adam(net.parameters()), gossip)
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = criterion(net(inputs), targets)
                loss.backward()
                optimizer.step(loss=loss)
            optimizer.finish()

    All other attributes, such as parameter groups, state, hooks and `state_dict`, are those of the
    wrapped optimizer. Create learning rate schedulers from the `GossipOptimizer`, and pass the
    `GossipOptimizer` to a `GradScaler`. If the scaler skips a step, the step of gossip is skipped.

    Args:
        optimizer: the optimizer to wrap. The constructor multiplies the `lr` of its groups by
            `conn.lr_scale`.
        conn: the adapter of the module. You still have to close the adapter.

    Raises:
        UserError: `optimizer` is not a torch optimizer.

    Attributes:
        optimizer, conn: the arguments of the constructor.
        loss: the training loss for calls of `step` without a loss, or `None` if not measured.
        last_merge: the merge of the last step, or `None` if the step merged nothing.
    """

    # `Optimizer.__init__` is not called, because the wrapped optimizer has all that it sets up.
    def __init__(self, optimizer: torch.optim.Optimizer, conn: OptimizerGossip) -> None:
        require_one(optimizer)
        self.optimizer = optimizer
        self.conn = conn
        self.loss: Loss = None
        self.last_merge: Merge | None = None
        scale_learning_rates(optimizer, conn.lr_scale)
        conn.include_optimizer(optimizer)

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Loss = None) -> Any:
        """Take a step of the wrapped optimizer, then a step of gossip.

        Args:
            closure: passed to the wrapped optimizer. Its result is the loss, unless `loss` is
                given.
            loss: the training loss: a number, a numpy scalar or a 0-d tensor.

        Returns:
            The result of the wrapped optimizer's step, which is usually the loss of the closure.

        Raises:
            ParametersError: the loss is not a single number, or the module has nothing to gossip.
            ClosedError: the adapter was closed.
        """
        returned = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        if was_skipped(self.optimizer):
            return returned
        measured = (value for value in (loss, returned, self.loss) if value is not None)
        self.last_merge = self.conn.step(next(measured, None))
        return returned

    def finish(self, *, seconds: float = SECONDS, timeout_s: float | None = None) -> FinishReport:
        """End the training together with the peers. See `DpwaPyTorchAdapter.finish`."""
        return self.conn.finish(seconds=seconds, timeout_s=timeout_s)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Call `zero_grad` of the wrapped optimizer."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the wrapped optimizer. Its learning rate is not scaled."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer, which a plain optimizer can load, too."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the wrapped optimizer, including its learning rates."""
        self.optimizer.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:  # such as `grad_scale`, which a fused optimizer reads in its own step
            setattr(self.optimizer, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.optimizer, name)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UserError(
            "a GossipOptimizer cannot be pickled or copied, because its connection cannot be "
            "copied. Save its state_dict() instead [DPWA-E123]"
        )


def require_one(optimizer: object) -> None:
    """Raise `UserError` if an object is not a single PyTorch optimizer, but for example a list."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _not_followed(optimizer)


def _not_followed(optimizer: object) -> UserError:
    return UserError(
        f"expected one torch.optim.Optimizer (got {type(optimizer).__name__}). Gossip follows the "
        "steps of one optimizer. Pass the optimizer that steps last, and pass the whole list to "
        "dpwa.connect. Or call gossip.step(loss) yourself [DPWA-E302]"
    )


def was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has skipped its last step.

    A `GradScaler` calls a fused optimizer even if gradients are not finite, and sets its
    `found_inf`. Accelerate's wrapper has an attribute for a skipped step. It takes no step while
    gradients only accumulate.
    """
    found = getattr(optimizer, "found_inf", None)
    accumulation = getattr(optimizer, "gradient_state", None)
    return (
        (found is not None and float(found) > 0.0)
        or bool(getattr(optimizer, "step_was_skipped", False))
        or not getattr(accumulation, "sync_gradients", True)
    )


def scale_learning_rates(optimizer: torch.optim.Optimizer, scale: float) -> None:
    """Multiply an optimizer's learning rates, and the initial rates of its schedulers."""
    if scale == 1.0:
        return
    for group in optimizer.param_groups:
        for key in _LEARNING_RATES:
            if key in group:
                group[key] = group[key] * scale


class GossipSteps:
    """Gossips at the steps of a training loop that you cannot change, and counts the merges.

    Args:
        conn: the adapter of the module.

    Attributes:
        last_merge: the merge of the last step, or `None` if the step merged nothing.
        merges: the number of steps that merged something.

    Raises:
        UserError: `lr_spread` in the configuration scales the learning rate of this node.
    """

    def __init__(self, conn: OptimizerGossip) -> None:
        if conn.lr_scale != 1.0:
            raise UserError(
                "`lr_spread` scales the learning rate, and existing learning rate schedulers would "
                "undo the scaling. Wrap the optimizer in GossipOptimizer instead of calling attach "
                "[DPWA-E047]"
            )
        self._conn = conn
        self.last_merge: Merge | None = None
        self.merges = 0

    def step(self, loss: Loss = None) -> Merge | None:
        """Take a step of gossip. See `DpwaPyTorchAdapter.step`."""
        self.last_merge = self._conn.step(loss)
        self.merges += self.last_merge is not None
        return self.last_merge


class Attachment(GossipSteps, Closeable):
    """Follows an optimizer: after each optimizer step, it takes a step of gossip.

    It takes no step of gossip if a `GradScaler` skips the step, or if a batch only accumulates
    gradients. An attachment ends with the connection, and does not keep the adapter alive.

    Args:
        optimizer: an optimizer of the module.
        conn: the adapter of the module.

    Attributes:
        loss: the training loss for the next step, or `None` if not measured. Your loop can set it.
        last_merge: the merge of the last step, or `None` if the step merged nothing.
        merges: the number of steps that merged something.

    Raises:
        UserError: `lr_spread` in the configuration scales the learning rate of this node, or
            `optimizer` is not a torch optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, conn: OptimizerGossip) -> None:
        super().__init__(weakref.proxy(conn))
        require_one(optimizer)
        conn.include_optimizer(optimizer)
        self.loss: Loss = None
        hook = uncompiled(self._stepped)
        self._hook = followed(unwrapped(optimizer)).register_step_post_hook(hook)

    def close(self) -> None:
        """Stop following the optimizer."""
        self._hook.remove()

    def _stepped(
        self,
        optimizer: torch.optim.Optimizer,
        args: tuple[Any, ...],  # noqa: ARG002  (what torch passes)
        kwargs: dict[str, Any],  # noqa: ARG002
    ) -> None:
        if was_skipped(optimizer):
            return
        try:
            self.step(self.loss)
        except (ReferenceError, ClosedError):  # the adapter is gone, or `close_all` has closed it
            self.close()  # the training loop continues
