"""CollectiveCalls: the collectives as users call them, which load the rest at the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dpwa.errors import UnknownNameError

if TYPE_CHECKING:
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
        """Names of those who take part at present, in order of rank; after `close`, at the end."""
        return self.collectives.members()

    @property
    def rank(self) -> int:
        """Place of this node among the members; 0 while it is left behind and alone."""
        members, own = self.members, self.collectives.name
        return members.index(own) if own in members else 0

    @property
    def world_size(self) -> int:
        """Number of members."""
        return len(self.members)

    def barrier(self, timeout_s: float | None = None, tag: str = "") -> None:
        """Wait until all members are here."""
        from dpwa.collectives.operations import Barrier

        self.collectives.run(Barrier(), timeout_s, tag)

    def broadcast(
        self, value: Value, root: str, timeout_s: float | None = None, tag: str = ""
    ) -> Value:
        """Give all members the value of the node named `root`; return it.

        It must have the same structure, shapes and dtypes everywhere.
        """
        from dpwa.collectives.operations import Reduce
        from dpwa.data.payload import Payload

        contacts = self.collectives.contacts
        if not contacts.knows(root):
            known = ", ".join(contacts.names)
            raise UnknownNameError(f"no node is named {root!r} (known: {known}) [DPWA-E014]")
        payload = Payload(value)
        self.collectives.run(Reduce(payload, "sum", root), timeout_s, tag)
        return payload.result()  # type: ignore[return-value]  # of the structure of the value

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
        from dpwa.collectives.operations import Reduce
        from dpwa.data.payload import Payload

        payload = Payload(value)
        contributors = self.collectives.run(Reduce(payload, op), timeout_s, tag)
        return payload.result(), len(contributors)  # type: ignore[return-value]

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
        from dpwa.collectives.operations import Gather

        gather = Gather(value)
        self.collectives.run(gather, timeout_s, tag)
        return gather.values

    def join(self, timeout_s: float | None = None, tag: str = "") -> None:
        """Take part in what the others call without contributing, until all have joined.

        For a node that has no more data while others go on: it brings nothing, and is not counted.

        Args:
            timeout_s: how long to wait for each of their calls.
            tag: which order of calls this one belongs to.
        """
        from dpwa.collectives.operations import Join

        while self.collectives.run(Join(), timeout_s, tag):
            pass
