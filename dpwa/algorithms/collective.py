"""Synchronous training steps, which the surviving nodes continue when nodes die.

With `UnevenSteps`, nodes take steps together, although some nodes take more steps than others.
They continue when some of them die. A collective ends in the same way on all survivors, either
with its result or with `PeerLost`. So all survivors learn at the same place of the sequence that a
node is lost. The next call of each survivor depends only on the call that failed:

- `all_reduce` and `join` are called again. Nodes that have joined join again, and the others
  reduce again, because a collective that fails on one node has succeeded on no node.
- After a failed `all_gather` or `broadcast`, all nodes return to the `all_gather`, because the
  node to copy from may have died. All participants were in the same call, because no node starts
  to copy before all have joined. (At the very first step, only nodes that have not joined copy,
  and the other nodes join again.)

A node that starts later, or was left behind, does not know the position of the others. So it must
first synchronize, which starts with `join`. This fits any call of the others. The node waits,
contributes nothing, and gets their values when they synchronize next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

from dpwa.errors import LeftBehindError, MismatchError, ParametersError, PeerLost, UserError

ReduceOp = Literal["sum", "mean", "max", "min"]


class Collective(Protocol):
    """The interface of an object that calls collectives for a node, such as `DpwaConnection`.

    A value is a tensor, an array, or nested lists, tuples and dicts of them. It is changed in
    place, and returned. The collectives of one `tag` form a separate sequence, which all nodes must
    call in the same order. A node that has joined takes part in any order. All collectives raise:
        PeerLost: peers have died or do not answer. All survivors get this error from the same
            collective, their values do not change, and the next collective is among the survivors.
        LeftBehindError: the other nodes have continued without this node.
        CollectiveTimeoutError: no node is lost, but the collective did not end in time.
        MismatchError: nodes called different collectives, or their values have different shapes.
    """

    @property
    def name(self) -> str:
        """The name of this node."""
        ...

    @property
    def rank(self) -> int:
        """The rank of this node among the nodes that take part in the collectives, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """The number of nodes that take part in the collectives."""
        ...

    def all_reduce(
        self, value: Any, /, op: ReduceOp = "sum", timeout_s: float | None = None, tag: str = ""
    ) -> tuple[Any, int]:
        """Reduce the values of all nodes that have not called `join`.

        Return the result and the number of these nodes.
        """
        ...

    def broadcast(
        self, value: Any, /, root: str, timeout_s: float | None = None, tag: str = ""
    ) -> Any:
        """Copy the value of the node `root` exactly to all nodes that have not called `join`."""
        ...

    def all_gather(
        self, value: Any, /, timeout_s: float | None = None, tag: str = ""
    ) -> Mapping[str, Any]:
        """Return the data of all nodes that have not called `join`, by name, in order of rank."""
        ...

    def join(self, timeout_s: float | None = None, tag: str = "") -> None:
        """Take part in other nodes' collectives without a value until all nodes call `join`."""
        ...


Result = TypeVar("Result")

LEFT_BEHIND = -1


class UnevenSteps:
    """One node's synchronous steps, if nodes take different numbers of steps.

    Nodes that have synchronized equally often are of one generation. Numbers of steps are compared
    only within a generation. `taken` counts the steps since the last synchronization. `nodes` is
    the number of nodes at that time. All collectives use one `tag`, because a node that has joined
    serves only one tag.
    """

    def __init__(self, node: Collective, tag: str) -> None:
        self.options: dict[str, float | None] = {}  # must be the same on all nodes
        self._node = node
        self._tag = tag
        self._generation = 0
        self.taken = 0
        self.nodes = node.world_size

    def copy_initial(self, value: Any) -> None:
        """Copy the value of the first node to this node. All nodes that have not called `join`
        call this method before the first step.
        """
        self._refuse_if_left_behind()
        self._repeated(lambda: self._copy_newest(value), self._node.world_size)

    @property
    def is_left_behind(self) -> bool:
        """Whether other nodes continued without this node, and this node must synchronize."""
        return self._generation == LEFT_BEHIND

    def reduce(self, value: Any, op: ReduceOp, *, is_waiting: bool = False) -> int:
        """Reduce a value in place over all nodes that take this step. Return the number of nodes.

        With `is_waiting`, this node only waits for other nodes. Then more peers may die and return
        than there are nodes. Raises `UserError` if this node was left behind, and has not
        synchronized since.
        """
        self._refuse_if_left_behind()
        result, contributors = self._repeated(
            lambda: self._node.all_reduce(value, op, tag=self._tag),
            math.inf if is_waiting else self._node.world_size,
        )
        _check_in_place(value, result)
        return contributors

    def synchronize(self, value: Any) -> None:
        """Wait until all nodes call this. Then copy the value of the node with the most steps.

        Among nodes with equal numbers of steps, the node with the lowest rank is used. All copies
        are bit-identical. Afterwards, steps count from 0 again.
        """
        # While this node waits, more peers may die and return than there are nodes.
        self._repeated(lambda: self._node.join(tag=self._tag), math.inf)
        self._repeated(lambda: self._copy_newest(value), self._node.world_size)

    def _copy_newest(self, value: Any) -> None:
        own = [self._generation, self.taken, self.options]
        said = self._node.all_gather(own, tag=self._tag)
        self._check_options({name: options for name, (*_, options) in said.items()})
        newest = max(said, key=lambda name: tuple(said[name][:2]))  # among equals, the first one
        result = self._node.broadcast(value, newest, tag=self._tag)
        self._generation = max(generation for generation, *_ in said.values()) + 1
        self.taken = 0
        self.nodes = len(said)
        _check_in_place(value, result)

    def _check_options(self, said: Mapping[str, Mapping[str, float | None]]) -> None:
        """Raise `MismatchError` if the nodes have different options. All nodes raise this error."""
        (first, options), *others = said.items()
        for name, theirs in others:
            for option in dict.fromkeys([*options, *theirs]):
                values = options.get(option), theirs.get(option)
                if values[0] != values[1]:
                    raise MismatchError(
                        f"{self._tag}: {option} is {values[0]} on {first}, and {values[1]} on "
                        f"{name}. Set the same value on all nodes [DPWA-E313]"
                    )

    def _repeated(self, operation: Callable[[], Result], most: float) -> Result:
        """Call a collective, and repeat the call up to `most` times if peers are lost."""
        left = most
        while True:
            try:
                return operation()
            except LeftBehindError:
                self._generation = LEFT_BEHIND
                raise
            except PeerLost:
                if left < 1:
                    raise
                left -= 1

    def _refuse_if_left_behind(self) -> None:
        if self.is_left_behind:
            raise UserError(
                f"{self._tag}: the other nodes have continued without {self._node.name}, so the "
                "values of this node are out of date. Call synchronize_parameters before the next "
                "step [DPWA-E166]"
            )


def _check_in_place(value: Any, result: Any) -> None:
    if result is not value:
        raise ParametersError(
            "the result cannot be written into numbers or read-only arrays. Pass tensors or "
            "writable arrays [DPWA-E160]"
        )
