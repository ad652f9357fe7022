from dpwa.config.limits import Limits
from dpwa.node.intake import Intake
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
    intake = Intake(TwoKeys(), Limits(), lambda: 1)
    assert intake.is_heard(said("key of w2"))
    assert not intake.is_heard(said("key of w3"))
    assert intake.report()["revoked"] == 1


def test_a_message_in_another_ones_name_is_forged_and_counted():
    intake = Intake(TwoKeys(), Limits(), lambda: 1)
    own, other = (Goodbye(request=0, name=name) for name in ("w2", "w1"))
    assert not intake.is_forged(said("key of w2"), own)
    assert not intake.is_forged(said("key of w2"), AskStatus(request=1))
    assert intake.is_forged(said("key of w2"), other)
    assert intake.report()["forged"] == 1


def test_without_security_nobody_is_forged_or_revoked():
    intake = Intake(Gate(), Limits(), lambda: 1)
    assert intake.is_heard(said(None))
    assert not intake.is_forged(said(None), Goodbye(request=0, name="w1"))
    assert intake.report()["forged"] == intake.report()["revoked"] == 0
