"""Graves: what is known of those who are forgotten, so that old news does not bring them back.

Dead nodes are remembered for `remember_s`, and tried again: at first after 1 s, then twice as long
each time, up to 2.5 s, or 30 s if there are 16 or more (`Trials`). When they are
forgotten, a grave remains for `grave_s`: of who lies there, only what is newer is listened to. So
old news brings nobody back, unless somebody passes it on who has not listened for as long as that,
or never did before; then it lasts until the dead node does not answer. Gone nodes that this one
never knew are buried at once: each passes on only the deaths of those whom it knew alive, so that
news of them dies out.
"""

from __future__ import annotations

from typing import NamedTuple

from dpwa.policy.members.states import MemberEntry


class _Grave(NamedTuple):
    entry: MemberEntry
    until: float


class Graves:
    """The last entries of nodes that are over, for a time; mutable, without a lock.

    Args:
        lasts_s: for how long, in seconds.
        most: how many; the oldest goes first.
    """

    def __init__(self, lasts_s: float, most: int) -> None:
        self._lasts_s = lasts_s
        self._most = most
        self._graves: dict[str, _Grave] = {}  # the newest last

    def entry(self, name: str) -> MemberEntry | None:
        """Return what a node was; `None` if it has no grave."""
        grave = self._graves.get(name)
        return None if grave is None else grave.entry

    def bury(self, entry: MemberEntry, now: float) -> None:
        """Keep what a node was that is over."""
        self._graves.pop(entry.name, None)
        if len(self._graves) >= self._most:
            del self._graves[next(iter(self._graves))]
        self._graves[entry.name] = _Grave(entry, now + self._lasts_s)

    def open(self, name: str) -> None:
        """Forget the grave of a node that is back."""
        self._graves.pop(name, None)

    def tick(self, now: float) -> None:
        """Let time pass."""
        self._graves = {name: grave for name, grave in self._graves.items() if now < grave.until}
