"""The methods by which users call collectives, wherever they stand."""

from __future__ import annotations

from typing import TypeVar

from dpwa.collectives.collectives import Collectives

Value = TypeVar("Value")


class CollectiveCalls:
    """Collectives among equal peers; to be mixed into what has `collectives`.

    All members call the same ones in the same order; each tag has an order of its own, and calls
    with different tags may come from different threads at the same time. Members are, to begin
    with, all nodes of the configuration, and a first collective waits for them. With `join`,
    those who call their first one at about the same time begin together.

    A member that dies, or does not come within the timeout, is left behind: then either all who are
    left get the same result, or all of them raise `PeerLost` and their values are as they were. The
    next collective runs among them. A node that was left behind, or restarted, is let in when the
    others end their next collective.

    `timeout_s` is that of the configuration (`collective_timeout_s`) unless it is given.

    Values are tensors, arrays, Python numbers, or lists, tuples and dicts of them, of any depth;
    dicts are walked in the order of their keys. Tensors and arrays get their result in place; with
    numbers in it, a new structure of the same kind is returned.

    Raises:
        MismatchError: members have called different things, or with values of different form; all
            of them get this error, and nothing is changed.
        PeerLost: members are gone; `names` says who.
        LeftBehindError: the others have gone on without this node.
        CollectiveTimeoutError: all are there, but it did not end in time.
        ParametersError: the value is of something else, or cannot be reduced.
        ClosedError: the node was closed.
    """

    @property
    def collectives(self) -> Collectives:
        """What they run on."""
        raise NotImplementedError

    @property
    def members(self) -> tuple[str, ...]:
        """Names of those who take part at present, in order of rank."""
        return self.collectives.members()

    @property
    def rank(self) -> int:
        """Place of this node among the members; 0 while it is left behind and alone."""
        return self.collectives.rank()

    @property
    def world_size(self) -> int:
        """Number of members."""
        return len(self.members)

    def barrier(self, timeout_s: float | None = None, tag: str = "") -> None:
        """Wait until all members are here."""
        self.collectives.barrier(timeout_s, tag)

    def broadcast(
        self, value: Value, root: str, timeout_s: float | None = None, tag: str = ""
    ) -> Value:
        """Give all members the value of the node named `root`; return it.

        It must have the same structure, shapes and dtypes everywhere.
        """
        return self.collectives.broadcast(value, root, timeout_s, tag)

    def all_reduce(
        self, value: Value, op: str = "sum", timeout_s: float | None = None, tag: str = ""
    ) -> tuple[Value, int]:
        """Reduce the values of all members, element by element; bit-identical on all of them.

        Args:
            value: of the same structure, shapes and dtypes everywhere.
            op: `sum`, `mean`, `max` or `min`.
            timeout_s: how long to wait for the others.
            tag: which order of calls this one belongs to.

        Returns:
            The value, and how many nodes have contributed to it: those that have not joined.
        """
        return self.collectives.all_reduce(value, op, timeout_s, tag)

    def all_gather(
        self, value: object, timeout_s: float | None = None, tag: str = ""
    ) -> dict[str, object]:
        """Return the values of all members that have not joined, by name in order of rank.

        Args:
            value: plain data: None, numbers, strings, bytes, arrays, tensors, and lists and dicts
                of them; it may differ in every way. Tuples come as lists.
            timeout_s: how long to wait for the others.
            tag: which order of calls this one belongs to.
        """
        return self.collectives.all_gather(value, timeout_s, tag)

    def join(self, timeout_s: float | None = None, tag: str = "") -> None:
        """Take part in what the others call without contributing, until all have joined.

        For a node that has no more data while others go on: it brings nothing, and is not counted.

        Args:
            timeout_s: how long to wait for each of their calls.
            tag: which order of calls this one belongs to.
        """
        self.collectives.join(timeout_s, tag)
