"""Limits: how much of a node others may use, so that there is enough for its own training."""

from __future__ import annotations

from pydantic import Field

from dpwa.types import StrictModel


class Limits(StrictModel):
    """What others may use of a node."""

    sessions_per_peer: int = Field(
        default=2, ge=1, le=64, description="fetches of one peer that are served at once"
    )
    serving_share: float = Field(
        default=0.1,
        gt=0.0,
        le=1.0,
        description="of a core that the requests of others may take while the node trains; what "
        "is more waits",
    )
    serving_burst_ms: float = Field(
        default=50.0, ge=0.0, le=60_000.0, description="of a core that they may take at once"
    )
    handshake_timeout_s: float = Field(
        default=5.0, ge=0.1, le=600.0, description="longest time that a handshake may take"
    )
