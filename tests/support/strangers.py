"""Whoever asks a node something without being one."""

import zmq

from dpwa.transport.link import LinkState, PeerLink
from dpwa.wire.members import JoinRequest
from dpwa.wire.messages import decode
from support.nodes import eventually
from support.times import HANGS_AFTER_S


def question(endpoint, message, payload, *more, timeout_s=HANGS_AFTER_S):
    return question_and_payload(endpoint, message, payload, *more, timeout_s=timeout_s)[0]


def question_and_payload(endpoint, message, payload, *more, timeout_s=HANGS_AFTER_S):
    with zmq.Context() as context:
        link = PeerLink(context, "", endpoint)
        try:
            eventually(lambda: link.update() or link.state is LinkState.UP)
            assert link.send_request(message, payload)
            assert all(link.send_request(each, None) for each in more)
            frames = eventually(link.receive, timeout_s)
            return decode(frames)
        finally:
            link.close()


def request_of(name, endpoint, incarnation=1):
    """What asks to let a node in that is called at this endpoint."""
    return JoinRequest(
        request=1,
        name=name,
        incarnation=incarnation,
        endpoint=endpoint,
        algorithm="gossip",
        expects="",
    )
