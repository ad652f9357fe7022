"""Every exception dpwa raises, as one tree.

The user's mistakes (`UserError`) and the peers' faults (`PeerError`) are different branches:
the first reach the caller and say what to do, the second are caught inside the node, counted and
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
        """The code of the message, such as `DPWA-E041`; None for one without."""
        found = _CODE.search(str(self))
        return found and found[1]

    @property
    def text(self) -> str:
        """The message without its code, to be quoted in another message."""
        return without_codes(super().__str__())


class UserError(DpwaError):
    """The caller asked for something impossible; the message says what was expected."""


@contextmanager
def from_extra(extra: str, message: str) -> Iterator[None]:
    """Import from libraries of an extra; if one is missing, the `UserError` says how to install it.

    Args:
        extra: name of the extra.
        message: what needs which libraries, with its code.
    """
    try:
        yield
    except ImportError as missing:
        error = UserError(message)
        how = f"pip install -c constraints.txt '.[{extra}]' in a checkout"
        raise UserError(f"{error.text}: {how} [{error.message_code}]") from missing


class ConfigError(UserError):
    """A configuration has mistakes: all of them, one line each, in `problems`."""

    def __init__(self, problems: Iterable[str]) -> None:
        self._lines = tuple(problems)
        self.problems = tuple(map(without_codes, self._lines))
        super().__init__("\n".join(self._lines))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._lines,)


class UnknownNameError(UserError):
    """No node, peer or rule has this name."""


class NameTakenError(UserError):
    """Another living node has this name."""


class JoinTimeoutError(DpwaError, SystemExit):
    """None of the addresses in `join` has let the node in within `join_timeout_s`.

    The message is logged when it is raised. It is a `SystemExit` as well, so a program that does
    not catch it ends with exit code 3 and nothing more.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 3


class AddressError(UserError):
    """A node cannot listen on its address: port in use, or not an address of this machine."""


class ParametersError(UserError):
    """A value cannot be published: not numeric, not bytes-like, or of no size."""


class ClosedError(UserError):
    """The object was used after `close()`."""


class ForkedError(UserError):
    """The object belongs to another process, of which this one is a fork."""


class MismatchError(UserError):
    """Nodes called different collectives, or one on values of different form, or are unlike."""


class CollectiveError(DpwaError):
    """A collective has failed, for all who took part in it; their values are as they were."""


class PeerLost(CollectiveError):  # noqa: N818  (what happened, in the words of users)
    """Peers died or stalled in a collective; the next one runs without them.

    Attributes:
        names: of the peers.
    """

    def __init__(self, names: Iterable[str], detail: str) -> None:
        self.names = tuple(names)
        super().__init__(detail)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.names, *self.args)


class LeftBehindError(PeerLost):
    """The others have gone on without this node; its next collective waits to be let in again."""


class CollectiveTimeoutError(CollectiveError):
    """All peers are there, but the collective did not end in time."""


class TableTimeoutError(CollectiveError):
    """What was asked of a table, or of all who use it, did not happen in time."""


class TableLostError(DpwaError):
    """Rows are gone with all nodes that held them; or the others have gone on without this node."""


class PeerError(DpwaError):
    """Something that another process did wrong. Never raised into a training loop.

    It has no code: users are told what the node makes of it.
    """


class ProtocolError(PeerError):
    """A message that the protocol does not allow: malformed, oversized or out of order."""


class VersionError(ProtocolError):
    """The peer speaks another version of the protocol."""

    def __init__(self, theirs: object, ours: int) -> None:
        self.theirs, self._ours = theirs, ours
        super().__init__(f"the peer speaks protocol version {theirs}, this node speaks {ours}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.theirs, self._ours)


def without_codes(text: str) -> str:
    """Return a text whose lines end without the codes of messages."""
    return _CODE.sub("", text)
