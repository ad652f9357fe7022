import time
from contextlib import contextmanager

import zmq
from support.nodes import eventually

from dpwa.clock import SystemClock
from dpwa.config.model import Limits
from dpwa.node.serving.admission import MAX_CHARGED_S, MAX_PAUSE_S, AdmissionControl
from dpwa.transport.authorizer import Authorizer
from dpwa.transport.sockets import ReceivedMessage
from dpwa.wire.messages import AskStatus, Goodbye


class TwoKeys(Authorizer):
    """Knows the key of w2; that of w3 was revoked."""

    def is_allowed(self, user_id):
        return user_id == "key of w2"

    def speaks_for(self, user_id, name):
        return (user_id, name) == ("key of w2", "w2")


def said(user_id):
    return ReceivedMessage([b"address", b"frame"], user_id)


def test_who_is_revoked_is_not_heard_and_counted():
    admission = AdmissionControl(TwoKeys(), Limits())
    assert admission.is_heard(said("key of w2"))
    assert not admission.is_heard(said("key of w3"))
    assert admission.report()["revoked"] == 1


def test_a_message_in_another_ones_name_is_forged_and_counted():
    admission = AdmissionControl(TwoKeys(), Limits())
    own, other = (Goodbye(request=0, name=name) for name in ("w2", "w1"))
    assert not admission.is_forged(said("key of w2"), own)
    assert not admission.is_forged(said("key of w2"), AskStatus(request=1))
    assert admission.is_forged(said("key of w2"), other)
    assert admission.report()["forged"] == 1


def test_without_security_nobody_is_forged_or_revoked():
    admission = AdmissionControl(Authorizer(), Limits())
    assert admission.is_heard(said(None))
    assert not admission.is_forged(said(None), Goodbye(request=0, name="w1"))
    assert admission.report()["forged"] == admission.report()["revoked"] == 0


@contextmanager
def flooded_router(messages):
    """A ROUTER at which so many messages wait."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind("inproc://router")
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect("inproc://router")
            for _ in range(messages):
                dealer.send(b"request")
            yield router


def use_a_core(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_requests_that_cost_more_than_their_share_are_followed_by_a_pause():
    admission = AdmissionControl(Authorizer(), Limits(serving_share=0.001, serving_burst_ms=1.5))
    with flooded_router(messages=3) as router:
        cheap = admission.take_message(router)
        admission.served(cheap)
        assert not admission.paused_s()
        dear = admission.take_message(router)
        use_a_core(MAX_CHARGED_S)  # 1.5 ms are a burst, the rest lasts for half a second
        admission.served(dear)
        assert admission.paused_s()
        assert admission.take_message(router) is None
        assert admission.report()["over_budget"] == 1


def test_what_too_many_frames_cost_is_charged_but_nobody_waits_long_for_it(monkeypatch):
    monkeypatch.setattr("dpwa.node.serving.admission.MAX_DROPPING_S", 60.0)
    admission = AdmissionControl(Authorizer(), Limits(serving_share=0.01, serving_burst_ms=0))
    with flooded_router(messages=0) as router, router.context.socket(zmq.DEALER) as dealer:
        dealer.connect("inproc://router")
        dealer.send_multipart([b""] * 50_000)
        dealer.send(b"request")
        assert admission.take_message(router).goes_on
        turns = 1
        while (
            admission._dropping_since is not None
        ):  # also in a pause: until its end nobody else can be read
            assert admission.take_message(router) is None
            turns += 1
        assert turns > 50_000 / 4096
        assert admission.paused_s()
        assert admission._resume_at - SystemClock().now() <= MAX_PAUSE_S
        received = eventually(lambda: admission.take_message(router), timeout_s=1.0)
        assert received.frames[1] == b"request"


def test_while_the_trainer_waits_for_its_peers_there_is_no_limit():
    admission = AdmissionControl(Authorizer(), Limits(serving_share=0.001, serving_burst_ms=0))
    with flooded_router(messages=3) as router:
        dear = admission.take_message(router)
        use_a_core(MAX_CHARGED_S)
        admission.served(dear)
        assert admission.paused_s()
        admission.begin_unthrottled()
        assert not admission.paused_s()
        another = admission.take_message(router)
        use_a_core(MAX_CHARGED_S)
        admission.served(another)
        admission.end_unthrottled()
        assert admission.paused_s()
        assert admission.report()["over_budget"] == 1


def test_work_that_a_request_sets_going_stops_nobody_for_long():
    admission = AdmissionControl(Authorizer(), Limits(serving_share=0.1, serving_burst_ms=0))
    with flooded_router(messages=2) as router:
        slow = admission.take_message(router)
        use_a_core(0.2)  # to import a module, or to encode a large snapshot
        admission.served(slow)
        assert admission.paused_s()
        eventually(lambda: admission.take_message(router) is not None, timeout_s=1.0)
