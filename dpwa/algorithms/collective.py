"""What synchronous algorithms need of a node: collectives among those who are left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

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
