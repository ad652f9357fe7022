"""Who gets the metrics of a node: Prometheus asks for them, OpenTelemetry is sent them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from dpwa.lifecycle import Closeable
from dpwa.observe.metrics import NodeMetrics
from dpwa.observe.otlp import sender_of
from dpwa.observe.prometheus import MetricsServer
from dpwa.runtime import SYSTEM

if TYPE_CHECKING:
    from dpwa.node.node import Node


class Exports(Closeable):
    """Hands out the metrics of a node, as far as somebody wants them.

    Args:
        node: which one.

    Raises:
        UserError: prometheus_client is wanted, and not installed.
        AddressError: there is no port for Prometheus to ask at.
    """

    def __init__(self, node: Node) -> None:
        metrics = NodeMetrics(node)
        with ExitStack() as stack:
            if node.config.metrics.port is not None:
                server = stack.enter_context(MetricsServer(node, metrics))
                node.describe("metrics", server.report)
            # Of simulated nodes there is nothing to tell a real collector.
            sender = sender_of(node, metrics) if node.runtime is SYSTEM else None
            if sender is not None:
                stack.enter_context(sender)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Hand out nothing any more; idempotent."""
        self._stack.close()
