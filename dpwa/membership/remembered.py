"""The members that a node remembers after a restart, in a small file.

If the file is missing, damaged, untrusted or cannot be written, the node only remembers less.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from dpwa.config import Config
from dpwa.config.endpoints import Seed, ipc_path, is_label, split_tcp
from dpwa.files import open_regular, written
from dpwa.membership.member_list import MemberList
from dpwa.runtime import Background

log = logging.getLogger("dpwa.members")

FORMAT = 1
MAX_REMEMBERED = 16
SAVE_EVERY_S = 1.0
SAVED_WITHIN_S = 1.0
_MAX_BYTES = 1 << 16


class Remembered:
    """A file with the names and endpoints of members. The TxThread writes it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.members.json"
        self._name = name
        self._has_warned = False
        self._from_before: tuple[Seed, ...] = ()
        self._saved_changes = 0
        self._saved_at = -math.inf

    def read_members(self) -> tuple[Seed, ...]:
        """Return the members in the file. If it is invalid, warn, and return no members."""
        try:
            with open(self.path, "rb", opener=open_regular) as file:
                text = file.read(_MAX_BYTES + 1)
            self._from_before = self._seeds(json.loads(text))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._warn(f"cannot be read ({error.strerror})")
        except (ValueError, LookupError, TypeError, RecursionError):
            self._warn("is damaged, or belongs to a different node")
        return self._from_before

    def forget_last_life(self) -> None:
        """Forget the members from before the restart, because a node sent newer members."""
        self._from_before = ()

    def save_members(self, member_list: MemberList, background: Background, now: float) -> None:
        """Save the members if they have changed, at most once a second."""
        changes = member_list.changes
        if changes == self._saved_changes or now - self._saved_at < SAVE_EVERY_S:
            return
        if background.start(self.path.name, partial(self.write, self._known(member_list))):
            self._saved_changes, self._saved_at = changes, now

    def finish(self, member_list: MemberList, background: Background) -> None:
        background.finish(self.path.name, SAVED_WITHIN_S)
        if member_list.changes != self._saved_changes:
            self.write(self._known(member_list))

    def write(self, members: Iterable[Seed]) -> None:
        """Replace the whole file. Warn once if this fails."""
        seeds = [[seed.name, seed.endpoint] for seed in members if seed.name]
        record = {"format": FORMAT, "node": self._name, "members": seeds[:MAX_REMEMBERED]}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with written(self.path) as out:
                out.write(json.dumps(record).encode() + b"\n")
        except OSError as error:
            self._warn(f"cannot be written ({error.strerror})")

    def _known(self, member_list: MemberList) -> tuple[Seed, ...]:
        found = {e.name: Seed(e.endpoint, e.name) for e in member_list.all_known()}
        for seed in self._from_before:
            found.setdefault(seed.name, seed)
        return tuple(found.values())

    def _seeds(self, record: Any) -> tuple[Seed, ...]:
        if record["format"] != FORMAT or record["node"] != self._name:
            raise ValueError
        found = [Seed(endpoint, name) for name, endpoint in record["members"]]
        for seed in found:
            is_endpoint = split_tcp(seed.endpoint) or ipc_path(seed.endpoint)
            if not is_label(seed.name) or not is_endpoint:
                raise ValueError
        return tuple(seed for seed in found[:MAX_REMEMBERED] if seed.name != self._name)

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = "%s: this node remembers no members after a restart, because file %s %s"
            log.warning(text + " [DPWA-W043]", self._name, self.path, problem)


def remembered_by(config: Config, name: str) -> Remembered | None:
    """Return the file with a node's members, or `None` without `join` or without a folder."""
    folder = config.state_dir or config.checkpoint.dir
    return Remembered(Path(folder), name) if config.is_open and folder else None
