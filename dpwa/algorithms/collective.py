"""What synchronous algorithms need of a node: collectives among those who are left.

With `UnevenSteps` nodes take steps together, not all of them equally many, and go on when some of
them die. A collective ends alike for all who live through it, either with its result or with
`PeerLost`. So all of them learn at the same place of the sequence that somebody is lost. What each
does then depends on nothing but the call that has failed:

- `all_reduce` and `join` are called again. Those who have joined join again, the others reduce
  again: nobody has passed a collective that failed for another.
- After a failed `all_gather` or `broadcast` all go back to the `all_gather`, as the node to copy
  from may be the one that died. All who take part were in the same call, since nobody begins to
  copy before all have joined (or, at the very first step, only those who have not joined copy, and
  the others join again).

A node that comes in later, or was left behind, does not know where the others are. So it must first
synchronize: that begins with `join`, which is in step with whatever the others do. It waits,
contributes nothing, and gets their values when they synchronize next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

from dpwa.errors import LeftBehindError, MismatchError, ParametersError, PeerLost, UserError

ReduceOp = Literal["sum", "mean", "max", "min"]


class Collective(Protocol):
    """A node and its collectives; `DpwaConnection` is one.

    A value is a tensor, an array, or nested lists, tuples and dicts of them; it is changed in
    place, and returned. Collectives of one `tag` are a sequence of their own, which all nodes must
    call in the same order. Whoever has joined is in step with any order.

    All of them raise:
        PeerLost: peers have died or stalled. All who are left get it from the same collective, and
            their values are as they were; the next collective is among them.
        LeftBehindError: the others have gone on without this node.
        CollectiveTimeoutError: nobody is lost, but it did not end in time.
        MismatchError: nodes called different collectives, or values are of different form.
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
        """How many members there are."""
        ...

    def all_reduce(
        self, value: Any, /, op: ReduceOp = "sum", timeout_s: float | None = None, tag: str = ""
    ) -> tuple[Any, int]:
        """Reduce the values of all who have not joined; return the result and how many they are."""
        ...

    def broadcast(
        self, value: Any, /, root: str, timeout_s: float | None = None, tag: str = ""
    ) -> Any:
        """Copy the value of the node `root`, bit by bit, to all who have not joined."""
        ...

    def all_gather(
        self, value: Any, /, timeout_s: float | None = None, tag: str = ""
    ) -> Mapping[str, Any]:
        """Return the plain data of all who have not joined, by name, in order of rank."""
        ...

    def join(self, timeout_s: float | None = None, tag: str = "") -> None:
        """Take part in what the others do without contributing, until all have joined."""
        ...


Result = TypeVar("Result")

LEFT_BEHIND = -1


class UnevenSteps:
    """The steps of one node among its peers.

    Nodes that have synchronized as often are of one generation, and only among these do numbers of
    steps compare. `taken` counts the steps since then, `nodes` how many nodes there were. All
    collectives have one `tag`, as who has joined serves one tag only.
    """

    def __init__(self, node: Collective, tag: str) -> None:
        self.options: dict[str, float | None] = {}  # that all nodes must have alike
        self._node = node
        self._tag = tag
        self._generation = 0
        self.taken = 0
        self.nodes = node.world_size

    def begin(self, value: Any) -> None:
        """Copy the value of the first node; all who have not joined call it before any step."""
        self._refuse_if_left_behind()
        self._repeated(lambda: self._copy_newest(value), self._node.world_size)

    @property
    def is_left_behind(self) -> bool:
        """Whether the others have gone on without this node, and it has not synchronized since."""
        return self._generation == LEFT_BEHIND

    def reduce(self, value: Any, op: ReduceOp, *, is_waiting: bool = False) -> int:
        """Reduce a value in place over all who take this step; return how many they are.

        With `is_waiting` this node only waits for others, and may see more peers die and come back
        than there are nodes. `UserError`: it was left behind, and has not synchronized since.
        """
        self._refuse_if_left_behind()
        result, contributors = self._repeated(
            lambda: self._node.all_reduce(value, op, tag=self._tag),
            math.inf if is_waiting else self._node.world_size,
        )
        _check_in_place(value, result)
        return contributors

    def synchronize(self, value: Any) -> None:
        """Wait until nobody has a step left; then copy the value of who has taken the most.

        The lowest rank of several. Copies are equal bit by bit, and steps count from 0 again.
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
        """Do it; again among the survivors, at most so often, each time that peers are lost."""
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
                f"{self._tag}: the others have gone on without {self._node.name}, whose values are "
                "out of date; expected synchronize_parameters before the next step [DPWA-E166]"
            )


def _check_in_place(value: Any, result: Any) -> None:
    if result is not value:
        raise ParametersError(
            "values are changed in place: expected tensors and writable arrays, not numbers"
            " [DPWA-E160]"
        )
