"""TrainingState copies a module and its optimizers into images, and loads them from images."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial

import torch

from dpwa.adapters.module_state import ModuleState, state_tensors
from dpwa.adapters.optimizer import Optimizers
from dpwa.adapters.plain_tensors import Named, local
from dpwa.adapters.tensor_images import copied, layout_of, storable, views
from dpwa.config import Config
from dpwa.data.kernels import is_finite
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.state.replaced_parts import Target, UnfitStateError
from dpwa.state.safetensors_image import ImageLayout, StatePart

log = logging.getLogger("dpwa.adapters")

# An optimizer's state may have this size, and this many times the size of the module.
MAX_OPTIMIZER_BYTES = 64 * 1024**2
MAX_OPTIMIZER_SIZES = 16


class TrainingState:
    """The state that a node sends to nodes that start late, saves to disk, and adopts from a peer.

    A received state is checked against the module and the optimizers before any of it is loaded.
    """

    def __init__(
        self,
        net: torch.nn.Module,  # loading a state writes into its tensors
        # the gossiped tensors of the module. `None`: the state has all tensors in any case
        gossiped: ModuleState | None = None,
        optimizers: Optimizers | None = None,
        *,
        keeps_lr: bool = False,  # keep this node's learning rates, which differ between nodes
        is_guarded: bool = True,  # refuse parameters and optimizer states that are not finite
    ) -> None:
        self._net = net
        self._gossiped = gossiped
        self._keeps_lr = keeps_lr
        self._is_guarded = is_guarded
        self._known = set[str]()  # the reasons that were already logged
        self.optimizers = optimizers or Optimizers()

    @classmethod
    def from_module(
        cls,
        net: torch.nn.Module,
        gossiped: ModuleState,
        config: Config,
        optimizers: Optimizers,
    ) -> TrainingState:
        return cls(
            net,
            gossiped,
            optimizers,
            keeps_lr=config.lr_spread != "none",
            is_guarded=config.guard == "finite",
        )

    def capture(self) -> dict[str, StatePart]:
        return {**self.capture_model(), **self.capture_optimizers()}

    def capture_model(self) -> dict[str, StatePart]:
        named = self._named()
        layout = layout_of(named)
        return {"model": StatePart(self._kind(layout, named), layout, copied(layout, named))}

    def capture_optimizers(self) -> dict[str, StatePart]:
        if not self.optimizers.given:
            return {}
        from dpwa.adapters.optimizer_state import optimizer_part

        part = optimizer_part(self.optimizers)
        return {} if part is None else {"optimizer": part}

    def warn_of_left_out(self, node: str) -> None:
        """Warn of optimizer state that cannot be sent, once for each reason."""
        if not self.optimizers.given:
            return
        from dpwa.adapters.optimizer_state import left_out_of

        found = left_out_of(self.optimizers)
        new = [f"{place}: {why}" for place, why in found.items() if why not in self._known]
        self._known.update(found.values())
        if new:
            log.warning(
                "%s: this part of the optimizer's state cannot be sent to other nodes: %s%s. A "
                "node that starts late or restarts begins without this part. With `together`, the "
                "parameters of that node then differ from the parameters of other nodes. See "
                "docs/state.md [DPWA-W085]",
                node,
                new[0],
                f" (and {len(new) - 1} more)" if len(new) > 1 else "",
            )

    def model(self) -> Target:
        named = self._named()
        layout = layout_of(named)
        load, check = self._load_model, self._check_model
        return Target("model", self._kind(layout, named), layout, layout.nbytes, load, check)

    def model_layout(self) -> Layout:
        """Return the layout of the module's tensors, which must be the same on all nodes."""
        named = self._named()
        return self._kind(layout_of(named), named)

    def _named(self) -> list[Named]:
        found = self._gossiped
        return storable(state_tensors(self._net) if found is None else found.handed_on())

    def _kind(self, layout: ImageLayout, named: Iterable[Named]) -> Layout:
        """Return the layout, with the tensors' names, that must be the same on all nodes."""
        frozen = "" if self._gossiped is None else self._gossiped.layout.frozen
        return Layout(layout.tensors.tensors, frozen, tuple(name for name, _ in named))

    def optimizer_target(self) -> Target:
        from dpwa.adapters.optimizer_state import kind_of

        most_bytes = MAX_OPTIMIZER_BYTES + MAX_OPTIMIZER_SIZES * self.model().most_bytes
        load, check = self._load_optimizer, partial(self._load_optimizer, tries=True)
        return Target("optimizer", kind_of(self.optimizers), None, most_bytes, load, check)

    @torch.no_grad()
    def _load_model(self, image: ByteArray, numbers: bytes) -> None:  # noqa: ARG002
        for tensor, value in self._checked_model(image):
            tensor.copy_(value)

    def _check_model(self, image: ByteArray, numbers: bytes) -> None:  # noqa: ARG002
        self._checked_model(image)

    def _checked_model(self, image: ByteArray) -> list[tuple[torch.Tensor, torch.Tensor]]:
        named = self._named()
        layout = layout_of(named)
        data = layout.tensors_of(image)
        if data is None:
            raise UnfitStateError("the state belongs to a different model")
        found = dict(views(layout, data))
        if self._is_guarded and not _are_finite(self._net, named, found):
            raise UnfitStateError("the state has parameters that are not finite")
        return [(tensor, found[name]) for name, tensor in named]

    def _load_optimizer(self, image: ByteArray, numbers: bytes, *, tries: bool = False) -> None:
        from dpwa.adapters.optimizer_state import load_optimizers

        load_optimizers(
            self.optimizers,
            image,
            numbers,
            keeps_lr=self._keeps_lr,
            is_guarded=self._is_guarded,
            tries=tries,
        )


def _are_finite(
    net: torch.nn.Module, named: Iterable[Named], found: Mapping[str, torch.Tensor]
) -> bool:
    """Return whether all parameters are finite. Buffers, such as masks, need not be finite."""
    trained = (local(p) for p in net.parameters() if p.requires_grad)
    parameters = {p.untyped_storage().data_ptr() for p in trained}
    return all(
        is_finite(found[name])
        for name, tensor in named
        if tensor.untyped_storage().data_ptr() in parameters and tensor.is_floating_point()
    )
