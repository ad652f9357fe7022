"""What stands for a node here: its connection, or the adapter around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpwa.connection import DpwaConnection

if TYPE_CHECKING:
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter


def bare(connection: DpwaConnection | DpwaPyTorchAdapter) -> DpwaConnection:
    """Return the connection itself."""
    return connection if isinstance(connection, DpwaConnection) else connection.connection
