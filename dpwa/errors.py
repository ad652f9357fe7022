"""Every exception dpwa raises, as one tree.

The user's mistakes (`UserError`) and the peers' faults (`PeerError`) are different branches. The
first reach the caller and say what to do. The second are caught inside the node, counted and
logged, and never reach a training loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_CODE = re.compile(r" \[(DPWA-[EW]\d{3})\]$", re.MULTILINE)


class DpwaError(Exception):
    """Root of every error that dpwa raises on purpose.

    Its text ends with its code, such as ` [DPWA-E041]`, by which docs/troubleshooting.md has it.
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
    """The caller asked for something impossible. The message says what was expected."""


@contextmanager
def from_extra(extra: str, message: str) -> Iterator[None]:
    """Import from libraries of an extra. If one is missing, the `UserError` has the installation.

    Args:
        extra: name of the extra.
        message: the feature and its libraries, with the message's code.
    """
    try:
        yield
    except ImportError as missing:
        error = UserError(message)
        how = f"pip install -c constraints.txt '.[{extra}]' in a checkout"
        raise UserError(f"{error.text}: {how} [{error.message_code}]") from missing


class ConfigError(UserError):
    """A configuration has mistakes. `problems` has all of them, one line each."""

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
    """None of the addresses in `join` has let the node in within `join_timeout_s`.

    The message is logged when it is raised. It is a `SystemExit` as well, so a program that does
    not catch it ends with exit code 3 and nothing more.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 3


class AddressError(UserError):
    """A node cannot listen on its address, because it is in use, or not of this machine."""


class ParametersError(UserError):
    """A value cannot be published, because it is not numeric, not bytes-like, or of no size."""


class ClosedError(UserError):
    """The object was used after `close()`."""


class ForkedError(UserError):
    """The object belongs to a different process, of which this one is a fork."""


class MismatchError(UserError):
    """Nodes called different collectives, or one on values of different form, or are unlike."""


class CollectiveError(DpwaError):
    """A collective has failed, for all that took part in it. Their values are unchanged."""


class PeerLost(CollectiveError):  # noqa: N818  (what happened, in the words of users)
    """Peers died or stalled in a collective. The next one runs without them.

    Attributes:
        names: of the peers.
    """

    def __init__(self, names: Iterable[str], detail: str) -> None:
        self.names = tuple(names)
        super().__init__(detail)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.names, *self.args)


class LeftBehindError(PeerLost):
    """The others have continued without this node, whose next collective waits to be admitted."""


class CollectiveTimeoutError(CollectiveError):
    """All peers are there, but the collective did not end in time."""


class TableTimeoutError(CollectiveError):
    """An operation of a table, or of all its users, was not done in time."""


class TableLostError(DpwaError):
    """Rows are gone with all nodes that held them, or the others continued without this node."""


class PeerError(DpwaError):
    """A fault of a different process. Never raised into a training loop.

    It has no code. Users get messages about its effects on the node.
    """


class ProtocolError(PeerError):
    """A message that the protocol does not allow: malformed, oversized or out of order."""


class VersionError(ProtocolError):
    """The peer uses a different version of the protocol."""

    def __init__(self, theirs: object, ours: int) -> None:
        self.theirs, self._ours = theirs, ours
        super().__init__(f"the peer speaks protocol version {theirs}, this node speaks {ours}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.theirs, self._ours)


def without_codes(text: str) -> str:
    """Return a text without the codes of messages at the ends of its lines."""
    return _CODE.sub("", text)
