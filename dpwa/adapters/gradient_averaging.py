"""GradientAveraging averages computed gradients over all nodes whose parameters are in sync."""

from __future__ import annotations

import hashlib
import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from itertools import repeat
from typing import Any

import numpy as np
import torch

from dpwa.adapters.gradient_buckets import NARROW, Buckets, Gradients, travels_as
from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.optimizer import Optimizers, followed, uncompiled
from dpwa.adapters.optimizer_state import OF_THE_DEVICE
from dpwa.adapters.training_state import TrainingState
from dpwa.algorithms.together import Together
from dpwa.collectives.comparison import EVERY_STEPS
from dpwa.collectives.paced import PacedRounds
from dpwa.connection import DpwaConnection
from dpwa.errors import ClosedError, ProtocolError, UserError
from dpwa.lifecycle import Closeable, weakly
from dpwa.node.training_figures import Activity

log = logging.getLogger("dpwa")

TAG = "dpwa.gradients"
BUCKET_BYTES = 25 * 2**20  # as in DDP
MAX_SETS = 16  # of trainable parameters to remember. A GAN has a set for each kind of pass
UNKNOWN = object()
PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


class GradientAveraging(Closeable):
    """Averages a module's gradients, bucket by bucket, over all nodes whose parameters are in sync.

    All nodes have the same buckets, and average them in the same order. A node averages, in place
    and on the training thread, at the end of a backward pass. It averages all parameters that are
    trainable at this time. If gradients travel over a network, a bucket does not wait for the end
    of the pass. As soon as the bucket is complete, a separate thread averages a copy of it. The
    pass continues, and reads all averages at its end.

    Before an optimizer steps, each of its parameters must have an averaged gradient. If one has
    not, for example because you set a gradient, nodes average the gradients then. A step uses up
    the averages. The next step needs new gradients, or the same gradients averaged again.

    Floating-point buffers are averaged with the last bucket, if the configuration gossips buffers.

    Source: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training
    (VLDB 2020), section 3.2.
    """

    def __init__(
        self,
        connection: DpwaConnection,
        net: torch.nn.Module,
        state: ModuleState,
        training: TrainingState,
        optimizers: Optimizers,
    ) -> None:
        self._connection = connection
        self._gossip = connection.node.rounds
        self._net, self._state = net, state
        self._training = training
        self._optimizers = optimizers
        self._narrow = NARROW.get(connection.node.config.codec)

        def leaves_out() -> bool:  # a scaler must see bad gradients, so that all skip the step
            return not any(each.is_enabled() for each in optimizers.scalers)

        self._rounds = PacedRounds(
            connection.collectives,
            TAG,
            connection.node.config.timeout_ms / 1000,
            step=lambda: connection.updates,
            copy=self._captured,
            take_over=self._take_over,
            parted=self._gossip.merger.parted,
            leaves_out=leaves_out if connection.node.config.guard == "finite" else None,
            sample=lambda turn: state.sample(turn, EVERY_STEPS),
            others_have_ended=connection.node.finish.endings.others_have_ended,
            layouts=lambda: (state.layout, training.model_layout()),
            compared=connection.node.traffic.compared,
        )
        connection.node.describe("pace", self._rounds.report)
        algorithm = self._gossip.algorithm
        self._is_at_step = (
            isinstance(algorithm, Together) and algorithm.options.average_at == "step"
        )
        self._is_closed = False
        self._is_off = False
        self._step_hooks: list[Any] = []
        self._stepping: list[torch.optim.Optimizer] = []
        self._followed: list[torch.optim.Optimizer] = []  # those of `_stepping`, without wrappers
        self._has_looked = False  # whether optimizers were checked for tensors outside the module
        self._taken = 0  # steps of these optimizers since the last update
        self._hooks: dict[int, Any] = {}  # by the id of a parameter
        self._parameters: list[torch.nn.Parameter] = []  # all parameters of the module
        self._known: set[int] = set()  # the ids of these parameters
        self._generation = -1  # the generation of the state at the last check
        self._buffers: list[torch.Tensor | None] = []
        self._sets: dict[bytes, Buckets] = {}  # by flags: which parameters are in the set
        self._trainable = Buckets([], b"", None, BUCKET_BYTES)
        # The gradients that were averaged since the last step, or `None`, by the id of the
        # parameter
        self._averaged: dict[int, torch.Tensor | None] = {}
        self._pass: int | None = None  # autograd's number of the current backward pass
        self._has_made = False  # whether a gradient was computed since the last round
        self._missing: list[set[int]] = []  # by bucket: parameters without a gradient in this pass
        self._settings = ""
        self._goes_ahead = False  # whether this pass averages buckets before its end
        self._may_go_ahead = True
        self._thread: ThreadPoolExecutor | None = None  # averages buckets before a pass ends
        self._ahead: list[Future[Gradients | None]] = []

    @property
    def has_begun(self) -> bool:
        """Whether this node has begun averaging, with the training state of the other nodes."""
        return self._rounds.has_begun

    def update(self) -> None:
        """At the first call, adopt the other nodes' state. Tell the algorithm the nodes in sync."""
        self.follow()
        if not self._stepping:
            raise UserError(
                f"`algorithm: {self._connection.node.config.algorithm}` needs the optimizer of "
                "the module. Call dpwa.connect(net, optimizer) [DPWA-E307]"
            )
        self._begin_anew()
        self._rounds.update(self._gossip.algorithm)

    def average(self) -> None:
        """Average the gradients in place, unless the current gradients are averages already."""
        self._follow_parameters()
        if not self._are_averaged(self._trainable.parameters):
            self._average(self._trainable)

    def stepped(self) -> None:
        """After an optimizer step, drop the averages, and admit new nodes, or rejoin the others."""
        self._begin_anew()
        self._averaged.clear()
        taken, self._taken = self._taken, 0
        self._rounds.stepped(taken)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Accumulate gradients without averaging them until the block ends."""
        was_off, self._is_off = self._is_off, True
        try:
            yield
        finally:
            self._is_off = was_off

    def leave_rounds(self) -> None:
        """Leave averaging rounds until the next `update`, so that no peer waits for this node."""
        self._end_those_ahead()
        self._rounds.leave_rounds()

    def close(self) -> None:
        """Leave the averaging rounds. From now on, this node does not average gradients."""
        self._stop()
        try:
            with suppress(ClosedError):
                self._end_those_ahead()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
            self._rounds.leave_rounds()

    def _stop(self) -> None:
        """Remove all hooks from parameters and optimizers."""
        self._is_closed = True
        for hook in (*self._hooks.values(), *self._step_hooks):
            hook.remove()
        self._hooks, self._step_hooks = {}, []

    def _captured(self) -> object:
        parts = self._training.capture()
        images = {name: [part.image, part.numbers] for name, part in parts.items()}
        ahead = self._gossip.is_ahead  # the next update will count a step that was already taken
        return [
            self._connection.clock + ahead,
            self._connection.updates + ahead,
            images,
            self._is_at_step,
            self._state.constants,  # a restarted node may have other values in these buffers
        ]

    def _take_over(self, peer: str, given: Any) -> None:
        match given:
            case [
                int() | float() as clock,
                int(updates),
                dict(images),
                bool(is_at_step),
                list(constants),
            ]:
                pass
            case _:
                raise ProtocolError(f"{peer} sent an invalid training state")
        for target in (self._training.model(), self._training.optimizer_target()):
            match images.get(target.part):
                case [np.ndarray() as image, bytes(numbers)]:
                    target.load(np.array(image, np.uint8), numbers)
                case _:
                    raise ProtocolError(
                        f"{peer} sent a training state without a valid {target.part}"
                    )
        self._is_at_step = self._is_at_step or is_at_step
        self._state.constants = constants
        ahead = self._gossip.is_ahead
        self._gossip.resume(clock - ahead, updates - ahead)
        self._optimizers.require_schedulers(self._connection.name, updates)

    # Hooks on parameters and optimizers

    def follow(self) -> None:
        """Put hooks on the current parameters and optimizers."""
        if self._is_closed:
            return
        self._follow_parameters()
        if self._stepping != self._optimizers.given:
            self._follow_optimizers(list(self._optimizers.given))

    def _follow_optimizers(self, given: list[torch.optim.Optimizer]) -> None:
        if any(isinstance(each, torch.optim.LBFGS) for each in given):
            raise UserError(
                f"`algorithm: {self._connection.node.config.algorithm}` needs an optimizer with "
                "one backward pass in each step. LBFGS makes several passes. Use a different "
                "optimizer [DPWA-E306]"
            )
        found = list(map(followed, given))
        for hook in self._step_hooks:
            hook.remove()
        self._stepping, self._followed, self._has_looked = given, found, False
        before = uncompiled(weakly(self._before_step))
        after = uncompiled(weakly(self._after_step))
        self._step_hooks = [each.register_step_pre_hook(before) for each in found]
        self._step_hooks += [each.register_step_post_hook(after) for each in found]

    def _follow_parameters(self) -> None:
        """Put hooks on the module's current parameters, and find the trainable parameters."""
        if self._is_closed:
            return
        parameters, buffers = _tensors_of(self._net)
        generation = self._state.generation
        if generation != self._generation or not _are_same(parameters, self._parameters):
            self._generation, self._parameters, self._sets = generation, parameters, {}
            self._known = set(map(id, parameters))
            for gone in self._hooks.keys() - self._known:
                self._hooks.pop(gone).remove()
                self._averaged.pop(gone, None)
        if not _are_same(buffers, self._buffers):
            self._buffers = buffers
            self._state.refresh()
        trainable = self._set_of(bytes([each.requires_grad for each in parameters]))
        if trainable is not self._trainable:
            self._begin_anew()
            self._trainable = trainable
            self._begin_anew()
            made = weakly(self._made)
            for each in trainable.parameters:
                if id(each) not in self._hooks:
                    hook = each.register_post_accumulate_grad_hook(made)  # type: ignore[no-untyped-call]
                    self._hooks[id(each)] = hook

    def _set_of(self, places: bytes) -> Buckets:
        """Return buckets for the parameters whose flag in `places`, one byte each, is not 0."""
        known = self._sets.get(places)
        if known is None:
            if len(self._sets) >= MAX_SETS:
                self._sets.clear()
            chosen = [each for each, is_in in zip(self._parameters, places, strict=True) if is_in]
            known = self._sets[places] = Buckets(chosen, places, self._narrow, BUCKET_BYTES)
        return known

    def _begin_anew(self) -> None:
        """Discard the averages that were made before the end of the backward pass."""
        with self._stopped_when_closed():
            self._end_those_ahead()
        self._missing = []

    # The backward pass

    def _made(self, parameter: torch.Tensor) -> None:
        """Record that a backward pass set a parameter's gradient or added to this gradient."""
        self._averaged.pop(id(parameter), None)
        task = torch._C._current_graph_task_id()
        if task != self._pass:
            self._pass = task
            self._pass_begins()
        if self._goes_ahead:
            self._go_ahead(id(parameter))

    def _pass_begins(self) -> None:
        self._has_made = True
        _at_end_of_pass(weakly(self._pass_ends))
        self._follow_parameters()
        self._goes_ahead = (
            self._may_go_ahead
            and len(self._trainable.buckets) > 1
            and self._trainable.are_on_cpu  # each device calls hooks on a thread of its own
            and not (self._is_off or self._is_at_step or self._rounds.is_apart)
            and not self._rounds.are_all_near
        )

    def _pass_ends(self) -> None:
        self._pass = None
        node: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
        if node is not None:  # this node runs the pass within an outer pass, as checkpointing does
            _when_pass_goes_on(node, weakly(self._pass_begins))
        elif self._has_made and not (self._is_off or self._is_at_step):
            self._average(self._trainable)

    def _go_ahead(self, made: int) -> None:
        """Average the complete buckets before the pass ends, except the last bucket.

        The bucket of this gradient waits for the next gradient, because other hooks may still
        change this one.
        """
        place = self._trainable.place_of[made]
        if place < len(self._ahead):  # checkpointing can compute a gradient twice in a pass
            self._go_ahead_no_more()
            return
        if not self._missing:
            self._missing = [set(map(id, each.parameters)) for each in self._trainable.buckets]
        self._missing[place].discard(made)
        with self._stopped_when_closed():
            while (ahead := len(self._ahead)) < len(self._missing) - 1 and ahead != place:
                if self._missing[ahead]:
                    break
                self._average_ahead()

    def _go_ahead_no_more(self) -> None:
        self._goes_ahead = self._may_go_ahead = False
        self._begin_anew()
        log.info(
            "%s: a backward pass computed a gradient twice. From now on, this node averages "
            "gradients at the end of the pass",
            self._connection.name,
        )

    # The optimizer step

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Average the gradients before the optimizer steps, or after each call of its closure."""
        self._taken += 1
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._followed_by_average(optimizer, args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            closure = self._followed_by_average(optimizer, kwargs["closure"])
            return args, kwargs | {"closure": closure}
        self._average_for(optimizer)
        return None

    def _followed_by_average(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]
    ) -> Callable[[], Any]:
        @wraps(closure)
        def called() -> Any:
            loss = closure()
            self._average_for(optimizer)
            return loss

        return called

    def _average_for(self, optimizer: torch.optim.Optimizer) -> None:
        """Average the gradients of an optimizer's parameters, unless they are averages already."""
        own, are_known = self._own(optimizer)
        if are_known and self._are_averaged(own):
            return
        self._follow_parameters()
        own, are_known = self._own(optimizer)
        if not (are_known or self._has_looked):
            self._has_looked = True
            self._optimizers.require_all_in_module(self._connection.name)
        if not (self._is_at_step or self._are_averaged(own)):
            self._average_replaced(own)
        if not self._are_averaged(own):  # some averages may be of parameters that are frozen now
            ids = set(map(id, own))
            places = bytes(id(each) in ids for each in self._parameters)
            self._average(self._set_of(places), f" of optimizer {self._followed.index(optimizer)}")

    def _average_replaced(self, own: list[torch.nn.Parameter]) -> None:
        """Average all gradients again, because new gradients replaced averaged gradients.

        If the new gradients differ between nodes, average before each step from now on.
        """
        replaced = [each for each in own if self._is_replaced(each)]
        before = _copies(replaced, self._narrow)
        if not self._average(self._trainable):
            return
        if not all(map(_are_close, before, _copies(replaced, self._narrow))):
            self._is_at_step = True
            log.warning(
                "%s: after nodes averaged the gradients of a backward pass, the training loop "
                "replaced the gradients. The new gradients differ between nodes. From now on, "
                "nodes average gradients before each optimizer step instead. Set "
                "`together: {average_at: step}`, so that nodes average only once [DPWA-W081]",
                self._connection.name,
            )

    def _own(self, optimizer: torch.optim.Optimizer) -> tuple[list[torch.nn.Parameter], bool]:
        """Return the optimizer's parameters that belong to the module and can change, and whether
        all parameters of the optimizer belong to the module.
        """
        found = [each for group in optimizer.param_groups for each in group["params"]]
        known = [each for each in found if id(each) in self._known]
        own = [each for each in known if each.requires_grad or each.grad is not None]
        return own, len(known) == len(found)

    def _are_averaged(self, parameters: list[torch.nn.Parameter]) -> bool:
        averaged = map(self._averaged.get, map(id, parameters), repeat(UNKNOWN))
        return all(map(operator.is_, averaged, [each.grad for each in parameters]))

    def _is_replaced(self, parameter: torch.nn.Parameter) -> bool:
        averaged, own = self._averaged.get(id(parameter)), parameter.grad
        return averaged is not None and own is not None and own is not averaged

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if len(self._followed) == 1:
            self._averaged.clear()
            return
        for group in optimizer.param_groups:
            for each in group["params"]:
                self._averaged.pop(id(each), None)

    # A round

    def _average(self, buckets: Buckets, which: str = "") -> bool:
        """Average the remaining buckets, and write all averages into the gradients. Return whether
        several nodes averaged each bucket.
        """
        is_taken = False
        with self._stopped_when_closed():
            averaged = self._averages(buckets, which)
            self._begin_anew()
            self._has_made = False
            # If averages are missing, this node is out of sync or alone, or nodes have different
            # models.
            is_taken = len(averaged) == len(buckets.buckets) and averaged[-1] is not None
            for gradients in averaged:
                if is_taken and gradients is not None:
                    gradients.apply_result()
            own = buckets.parameters
            self._averaged.update(zip(map(id, own), [each.grad for each in own], strict=True))
        return is_taken

    def _averages(self, buckets: Buckets, which: str) -> list[Gradients | None]:
        waits_since = self._connection.node.runtime.now()
        # On a GPU, the first copy waits for this node's backward pass, and not for other nodes.
        with self._gossip.figures.doing(Activity.WAIT if buckets.are_on_cpu else Activity.TRAIN):
            averaged = self._end_those_ahead()
            for place in range(len(averaged), len(buckets.buckets)):
                if self._rounds.is_apart:
                    break
                averaged.append(self._round(*self._brought(buckets, place, which), waits_since))
            return averaged

    def _brought(
        self, buckets: Buckets, place: int, which: str = "", *, is_copy: bool = False
    ) -> tuple[Gradients, str, bool]:
        """Return a bucket's gradients, a label that must be the same on all nodes, and whether the
        bucket is the last one.
        """
        if place == 0:
            self._settings = _settings_of(self._stepping, self._optimizers.scales())
        buffers, is_last = [], place == len(buckets.buckets) - 1
        if is_last:
            entries = self._state.entries
            buffers = [each.tensor for each in entries if each.is_buffer and not each.is_constant]
        label = f"{self._settings} {buckets.label}{which} bucket {place}"
        return Gradients(buckets.buckets[place], buffers, is_copy=is_copy), label, is_last

    def _round(
        self, gradients: Gradients, label: str, is_last: bool, waits_since: float | None
    ) -> Gradients | None:
        """Return the averaged gradients, or `None` if no other node took part."""
        count = self._rounds.average(
            gradients.payload, label, is_last=is_last, waits_since=waits_since
        )
        return gradients if count > 1 else None

    def _average_ahead(self) -> None:
        """Average a copy of the next bucket while the backward pass continues."""
        self._connection.node.check_process()  # a forked child does not have the thread
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "dpwa-gradients")
        brought = self._brought(self._trainable, len(self._ahead), is_copy=True)
        self._ahead.append(self._thread.submit(self._round, *brought, None))

    def _end_those_ahead(self) -> list[Gradients | None]:
        """Wait for averages begun in the backward pass, and return the averaged gradients."""
        averaged = []
        while self._ahead:
            first = self._ahead[0]
            first.exception()  # if the wait is interrupted, the future stays in the list
            averaged.append(self._ahead.pop(0))
        return [each.result() for each in averaged]

    @contextmanager
    def _stopped_when_closed(self) -> Iterator[None]:
        """Remove all hooks if the connection is closed, so that the training loop continues."""
        try:
            yield
        except ClosedError:
            self._stop()


def _tensors_of(
    net: torch.nn.Module,
) -> tuple[list[torch.nn.Parameter], list[torch.Tensor | None]]:
    """Return a module's parameters, each once, and its buffers, in the order of its submodules.

    This costs a fraction of the time of `net.parameters()`.
    """
    parameters: dict[int, Any] = {}
    buffers: list[torch.Tensor | None] = []
    modules: list[torch.nn.Module | None] = [net]
    while modules:
        module = modules.pop()
        if module is not None:
            parameters.update((id(each), each) for each in module._parameters.values())
            buffers += module._buffers.values()
            modules += reversed(module._modules.values())
    parameters.pop(id(None), None)
    return list(parameters.values()), buffers


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _at_end_of_pass(call: Callable[[], None]) -> None:
    """Call a function at the end of the current backward pass of this thread."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _when_pass_goes_on(node: torch.autograd.graph.Node, call: Callable[[], None]) -> None:
    """Call a function once, when the backward pass continues after the autograd node `node`."""
    for following, _ in node.next_functions:
        if following is not None:
            _once_before(following, call)


def _once_before(node: torch.autograd.graph.Node, call: Callable[[], None]) -> None:
    def called(_: object) -> None:
        handle.remove()
        call()

    handle = node.register_prehook(called)


def _settings_of(optimizers: list[torch.optim.Optimizer], scales: list[float]) -> str:
    """Return a digest of the loss scales and the optimizers' settings, such as learning rates."""
    numbers: list[Any] = [
        (key, float(value) if isinstance(value, torch.Tensor) else value)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for key, value in group.items()
        if key not in ("params", *OF_THE_DEVICE)
        # The text of other objects, such as functions, differs between processes.
        and (value.is_cpu if isinstance(value, torch.Tensor) else isinstance(value, PLAIN))
    ]
    return hashlib.blake2b(repr(numbers + scales).encode(), digest_size=4).hexdigest()


def _copies(parameters: list[torch.nn.Parameter], narrow: torch.dtype | None) -> list[torch.Tensor]:
    """Return copies of the parameters' gradients, in the dtype in which nodes send gradients."""
    own = [each.grad.detach().to_dense() for each in parameters if each.grad is not None]
    return [each.to(travels_as(each.dtype, narrow), copy=True) for each in own]


def _are_close(some: torch.Tensor, others: torch.Tensor) -> bool:
    """Return whether two tensors of gradients are equal, up to a rounding error."""
    limits = torch.finfo(some.dtype)
    return torch.allclose(some, others, rtol=4 * limits.eps, atol=limits.tiny, equal_nan=True)
