"""Gradients averaged over the nodes that keep pace, as soon as a backward pass has made them."""

from __future__ import annotations

import gc
import hashlib
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import numpy as np
import torch

from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.optimizer import Optimizers, followed
from dpwa.adapters.training_state import TrainingState
from dpwa.collectives.comparison import EVERY_STEPS
from dpwa.collectives.paced import PacedRounds
from dpwa.connection import DpwaConnection
from dpwa.data.payload import Payload
from dpwa.errors import ClosedError, ProtocolError, UserError
from dpwa.lifecycle import Closeable, weakly
from dpwa.node.training_figures import Activity

log = logging.getLogger("dpwa")

TAG = "dpwa.gradients"
BUCKET_BYTES = 25 * 2**20  # that a bucket has at most, unless one gradient is larger; as in DDP
NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}  # what gradients travel as, by codec


class GradientAveraging(Closeable):
    """Averages the gradients of a module over those who keep pace, in buckets.

    All have the same buckets, and average them in the same order: that of the parameters, from the
    last to the first, which is about the order in which gradients are made. With the last gradient
    all are averaged on the training thread, in place. Where they travel over a network, once a pass
    has made all gradients, buckets do not wait for that: a copy of each is averaged on a thread of
    its own as soon as it is complete, while the pass goes on, which takes all averages at its end.
    A pass that leaves some parameters without a gradient begins with the step of an optimizer.

    Floating buffers are averaged along with the last bucket, where they are gossiped.

    Source: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training
    (VLDB 2020), section 3.2.
    """

    def __init__(
        self,
        connection: DpwaConnection,
        state: ModuleState,
        training: TrainingState,
        optimizers: Optimizers,
    ) -> None:
        self._connection = connection
        self._gossip = connection.node.rounds
        self._state = state
        self._training = training
        self._optimizers = optimizers
        self._narrow = NARROW.get(connection.node.config.codec)

        def leaves_out() -> bool:
            return not self._is_scaled

        self._rounds = PacedRounds(
            connection.collectives,
            TAG,
            connection.node.config.timeout_ms / 1000,
            connection.node.runtime,
            step=lambda: connection.updates,
            copy=self._captured,
            take_over=self._take_over,
            parted=self._gossip.merger.parted,
            leaves_out=leaves_out if connection.node.config.guard == "finite" else None,
            sample=lambda turn: state.sample(turn, EVERY_STEPS),
        )
        connection.node.describe("pace", self._rounds.report)
        self._is_closed = False
        self._is_off = False
        self._hooks: list[Any] = []
        self._hooked = -1  # generation of the module's parameters
        self._stepping: list[torch.optim.Optimizer] = []
        self._taken = 0  # steps of these since the last update
        self._buckets: list[list[torch.nn.Parameter]] = []
        self._places: dict[int, int] = {}  # number of its bucket, by id of a parameter
        # Of this backward pass: buckets whose rounds have begun, and gradients still to be made
        self._begun = 0
        self._missing: list[set[int]] = []
        self._settings = ""
        self._goes_ahead = False  # whether buckets are averaged before the last gradient is made
        self._is_on_cpu = True
        self._may_go_ahead = False
        self._thread: ThreadPoolExecutor | None = None  # for these
        self._ahead: list[Future[_Gradients | None]] = []

    def update(self) -> None:
        """Begin with what the others have, the first time; tell the algorithm who keeps pace."""
        self.hook()
        if not self._stepping:
            raise UserError(
                f"`algorithm: {self._connection.node.config.algorithm}` needs the optimizer, too: "
                "expected dpwa.connect(net, optimizer) [DPWA-E307]"
            )
        self._begin_pass()
        self._rounds.update(self._gossip.algorithm)

    def average(self) -> None:
        """Average the gradients, in place, unless they are averaged already."""
        if 0 < self._begun < len(self._buckets) and not self._rounds.is_apart:
            self._give_up()
        else:
            self._average_all()

    def stepped(self) -> None:
        """Do what follows a step."""
        self._begin_pass()
        taken, self._taken = self._taken, 0
        self._rounds.stepped(taken)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Only accumulate gradients in the block."""
        was_off, self._is_off = self._is_off, True
        try:
            yield
        finally:
            self._is_off = was_off

    def leave(self) -> None:
        """Let nobody wait for this node any more, until it begins anew."""
        self._end_those_ahead()
        self._rounds.leave()

    def close(self) -> None:
        """Leave; gradients are this node's own from now on."""
        self._is_closed = True
        self._remove_hooks()
        try:
            with suppress(ClosedError):
                self._end_those_ahead()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
            self._rounds.leave()

    @cached_property
    def _is_scaled(self) -> bool:
        """Whether a `GradScaler` sees that gradients are not finite, given to this node or not."""
        return any(
            issubclass(type(each), torch.amp.GradScaler) and each.is_enabled()
            for each in gc.get_objects()
        )

    def _captured(self) -> object:
        parts = self._training.capture()
        images = {name: [part.image, part.numbers] for name, part in parts.items()}
        ahead = self._gossip.is_ahead  # then the next update counts a step that was taken
        return [self._connection.clock + ahead, self._connection.updates + ahead, images]

    def _take_over(self, peer: str, given: Any) -> None:
        match given:
            case [int() | float() as clock, int(updates), dict(images)]:
                pass
            case _:
                raise ProtocolError(f"no state of {peer}")
        for target in (self._training.model(), self._training.optimizer_target()):
            match images.get(target.part):
                case [np.ndarray() as image, bytes(numbers)]:
                    target.load(np.array(image, np.uint8), numbers)
                case _:
                    raise ProtocolError(f"{peer} cannot hand over the state of its {target.part}")
        ahead = self._gossip.is_ahead
        self._gossip.resume(clock - ahead, updates - ahead)
        self._optimizers.require_schedulers(self._connection.name, updates)

    def hook(self) -> None:
        """Follow the parameters and the optimizers that there are now."""
        if self._is_closed or (
            self._hooked == self._state.generation and self._stepping == self._optimizers.given
        ):
            return
        self._remove_hooks()
        for optimizer in self._optimizers.given:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise UserError(
                    f"`algorithm: {self._connection.node.config.algorithm}`: expected an optimizer "
                    "with one backward pass a step, not LBFGS, which takes as many as its own loss "
                    "asks for [DPWA-E306]"
                )
        self._hooked, self._stepping = self._state.generation, list(self._optimizers.given)
        parameters = [each for each in self._state.module_parameters() if each.requires_grad]
        self._buckets = _buckets(parameters, self._narrow)
        self._places = {id(each): at for at, bucket in enumerate(self._buckets) for each in bucket}
        self._begin_pass()
        # Hooks of several devices are called on a thread each.
        self._is_on_cpu = all(each.is_cpu for each in parameters)
        self._may_go_ahead = len(self._buckets) > 1 and self._is_on_cpu
        self._goes_ahead = False
        made, steps = weakly(self._made), weakly(self._stepping_soon)
        for parameter in parameters:
            hook = parameter.register_post_accumulate_grad_hook(made)  # type: ignore[no-untyped-call]
            self._hooks.append(hook)
        for optimizer in self._stepping:
            self._hooks.append(followed(optimizer).register_step_pre_hook(steps))

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._hooked = [], -1

    def _begin_pass(self) -> None:
        """Forget what was averaged so far, and which gradients were made."""
        self._end_those_ahead()
        self._begun = 0
        self._missing = [set(map(id, bucket)) for bucket in self._buckets]

    def _made(self, parameter: torch.Tensor) -> None:
        """Note that a gradient was made; average what is complete."""
        place = self._places[id(parameter)]
        try:
            if place < self._begun:  # it was made once more, on top of what is averaged
                if self._begun < len(self._buckets):
                    self._go_ahead_no_more()
                self._begin_pass()
            if self._is_off:
                return
            missing = self._missing
            missing[place].discard(id(parameter))
            if missing[place]:
                return
            if not any(missing):
                self._average_all()
                self._goes_ahead = self._may_go_ahead and not self._rounds.are_all_near
            elif self._goes_ahead and not self._rounds.is_apart:
                while not missing[self._begun]:
                    self._average_ahead()
        except ClosedError:  # and the loop goes on
            self._remove_hooks()

    def _stepping_soon(self, *_: Any) -> None:
        self._taken += 1
        try:
            self.average()
        except ClosedError:
            self._remove_hooks()

    def _average_all(self) -> None:
        """Average the buckets that are left, and take the averages of all."""
        if self._begun == len(self._buckets) or self._is_closed:
            return
        waits_since = self._connection.node.runtime.now()
        # On a GPU the first copy waits for its backward pass, which is no wait for others.
        with self._gossip.figures.doing(Activity.WAIT if self._is_on_cpu else Activity.TRAIN):
            averaged = self._end_those_ahead()
            if self._rounds.is_apart:
                self._begun = len(self._buckets)
                return
            while self._begun < len(self._buckets):
                averaged.append(self._average(*self._next(), waits_since))
        if averaged[-1] is not None:  # or it is out of pace, alone, or nodes differ
            for gradients in averaged:
                if gradients is not None:
                    gradients.take()

    def _next(self, *, is_copy: bool = False) -> tuple[_Gradients, str, bool]:
        """Return the gradients of the next bucket, what all agree on, and if it is the last."""
        if self._begun == 0:
            self._settings = _settings_of(self._stepping, self._optimizers.scales())
        place, settings, buffers = self._begun, self._settings, []
        self._begun += 1
        is_last = self._begun == len(self._buckets)
        if is_last:
            self._state.refresh()  # buffers may have been assigned anew
            entries = self._state.entries
            buffers = [each.tensor for each in entries if each.is_buffer and not each.is_constant]
        if len(self._buckets) > 1:
            settings += f" bucket {place}"
        return _Gradients(self._buckets[place], buffers, self._narrow, is_copy), settings, is_last

    def _average(
        self, gradients: _Gradients, settings: str, is_last: bool, waits_since: float | None
    ) -> _Gradients | None:
        """Return the gradients, averaged; `None` if they are not."""
        count = self._rounds.average(
            gradients.payload, settings, is_last=is_last, waits_since=waits_since
        )
        return gradients if count > 1 else None

    def _average_ahead(self) -> None:
        """Average a copy of a bucket while the backward pass goes on."""
        self._connection.node.check_process()  # the thread is not in a forked child
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "dpwa-gradients")
        what = self._next(is_copy=True)
        self._ahead.append(self._thread.submit(self._average, *what, None))

    def _end_those_ahead(self) -> list[_Gradients | None]:
        """Wait for the rounds that are ahead; return what they averaged."""
        averaged = []
        while self._ahead:
            first = self._ahead[0]
            first.exception()  # an interrupt while it waits leaves it here
            averaged.append(self._ahead.pop(0))
        return [each.result() for each in averaged]

    def _go_ahead_no_more(self) -> None:
        """Wait for all gradients from now on, as passes do not make all."""
        self._goes_ahead = self._may_go_ahead = False
        log.info(
            "%s: a backward pass has left parameters without a gradient: from now on, gradients "
            "are averaged when all are made",
            self._connection.name,
        )

    def _give_up(self) -> None:
        """Take this step alone: its gradients may have been changed since some were averaged."""
        self._go_ahead_no_more()
        self._begin_pass()
        self._begun = len(self._buckets)
        self._rounds.disagree()


def _buckets(
    parameters: list[torch.nn.Parameter], narrow: torch.dtype | None
) -> list[list[torch.nn.Parameter]]:
    """Return the parameters from the last to the first, in groups; at least one group."""
    buckets: list[list[torch.nn.Parameter]] = [[]]
    left = BUCKET_BYTES
    for parameter in reversed(parameters):
        nbytes = parameter.numel() * _travels_as(parameter.dtype, narrow).itemsize
        if nbytes > left and buckets[-1]:
            buckets.append([])
            left = BUCKET_BYTES
        buckets[-1].append(parameter)
        left -= nbytes
    return buckets


def _settings_of(optimizers: list[torch.optim.Optimizer], scales: list[float]) -> str:
    """Return what steps depend on beside gradients and state, such as learning rates, digested."""
    numbers: list[Any] = [
        (key, float(value) if isinstance(value, torch.Tensor) else value)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for key, value in group.items()
        if key != "params" and (not isinstance(value, torch.Tensor) or value.is_cpu)
    ]
    return hashlib.blake2b(repr(numbers + scales).encode(), digest_size=4).hexdigest()


class _Gradients:
    """The gradients of a step, and buffers, as one value to be averaged.

    A parameter without a gradient brings zeros, and stays without if nobody has one. A sparse
    gradient travels as a dense one, and is sparse again afterwards if that of nobody was dense.
    With a `narrow` dtype, those in float32 and float64 travel in that; the mean is computed in
    float32 and rounded to it once. What is too large for it becomes infinite, which a `GradScaler`
    sees. As a `copy`, gradients are what they are until they `take` the mean.
    """

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        buffers: list[torch.Tensor],
        narrow: torch.dtype | None,
        is_copy: bool,
    ) -> None:
        self._parameters, self._is_copy = parameters, is_copy
        self._values = [_dense(each, narrow, is_copy) for each in parameters]
        # Whether there is a gradient, whether it is dense, and how many dimensions are sparse
        self._forms = torch.tensor([_form(each.grad) for each in parameters])
        self.payload = Payload([self._values, self._forms, buffers])

    def take(self) -> None:
        """Give the parameters what has become of it."""
        self.payload.result()
        forms = self._forms.tolist()
        for parameter, value, form in zip(self._parameters, self._values, forms, strict=True):
            share, dense, dims = form
            own = parameter.grad
            if share and not dense:
                parameter.grad = value.to(parameter.dtype).to_sparse(round(dims / share))
            elif own is None or own.is_sparse:
                parameter.grad = value.to(parameter.dtype) if share else None
            elif self._is_copy or own.dtype != value.dtype:
                own.detach().copy_(value)


def _dense(
    parameter: torch.nn.Parameter, narrow: torch.dtype | None, is_copy: bool
) -> torch.Tensor:
    if parameter.grad is None:
        own = torch.zeros_like(parameter, requires_grad=False)
    else:
        own = parameter.grad.detach()
    value = own.to_dense() if own.is_sparse else own
    value = value.to(_travels_as(value.dtype, narrow))
    return value.clone() if is_copy and value is own else value


def _travels_as(dtype: torch.dtype, narrow: torch.dtype | None) -> torch.dtype:
    is_wide = dtype in (torch.float32, torch.float64)
    return dtype if narrow is None or not is_wide else narrow


def _form(gradient: torch.Tensor | None) -> tuple[float, float, float]:
    if gradient is None:
        return 0.0, 0.0, 0.0
    dims = gradient.sparse_dim() if gradient.is_sparse else 0
    return 1.0, float(not gradient.is_sparse), float(dims)
