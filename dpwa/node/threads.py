"""The threads of a node and their ZeroMQ context, which are opened and closed together."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial

from dpwa.node.assembly import authorizer_of
from dpwa.node.context import NodeContext
from dpwa.node.fetching.connections import affordable
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.node_thread import NodeThread
from dpwa.node.serving.admission import AdmissionControl
from dpwa.node.serving.rx_thread import RxThread
from dpwa.node.serving.service import Service
from dpwa.runtime import NODE_NEEDS, SYSTEM, require_descriptors
from dpwa.transport.sockets import keep_freed_memory

log = logging.getLogger("dpwa.node")

SOCKETS_PER_LINK = 3  # including both ends of the link's monitor
OTHER_SOCKETS = 256  # for calls and for the RxThread
STOP_TIMEOUT_S = 3.0  # longer than a farewell takes, even on a busy machine


class NodeThreads:
    """Owns the RxThread, the TxThread and the context of their sockets.

    Raises `UserError` if too few file descriptors are left. Raises the errors of `authorizer_of`.
    """

    def __init__(self, endpoint: str, context: NodeContext) -> None:
        keep_freed_memory()
        self.authorizer = authorizer_of(context.config, context.name)
        self._runtime = runtime = context.runtime
        if runtime is SYSTEM:
            require_descriptors(NODE_NEEDS)
        admission = AdmissionControl(self.authorizer, context.config.limits, runtime)
        most = affordable(context.config.connections, context.name)
        context.peer_table.most_connected = most
        with ExitStack() as undo:
            self._zmq_context = runtime.zmq_context()
            undo.callback(self._zmq_context.term)
            self._zmq_context.max_sockets = max(1023, SOCKETS_PER_LINK * most + OTHER_SOCKETS)
            self.tx = TxThread(self._zmq_context, context, self.authorizer.keyring, most)
            self.rx = RxThread(
                context.name,
                self._zmq_context,
                endpoint,
                runtime,
                admission,
                keys_changed=self.tx.renew_links,
                most_clients=most,
            )
            undo.pop_all()

    def open(self, services: Iterable[Service]) -> None:
        """Register the services and start the threads.

        Raises `AddressError` if the node cannot listen on its endpoint.
        """
        for service in services:
            self.rx.register(service)
        self.tx.start()
        self.rx.open()

    def close(self) -> None:
        """Stop the threads and free the sockets, in bounded time.

        A thread may wait for a call that a signal handler has interrupted. Such a thread ends after
        the handler, and then the sockets are freed.
        """
        running = [thread for thread in (self.tx, self.rx) if not self._stop(thread)]
        if running:
            self._runtime.thread(partial(self._close_later, running), "dpwa-close").start()
        else:
            self._zmq_context.term()

    def _close_later(self, running: Iterable[NodeThread]) -> None:
        for thread in running:
            thread.stop(None)
        self._zmq_context.term()

    def _stop(self, thread: NodeThread) -> bool:
        if not thread.was_started:  # the system could not start one more thread
            thread.discard()
            return True
        if thread.stop(STOP_TIMEOUT_S):
            return True
        log.error("thread %s did not stop within %g s [DPWA-W020]", thread.name, STOP_TIMEOUT_S)
        return False
