"""The round of gossip under way: what is waited for, and what this node has published."""

from __future__ import annotations

from dataclasses import dataclass

from dpwa.data.snapshot import Lease, Snapshot
from dpwa.node.fetching.fetch_request import FetchRequest


@dataclass(frozen=True)
class OpenRound:
    """What is to be waited for: the fetch, if any, and what this node has published."""

    order: FetchRequest | None
    published: Lease | None

    @property
    def snapshot(self) -> Snapshot | None:
        """What this node has published."""
        return None if self.published is None else self.published.snapshot

    def end(self) -> None:
        """Give back what was published."""
        if self.published is not None:
            self.published.release()


NO_ROUND = OpenRound(None, None)
