"""All exceptions that dpwa raises, in one tree.

Mistakes of the user (`UserError`) and faults of peers (`PeerError`) are different branches. User
errors reach the caller and say what to do. Peer errors are caught inside the node, counted and
logged. They never reach a training loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_CODE = re.compile(r" \[(DPWA-[EW]\d{3})\]$", re.MULTILINE)


class DpwaError(Exception):
    """Root of every error that dpwa raises on purpose.

    Its text ends with a code, such as ` [DPWA-E041]`. docs/troubleshooting.md explains each code.
    """

    @property
    def message_code(self) -> str | None:
        """The code of the message, such as `DPWA-E041`, or `None`."""
        found = _CODE.search(str(self))
        return found and found[1]

    @property
    def text(self) -> str:
        """The message without its code, for quoting in a different message."""
        return without_codes(super().__str__())


class UserError(DpwaError):
    """The caller asked for something invalid. The message says what was expected."""


@contextmanager
def from_extra(extra: str, message: str) -> Iterator[None]:
    """Turn a failed import of an optional library into a `UserError` that tells the remedy.

    Args:
        extra: the name of the extra that installs the library.
        message: the feature and its libraries, with the code of the message.
    """
    try:
        yield
    except ImportError as missing:
        error = UserError(message)
        how = f"pip install -c constraints.txt '.[{extra}]' in a checkout"
        raise UserError(f"{error.text}: {how} [{error.message_code}]") from missing


class ConfigError(UserError):
    """A configuration has mistakes. `problems` lists all of them, one line each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self._lines = tuple(problems)
        self.problems = tuple(map(without_codes, self._lines))
        super().__init__("\n".join(self._lines))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._lines,)


class UnknownNameError(UserError):
    """No node, peer or rule has this name."""


class NameTakenError(UserError):
    """A different living node has this name."""


class JoinTimeoutError(DpwaError, SystemExit):
    """No address in `join` has admitted the node within `join_timeout_s`.

    The message is logged when the error is raised. The error is also a `SystemExit`, so a program
    that does not catch it ends with exit code 3 and without a traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 3


class AddressError(UserError):
    """A node cannot listen on an address that is in use or does not belong to this machine."""


class ParametersError(UserError):
    """A value cannot be published, because it is not numeric, not bytes-like, or empty."""


class ClosedError(UserError):
    """The object was used after `close()`."""


class ForkedError(UserError):
    """The object belongs to the parent process, so this forked child cannot use the object."""


class MismatchError(UserError):
    """The nodes' calls of a collective or of a table do not match, or their models differ."""


class CollectiveError(DpwaError):
    """A collective has failed for all nodes that took part. Their values are unchanged."""


class PeerLost(CollectiveError):  # noqa: N818  (the name that users expect)
    """Peers died or stalled in a collective. The next collective runs without them.

    Attributes:
        names: the names of the peers.
    """

    def __init__(self, names: Iterable[str], detail: str) -> None:
        self.names = tuple(names)
        super().__init__(detail)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.names, *self.args)


class LeftBehindError(PeerLost):
    """The other nodes have continued without this node. The next collective waits for admission."""


class CollectiveTimeoutError(CollectiveError):
    """All peers are alive, but the collective did not end in time."""


class TableTimeoutError(CollectiveError):
    """An operation on a table, or a barrier of all workers, did not end in time."""


class TableLostError(DpwaError):
    """All nodes with copies of some rows died, or the others continued without this node."""


class PeerError(DpwaError):
    """A fault of another process, such as a peer. It is never raised into a training loop.

    It has no code. Users get messages about its effects on the node.
    """


class ProtocolError(PeerError):
    """A message that the protocol does not allow: malformed, too large or out of order."""


class VersionError(ProtocolError):
    """The peer uses a different version of the protocol."""

    def __init__(self, theirs: object, ours: int) -> None:
        self.theirs, self._ours = theirs, ours
        super().__init__(f"the peer speaks protocol version {theirs}, but this node speaks {ours}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.theirs, self._ours)


def without_codes(text: str) -> str:
    """Return a text without the message codes at the ends of its lines."""
    return _CODE.sub("", text)
