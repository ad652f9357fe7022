"""ConditionLinks: the links of a scenario as the virtual network sees them."""

from __future__ import annotations

import math
import random

from dpwa.sim.conditions import Conditions
from dpwa.sim.run_spec import node_name


class ConditionLinks:
    """The links of a scenario, by the names of its nodes; see `LinkModel`.

    Args:
        conditions: of the run.
        rng: of jitter and losses.
    """

    def __init__(self, conditions: Conditions, rng: random.Random) -> None:
        self._conditions = conditions
        self._rng = rng
        self._index = {node_name(index): index for index in range(conditions.nodes)}

    def delay_s(self, sender: str, to: str) -> float:
        """Draw what one message takes."""
        if sender == to:
            return 0.0
        return self._conditions.delay_s(self._index[sender], self._index[to], self._rng)

    def may_connect(self, client: str, server: str) -> bool:
        """Tell whether nothing but a partition can keep one from connecting to the other."""
        return client == server or not self._conditions.is_behind_nat(self._index[server])

    def upload(self, node: str) -> float:  # noqa: ARG002
        """Return bytes per second; nodes keep to `max_upload_mbps` themselves."""
        return self._conditions.link_bytes_per_s

    def download(self, node: str) -> float:  # noqa: ARG002
        """Return bytes per second."""
        return self._conditions.download_bytes_per_s

    def shared_link(self, sender: str, to: str) -> tuple[str, float] | None:
        """Return the link of a site to others, if it has a limit."""
        conditions = self._conditions
        site = conditions.site(self._index[sender])
        is_inside = site == conditions.site(self._index[to])
        if is_inside or math.isinf(conditions.between_sites_bytes_per_s):
            return None
        return conditions.sites[site], conditions.between_sites_bytes_per_s
