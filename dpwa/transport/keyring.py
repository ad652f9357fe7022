"""Keyring: a node's own keys, and the current keys of the nodes to which it connects."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpwa.config.public_keys import AllowedKeys
from dpwa.errors import UserError
from dpwa.transport.keys import KeyFolder, KeyPair, require_curve

log = logging.getLogger("dpwa.keys")

Look = tuple[tuple[str, int, int, int, int, int], ...]  # the status of each file, to see changes


@dataclass(frozen=True)
class LinkKeys:
    """The keys for a connection to a peer: this node's key pair, and the peer's public key."""

    own: KeyPair
    theirs: str


@dataclass(frozen=True)
class _Allowed:
    """The allowed keys, by name and by key. It is never changed, only replaced."""

    keys: Mapping[str, str]
    names: Mapping[str, str]


class Keyring:
    """The keys of a node, and of the nodes that it allows. One thread calls `reload`, any the rest.

    `told` keys are allowed in addition to the keys in the folder. Raises `UserError` without CURVE,
    if the secret key of the node is missing, or if other users can read it or add keys to the
    folder.
    """

    def __init__(
        self, folder: KeyFolder, own: str, told: Mapping[str, str] = AllowedKeys()
    ) -> None:
        require_curve()
        self.own: KeyPair = folder.key_pair(own)
        self._folder = folder
        self._told = told
        self._seen: Look | None = None
        self._is_settled = False
        self._problems: frozenset[str] = frozenset()
        self._allowed = _Allowed({}, {})
        self.reload()

    def for_link(self, name: str) -> LinkKeys | None:
        """Return the keys for a connection to a node, or `None` if the node's key is unknown."""
        theirs = self._allowed.keys.get(name)
        return None if theirs is None else LinkKeys(self.own, theirs)

    def name_of(self, public: str | None) -> str | None:
        """Return the name of a public key's node, or `None` if the key is not allowed now."""
        return None if public is None else self._allowed.names.get(public)

    def missing(self, name: str) -> str:
        """Return an error text for the missing key of a node. `name` may be ""."""
        if not name:
            return "the node at this address is unknown. Write the address as NAME@tcp://host:port"
        return f"no key of {name} in {self._folder.allowed}"

    def reload(self) -> bool:
        """Read the key folder again, and return whether the allowed keys have changed.

        If the folder cannot be read, or if other users could have added keys, nothing changes.
        """
        try:
            self._folder.require_closed()
            seen = _look(self._folder.allowed)
            if seen == self._seen and self._is_settled:
                return False
            found = self._read()
        except (UserError, OSError) as error:
            code = "" if isinstance(error, UserError) else " [DPWA-W048]"
            self._tell([f"keys are not read again: {error}{code}"])
            return False
        # The next call reads again, because a second change within one tick of the file system's
        # clock leaves files that look the same, and because unreadable files may be readable then.
        self._is_settled = seen == self._seen and not self._problems
        self._seen = seen
        before, self._allowed = self._allowed, found
        return before.keys != found.keys

    def _read(self) -> _Allowed:
        keys, problems = dict(self._told), []
        names = {public: name for name, public in keys.items()}
        for name in self._folder.names():
            try:
                public = self._folder.public_key(name)
                _require_new(name, public, keys, names)
            except UserError as error:
                problems.append(str(error))
                continue
            keys[name], names[public] = public, name
        self._tell(problems)
        return _Allowed(keys, names)

    def _tell(self, problems: list[str]) -> None:
        """Log each problem that the last reload did not report."""
        for problem in problems:
            if problem not in self._problems:
                log.error("%s", problem)
        self._problems = frozenset(problems)


def _require_new(name: str, public: str, keys: Mapping[str, str], names: Mapping[str, str]) -> None:
    if keys.get(name, public) != public:
        raise UserError(
            f"{name} has one key under `allow` and a different key in the folder of the keys. "
            "Only the key under `allow` is used [DPWA-E097]"
        )
    if names.get(public, name) != name:
        raise UserError(
            f"{name} and {names[public]} have the same key, so {name} is not admitted [DPWA-E098]"
        )


def _look(folder: Path) -> Look:
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(_look_at(entry) for entry in entries))
    except FileNotFoundError:
        return ()


def _look_at(entry: os.DirEntry[str]) -> tuple[str, int, int, int, int, int]:
    try:
        s = entry.stat()
    except OSError:  # a broken link, or a file that is being removed
        return entry.name, 0, 0, 0, 0, 0
    return entry.name, s.st_ino, s.st_size, s.st_mode, s.st_mtime_ns, s.st_ctime_ns
