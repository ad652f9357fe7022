"""Limits: how much of a node others may use, so that there is enough for its own training."""

from __future__ import annotations

from pydantic import Field

from dpwa.types import StrictModel


class Limits(StrictModel):
    """What others may use of a node."""

    sessions_per_peer: int = Field(
        default=2, ge=1, le=64, description="fetches of one peer that are served at once"
    )
    requests_per_s: float = Field(
        default=5000.0,
        gt=0.0,
        le=1_000_000.0,
        description="messages of one peer that are read in a second; more of them wait, and each "
        "MiB counts as one",
    )
    burst: int = Field(
        default=2000, ge=1, le=100_000, description="messages of one peer that may come at once"
    )
    connections: int = Field(default=256, ge=2, le=100_000, description="most connections at once")
    handshake_timeout_s: float = Field(
        default=5.0, ge=0.1, le=600.0, description="longest time that a handshake may take"
    )
    unread_mb: int = Field(
        default=8,
        ge=1,
        le=4096,
        description="what of one connection may wait in memory to be read, in MiB",
    )
