"""CollectiveCalls: collectives as methods for users. The first call loads the other modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dpwa.errors import UnknownNameError

if TYPE_CHECKING:
    from dpwa.collectives.collectives import Collectives

Value = TypeVar("Value")


class CollectiveCalls:
    """A mixin class with the collectives, for classes that define the property `collectives`.

    All members call the same collectives in the same order. Each tag has an order of its own, and
    different threads may make calls with different tags at the same time. At first, the members are
    all nodes of the configuration, and the first collective waits for them. With `join`, nodes that
    make their first call at about the same time begin together.

    A member that dies, or does not call within the timeout, is excluded. Then either all other
    members get the same result, or all of them raise `PeerLost` and their values are unchanged. The
    next collective runs among them. An excluded or restarted node is admitted when the others end
    their next collective.

    If `timeout_s` is not given, it is `collective_timeout_s` of the configuration.

    Values are tensors, arrays, Python numbers, or lists, tuples and dicts of them, of any depth.
    Dicts are read in the order of their keys. Tensors and arrays get their result in place. If a
    value has numbers in it, a new structure of the same kind is returned.

    Raises:
        MismatchError: members made different calls, or their values differ in form. All of them get
            this error, and nothing is changed.
        PeerLost: members are gone. Their names are in `names`.
        LeftBehindError: the others have continued without this node.
        CollectiveTimeoutError: no member is gone, but the collective did not end in time.
        ParametersError: the value has other contents, or cannot be reduced.
        ClosedError: the node was closed.
    """

    @property
    def collectives(self) -> Collectives:
        """The `Collectives` of this node, which run the calls."""
        raise NotImplementedError

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the current members, in order of rank. After `close`, the last members."""
        return self.collectives.members()

    @property
    def rank(self) -> int:
        """Rank of this node among the members. It is 0 while the node is excluded and alone."""
        members, own = self.members, self.collectives.name
        return members.index(own) if own in members else 0

    @property
    def world_size(self) -> int:
        """Number of members."""
        return len(self.members)

    def barrier(self, timeout_s: float | None = None, tag: str = "") -> None:
        """Wait until all members have called `barrier`."""
        from dpwa.collectives.operations import Operation

        self.collectives.run_operation(Operation("barrier"), timeout_s, tag)

    def broadcast(
        self, value: Value, root: str, timeout_s: float | None = None, tag: str = ""
    ) -> Value:
        """Send the value of the node named `root` to all members, and return this value.

        The value must have the same structure, shapes and dtypes on all members.
        """
        from dpwa.collectives.operations import Reduce
        from dpwa.data.payload import Payload

        contacts = self.collectives.contacts
        if not contacts.knows(root):
            known = ", ".join(contacts.names)
            raise UnknownNameError(f"no node is named {root!r} (known: {known}) [DPWA-E014]")
        payload = Payload(value)
        self.collectives.run_operation(Reduce(payload, "sum", root), timeout_s, tag)
        return payload.result()  # type: ignore[return-value]  # of the structure of the value

    def all_reduce(
        self, value: Value, op: str = "sum", timeout_s: float | None = None, tag: str = ""
    ) -> tuple[Value, int]:
        """Reduce the values of all members, element by element, with bit-identical results on all.

        Args:
            value: has the same structure, shapes and dtypes on all members.
            op: `sum`, `mean`, `max` or `min`.
            timeout_s: maximum time to wait for the others.
            tag: the order of calls to which this call belongs.

        Returns:
            The value, and the number of nodes that have contributed to the value. A node that is in
            `join` does not contribute.
        """
        from dpwa.collectives.operations import Reduce
        from dpwa.data.payload import Payload

        payload = Payload(value)
        contributors = self.collectives.run_operation(Reduce(payload, op), timeout_s, tag)
        return payload.result(), len(contributors)  # type: ignore[return-value]

    def all_gather(
        self, value: object, timeout_s: float | None = None, tag: str = ""
    ) -> dict[str, object]:
        """Return the values of all members by name, in order of rank, except members in `join`.

        Args:
            value: plain data: None, numbers, strings, bytes, arrays, tensors, and lists and dicts
                of them. It may differ completely between members. Tuples arrive as lists.
            timeout_s: maximum time to wait for the others.
            tag: the order of calls to which this call belongs.
        """
        from dpwa.collectives.operations import Gather

        gather = Gather(value)
        self.collectives.run_operation(gather, timeout_s, tag)
        return gather.values

    def join(self, timeout_s: float | None = None, tag: str = "") -> None:
        """Take part in other members' collectives without a value, until all members call `join`.

        A node that has no more data calls this while others continue. It is not counted.

        Args:
            timeout_s: maximum time to wait for each call of the others.
            tag: the order of calls to which this call belongs.
        """
        from dpwa.collectives.operations import Operation

        join = Operation("join", contributes=False)
        while self.collectives.run_operation(join, timeout_s, tag):
            pass
