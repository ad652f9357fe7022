import time
from contextlib import contextmanager

import zmq
from support.nodes import eventually

from dpwa.config.limits import Limits
from dpwa.node.intake import MOST_CHARGED_S, Intake
from dpwa.transport.gate import Gate
from dpwa.transport.sockets import Received
from dpwa.wire.messages import AskStatus, Goodbye


class TwoKeys(Gate):
    """Knows the key of w2; that of w3 was revoked."""

    def is_allowed(self, user_id):
        return user_id == "key of w2"

    def speaks_for(self, user_id, name):
        return (user_id, name) == ("key of w2", "w2")


def said(user_id):
    return Received([b"address", b"frame"], user_id)


def test_who_is_revoked_is_not_heard_and_counted():
    intake = Intake(TwoKeys(), Limits())
    assert intake.is_heard(said("key of w2"))
    assert not intake.is_heard(said("key of w3"))
    assert intake.report()["revoked"] == 1


def test_a_message_in_another_ones_name_is_forged_and_counted():
    intake = Intake(TwoKeys(), Limits())
    own, other = (Goodbye(request=0, name=name) for name in ("w2", "w1"))
    assert not intake.is_forged(said("key of w2"), own)
    assert not intake.is_forged(said("key of w2"), AskStatus(request=1))
    assert intake.is_forged(said("key of w2"), other)
    assert intake.report()["forged"] == 1


def test_without_security_nobody_is_forged_or_revoked():
    intake = Intake(Gate(), Limits())
    assert intake.is_heard(said(None))
    assert not intake.is_forged(said(None), Goodbye(request=0, name="w1"))
    assert intake.report()["forged"] == intake.report()["revoked"] == 0


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
    intake = Intake(Gate(), Limits(serving_share=0.001, serving_burst_ms=1.5))
    with flooded_router(messages=3) as router:
        cheap = intake.take(router)
        intake.served(cheap)
        assert not intake.is_paused
        dear = intake.take(router)
        use_a_core(MOST_CHARGED_S)  # 1.5 ms are a burst, the rest lasts for half a second
        intake.served(dear)
        assert intake.is_paused
        assert intake.take(router) is None
        assert intake.report()["over_budget"] == 1


def test_while_the_trainer_waits_for_its_peers_there_is_no_limit():
    intake = Intake(Gate(), Limits(serving_share=0.001, serving_burst_ms=0))
    with flooded_router(messages=3) as router:
        dear = intake.take(router)
        use_a_core(MOST_CHARGED_S)
        intake.served(dear)
        assert intake.is_paused
        intake.begin_lull()
        assert not intake.is_paused
        another = intake.take(router)
        use_a_core(MOST_CHARGED_S)
        intake.served(another)
        intake.end_lull()
        assert intake.is_paused
        assert intake.report()["over_budget"] == 1


def test_work_that_a_request_sets_going_stops_nobody_for_long():
    intake = Intake(Gate(), Limits(serving_share=0.1, serving_burst_ms=0))
    with flooded_router(messages=2) as router:
        slow = intake.take(router)
        use_a_core(0.2)  # to import a module, or to encode a large snapshot
        intake.served(slow)
        assert intake.is_paused
        eventually(lambda: intake.take(router) is not None, timeout_s=1.0)
