"""A call ends in time, whatever is at the other end."""

import time
from contextlib import contextmanager

import pytest
import zmq
from support.nodes import again_and_again

from dpwa.clock import SystemClock
from dpwa.transport.calls import Calls, NoAnswer, Question
from dpwa.wire.members import WhoIs
from dpwa.wire.messages import GoAway, encode


@contextmanager
def one_that_sends_all_away():
    """The address of somebody who answers with `GoAway`, again and again."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        router.linger = 0
        visitors = set()

        def answer():
            if router.poll(0):
                visitors.add(router.recv_multipart()[0])
            for visitor in visitors:
                router.send_multipart([visitor, encode(GoAway(request=0))], zmq.NOBLOCK)

        with again_and_again(answer):
            yield f"tcp://127.0.0.1:{port}"


@pytest.fixture
def calls():
    with zmq.Context() as context:
        poller = zmq.Poller()
        calls = Calls(None, SystemClock())
        calls.open(context, poller)
        yield calls, poller
        calls.close()


def test_a_call_to_one_that_only_sends_away_fails_in_time(calls):
    calls, poller = calls
    problems, began = [], time.monotonic()
    with one_that_sends_all_away() as endpoint:
        question = Question(
            "", endpoint, lambda: (WhoIs(request=1), None), pytest.fail, problems.append, 1.0
        )
        assert calls.start(question)
        while not problems and time.monotonic() - began < 10.0:
            poller.poll(100)
            calls.go_on()
    assert problems == [NoAnswer("connected, but no answer in time", is_reached=True)]
    assert time.monotonic() - began < 5.0
