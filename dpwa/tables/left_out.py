"""Why a node has lost its part in the tables, in words: for `TableLostError`."""

from __future__ import annotations

from collections.abc import Iterable


def parted(own: str) -> str:
    """Say that each of two parts of the cluster has gone on by itself."""
    return (
        f"the connection between {own} and the others was lost, and each part has gone on by "
        f"itself; now the tables of the larger one count, and what {own} has added meanwhile is "
        "lost"
    )


def stood_still(own: str, gone: Iterable[str]) -> str:
    """Say that this process was stopped, and that it does not reach others since."""
    return (
        f"{own} has stood still for too long, and {', '.join(gone)} cannot be reached any more: "
        "they may have gone on without it"
    )


def missed_barriers(own: str, count: int) -> str:
    """Say that the others have gone on without this node."""
    return (
        f"{own} did not answer for too long, and the others have gone on without it: they have "
        f"passed {count} barriers to which it has not come"
    )
