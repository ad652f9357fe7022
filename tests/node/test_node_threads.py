"""The two threads of a node: which of them has not ended is told by its name."""

import logging

import pytest
from support.inside import threads_of
from support.nodes import config_of, eventually

from dpwa import DpwaConnection
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.serving.rx_thread import RxThread


@pytest.mark.parametrize(("kind", "name"), [(RxThread, "dpwa-rx-w1"), (TxThread, "dpwa-tx-w1")])
def test_a_thread_that_does_not_end_is_told_by_its_name(kind, name, caplog, monkeypatch):
    end = kind.request_stop
    monkeypatch.setattr(kind, "request_stop", lambda thread: None)  # it is not asked to
    monkeypatch.setattr("dpwa.node.threads.STOP_TIMEOUT_S", 0.1)
    connection = DpwaConnection("w1", config_of(1))
    threads = threads_of(connection.node)
    with caplog.at_level(logging.ERROR, "dpwa.node"):
        connection.close()
    (told,) = caplog.messages
    assert f"thread {name} did not stop within 0.1 s" in told
    monkeypatch.setattr(kind, "request_stop", end)
    (threads.rx if kind is RxThread else threads.tx).request_stop()
    eventually(lambda: threads._zmq_context.closed)  # its sockets are freed all the same
