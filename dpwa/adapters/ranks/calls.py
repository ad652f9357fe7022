"""How the ranks that hold one model make an adapter, and call it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from dpwa.adapters.ranks.group import Making
from dpwa.adapters.ranks.replicas import Replicas, replicas_of
from dpwa.adapters.ranks.shards import Shards, shards_of_module

P = ParamSpec("P")
R = TypeVar("R")

Ranks = Replicas | Shards


def ranks_of(net: object) -> Ranks | None:
    """Return the ranks that hold a module together; `None` if there is only this one.

    Raises `ParametersError` if parameters are sharded in a way that cannot be gossiped.
    """
    if not isinstance(net, torch.nn.Module) or not dist.is_available():
        return None
    return replicas_of(net) or shards_of_module(net)


def whole_of(ranks: Ranks | None) -> Callable[[float], float] | None:
    """Return what turns the norm of shards into that of the model; `None`: each rank has all."""
    return ranks.norm if isinstance(ranks, Shards) else None


def of_all_shards(ranks: Ranks | None, own: dict[str, str]) -> dict[str, str]:
    """Return what is told of tensors by name, by all ranks of a sharded model."""
    if not isinstance(ranks, Shards):
        return own
    return {name: told for each in ranks.each(own) for name, told in each.items()}


def begins_later(ranks: Ranks | None) -> bool:
    """Tell whether the state to begin with comes when all ranks have their nodes."""
    return isinstance(ranks, Shards)


def made_by_all_ranks(init: Callable[P, None]) -> Callable[P, None]:
    """Let the ranks that hold a module together make their adapters, or fail, together."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def make(*args: P.args, **kwargs: P.kwargs) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        adapter, net, *rest = bound.args
        ranks = adapter._ranks = ranks_of(net)
        if ranks is None:
            init(*args, **kwargs)
        else:
            ranks.make(adapter, net, Making(functools.partial(init, adapter, net), *rest))

    return make


def by_all_ranks(call: Callable[P, R]) -> Callable[P, R]:
    """Let a method of an adapter be called by all ranks; see `Replicas.call` and `Shards.call`.

    A `loss` that it takes is the mean of those of all ranks. Optimizers that have the module hold
    something else while they train are switched on each of them.
    """
    signature = inspect.signature(call)
    begins = call.__name__ == "update_send"  # when leaders are chosen
    ends = call.__name__ == "finish"

    @functools.wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        adapter: Any = args[0]
        ranks: Ranks | None = adapter._ranks
        if adapter._optimizers.to_prepare:
            with adapter._optimizers.prepared(for_good=ends):
                return called(*args, **kwargs)
        if ranks is None or ranks.is_inside:
            return call(*args, **kwargs)
        problem = ranks.problem(adapter)
        bound = signature.bind(*args, **kwargs)
        if "loss" in signature.parameters:
            loss = bound.arguments.get("loss")
            mean = ranks.mean(loss, with_leader_loss=begins, problem=problem)
            bound.arguments["loss"] = mean
        elif problem is not None:
            raise problem
        run = functools.partial(call, *bound.args, **bound.kwargs)
        return ranks.call(adapter, run)

    return called


def leads_the_others(call: Callable[P, R]) -> Callable[P, R]:
    """Let a method run on the rank that has the node, or on rank 0 of those that have one each.

    The others follow it through the methods that are `led_by_first`.
    """

    @functools.wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        adapter: Any = args[0]
        run = functools.partial(call, *args, **kwargs)
        return adapter._ranks.end(adapter, run) if isinstance(adapter._ranks, Shards) else run()

    return called


def led_by_first(call: Callable[P, R]) -> Callable[P, R]:
    """Let a method that rank 0 calls, while it leads, be called on all ranks with a node."""

    @functools.wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        adapter: Any = args[0]
        if isinstance(adapter._ranks, Shards):
            adapter._ranks.told(call.__name__, *args[1:])
        return call(*args, **kwargs)

    return called
