"""Options of checkpoints."""

from __future__ import annotations

from pydantic import Field

from dpwa.types import StrictModel


class CheckpointOptions(StrictModel):
    """Where a node keeps its state on disk, and how often."""

    dir: str = Field(
        default="",
        description="folder of the checkpoints, relative to the folder of this file; empty = none",
    )
    every_steps: int = Field(
        default=1000, ge=1, description="so many updates from a checkpoint to the next"
    )
    keep: int = Field(
        default=3, ge=1, le=1000, description="how many checkpoints of each node are kept"
    )
