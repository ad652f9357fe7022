"""The steps of synchronous algorithms, by collectives among the nodes that survive.

With `UnevenSteps` nodes take steps together, although some take more than others, and they continue
when some of them die. A collective ends alike for all that survive it, either with its result or
with `PeerLost`. So all of them learn at the same place of the sequence that a node is lost. The
next call of each depends only on the call that has failed:

- `all_reduce` and `join` are called again. Nodes that have joined join again, the others reduce
  again, because no node has passed a collective that failed for another.
- After a failed `all_gather` or `broadcast` all return to the `all_gather`, because the node to
  copy from may have died. All that take part were in the same call, because no node begins to copy
  before all have joined (or, at the very first step, only those that have not joined copy, and the
  others join again).

A node that starts later, or was left behind, does not know the position of the others. So it must
first synchronize, which begins with `join`. This fits any call of the others. The node waits,
contributes nothing, and gets their values when they synchronize next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

from dpwa.errors import LeftBehindError, MismatchError, ParametersError, PeerLost, UserError

ReduceOp = Literal["sum", "mean", "max", "min"]


class Collective(Protocol):
    """A node and its collectives, such as `DpwaConnection`.

    A value is a tensor, an array, or nested lists, tuples and dicts of them. It is changed in
    place, and returned. Collectives of one `tag` are a separate sequence, which all nodes must call
    in the same order. A node that has joined takes part in any order.

    All of them raise: PeerLost: peers have died or stalled. All survivors get it from the same
        collective, their values are unchanged, and the next collective is among them.
        LeftBehindError: the others have continued without this node. CollectiveTimeoutError: no
        node is lost, but the collective did not end in time. MismatchError: nodes called different
        collectives, or their values differ in form.
    """

    @property
    def name(self) -> str:
        """Of this node."""
        ...

    @property
    def rank(self) -> int:
        """Position of this node among the members, from 0 on."""
        ...

    @property
    def world_size(self) -> int:
        """The number of members."""
        ...

    def all_reduce(
        self, value: Any, /, op: ReduceOp = "sum", timeout_s: float | None = None, tag: str = ""
    ) -> tuple[Any, int]:
        """Reduce the values of all that have not joined. Return the result and their number."""
        ...

    def broadcast(
        self, value: Any, /, root: str, timeout_s: float | None = None, tag: str = ""
    ) -> Any:
        """Copy the value of the node `root` to all nodes that have not joined, bit by bit."""
        ...

    def all_gather(
        self, value: Any, /, timeout_s: float | None = None, tag: str = ""
    ) -> Mapping[str, Any]:
        """Return the plain data of all nodes that have not joined, by name, in order of rank."""
        ...

    def join(self, timeout_s: float | None = None, tag: str = "") -> None:
        """Take part in the calls of the others without contributing, until all have joined."""
        ...


Result = TypeVar("Result")

LEFT_BEHIND = -1


class UnevenSteps:
    """The steps of one node among its peers.

    Nodes that have synchronized equally often are of one generation, and numbers of steps are only
    compared within a generation. `taken` counts the steps since then, `nodes` is the number of
    nodes then. All collectives have one `tag`, because a node that has joined serves only one tag.
    """

    def __init__(self, node: Collective, tag: str) -> None:
        self.options: dict[str, float | None] = {}  # that all nodes must have alike
        self._node = node
        self._tag = tag
        self._generation = 0
        self.taken = 0
        self.nodes = node.world_size

    def copy_initial(self, value: Any) -> None:
        """Copy the value of the first node. All nodes that have not joined call this before any
        step.
        """
        self._refuse_if_left_behind()
        self._repeated(lambda: self._copy_newest(value), self._node.world_size)

    @property
    def is_left_behind(self) -> bool:
        """Whether the others continued without this node, and it did not synchronize since."""
        return self._generation == LEFT_BEHIND

    def reduce(self, value: Any, op: ReduceOp, *, is_waiting: bool = False) -> int:
        """Reduce a value in place over all nodes that take this step, and return their number.

        With `is_waiting` this node only waits for others, and may see more peers die and return
        than there are nodes. Raises `UserError` if it was left behind, and has not synchronized
        since.
        """
        self._refuse_if_left_behind()
        result, contributors = self._repeated(
            lambda: self._node.all_reduce(value, op, tag=self._tag),
            math.inf if is_waiting else self._node.world_size,
        )
        _check_in_place(value, result)
        return contributors

    def synchronize(self, value: Any) -> None:
        """Wait until no node has a step left. Then copy the value of the node with the most steps.

        If there are several, of the lowest rank. Copies are bit-identical, and steps count from 0
        again.
        """
        # Who waits may see more peers die and come back than there are nodes.
        self._repeated(lambda: self._node.join(tag=self._tag), math.inf)
        self._repeated(lambda: self._copy_newest(value), self._node.world_size)

    def _copy_newest(self, value: Any) -> None:
        own = [self._generation, self.taken, self.options]
        said = self._node.all_gather(own, tag=self._tag)
        self._check_options({name: options for name, (*_, options) in said.items()})
        newest = max(said, key=lambda name: tuple(said[name][:2]))  # the first of equals
        result = self._node.broadcast(value, newest, tag=self._tag)
        self._generation = max(generation for generation, *_ in said.values()) + 1
        self.taken = 0
        self.nodes = len(said)
        _check_in_place(value, result)

    def _check_options(self, said: Mapping[str, Mapping[str, float | None]]) -> None:
        """Raise a `MismatchError` that is the same on all nodes, if their options differ."""
        (first, options), *others = said.items()
        for name, theirs in others:
            for option in dict.fromkeys([*options, *theirs]):
                values = options.get(option), theirs.get(option)
                if values[0] != values[1]:
                    raise MismatchError(
                        f"{self._tag}: {option} is {values[0]} on {first}, and {values[1]} on "
                        f"{name}; expected the same on all nodes [DPWA-E313]"
                    )

    def _repeated(self, operation: Callable[[], Result], most: float) -> Result:
        """Call an operation, and repeat it among the survivors, up to `most` times, if peers are
        lost.
        """
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
                f"{self._tag}: the others have continued without {self._node.name}, whose values "
                "are out of date; expected synchronize_parameters before the next step [DPWA-E166]"
            )


def _check_in_place(value: Any, result: Any) -> None:
    if result is not value:
        raise ParametersError(
            "values are changed in place; expected tensors and writable arrays, not numbers"
            " [DPWA-E160]"
        )
