"""Peers that do not behave: each speaks real ZeroMQ on a real port, from a thread of its own."""

from contextlib import contextmanager

import zmq

from dpwa.errors import ProtocolError
from dpwa.wire.messages import AskIdentity, Identity, decode, encode
from support.nodes import again_and_again


def identity_for(frames):
    """What to answer if a node asks who is there: the one that it expects; `None`: it does not."""
    try:
        message, _ = decode(frames)
    except ProtocolError:
        return None
    if not isinstance(message, AskIdentity):
        return None
    said = {
        "name": message.expects,
        "incarnation": b"imposter",
        "taken_by": "",
        "is_certain": False,
    }
    return encode(Identity(request=message.request, **said))


@contextmanager
def imposter(port, answer):
    """Listen on a port; send the frames of every item that `answer(frames)` yields."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.bind(f"tcp://127.0.0.1:{port}")

    def serve():
        if router.poll(20):
            identity, *frames = router.recv_multipart()
            told = identity_for(frames)
            for reply in [[told]] if told else answer(frames):
                router.send_multipart([identity, *reply])

    try:
        with again_and_again(serve):
            yield
    finally:
        router.close()
        context.term()
