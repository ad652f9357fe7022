"""The round of gossip under way: what is waited for, and what this node has published."""

from __future__ import annotations

from dataclasses import dataclass

from dpwa.data.snapshot import Snapshot
from dpwa.node.fetching.fetch_request import FetchRequest


@dataclass(frozen=True)
class OpenRound:
    """What is to be waited for: the fetch, if any, and what this node has published."""

    order: FetchRequest | None
    published: Snapshot | None


NO_ROUND = OpenRound(None, None)
