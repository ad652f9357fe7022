"""ModuleWatch: notices at low cost that a module holds other tensors than before."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import nn

from dpwa.adapters.plain_tensors import why_not_plain
from dpwa.adapters.sharded_tensors import is_sharded, local


class ModuleWatch:
    """What a module held at one moment: modules, tensors, and the memory of those that matter.

    Walking through `named_parameters` costs several times as much as asking whether anything has
    changed since, which happens twice a training step.

    Args:
        net: the module.
        with_buffers: whether the memory of its buffers matters too.
    """

    def __init__(self, net: nn.Module, *, with_buffers: bool) -> None:
        self._modules = list(net.modules())
        self._members = self._find_members()
        self._parameters = [
            parameter
            for module in self._modules
            for parameter in module._parameters.values()
            if parameter is not None
        ]
        self._trainable = self._find_trainable()
        watched: list[torch.Tensor] = [p for p in self._parameters if p.requires_grad]
        if with_buffers:
            watched += [
                buffer
                for module in self._modules
                for buffer in module._buffers.values()
                if buffer is not None
            ]
        self._watched = watched
        # A tensor without memory may get some without becoming another object.
        self._is_certain = not any(map(why_not_plain, watched))
        self._local = local if any(map(is_sharded, watched)) else None
        self._aliases = [t.detach() for t in self._locals()] if self._is_certain else []
        self._dtypes = self._find_dtypes()

    def still_holds(self) -> bool:
        """Tell whether nothing was replaced, frozen, unfrozen, cast, resized or moved since."""
        members = self._find_members()
        return (
            self._is_certain
            and len(members) == len(self._members)
            and all(map(operator.is_, members, self._members))
            and self._find_trainable() == self._trainable
            and self._find_dtypes() == self._dtypes
            and all(map(torch.Tensor.is_set_to, self._locals(), self._aliases))
        )

    def _locals(self) -> Iterable[torch.Tensor]:
        return self._watched if self._local is None else map(self._local, self._watched)

    def _find_members(self) -> list[object]:
        """List the parameters and their names, the buffers and the children of all modules."""
        members: list[object] = []
        for module in self._modules:
            members += module._parameters
            members += module._parameters.values()
            members += module._buffers.values()
            members += module._modules.values()
        return members

    def _find_trainable(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]

    def _find_dtypes(self) -> list[torch.dtype]:
        return [tensor.dtype for tensor in self._watched]
