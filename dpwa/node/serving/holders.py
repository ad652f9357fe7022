"""Which peers have a copy of a recent snapshot of this node, as it has sent it to them."""

from __future__ import annotations

from collections import OrderedDict

from dpwa.wire.limits import MAX_HOLDERS

LAG_VERSIONS = 8  # how old a copy may be for others to be sent to it


class Holders:
    """The last few peers that have got a snapshot, and which one. Belongs to the RxThread."""

    def __init__(self) -> None:
        self._versions: OrderedDict[str, int] = OrderedDict()
        self._newest = 0
        self._copies = 0

    def sending(self, version: int) -> None:
        """Note that a snapshot is sent to one more peer, which will keep it."""
        self._copies = self.copies(version) + 1
        self._newest = version

    def copies(self, version: int) -> int:
        """Return how many peers the newest snapshot was sent to; 0 if it was not sent yet."""
        return self._copies if version == self._newest else 0

    def add(self, name: str, version: int) -> None:
        """Note that a peer has got all of a snapshot."""
        self._versions.pop(name, None)
        self._versions[name] = version
        if len(self._versions) > MAX_HOLDERS:
            self._versions.popitem(last=False)

    def of_late(self, newest: int, without: str) -> tuple[int, tuple[str, ...]] | None:
        """Return the oldest version that will do, and who has it or a later one; `None`: nobody."""
        found = {
            name: version
            for name, version in self._versions.items()
            if version >= newest - LAG_VERSIONS and name != without
        }
        return (min(found.values()), tuple(found)) if found else None
