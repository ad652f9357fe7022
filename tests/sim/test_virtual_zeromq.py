"""The virtual ZeroMQ does what the real one does, as far as nodes rely on it: one test for both."""

import random
import time
from contextlib import ExitStack

import numpy as np
import pytest
import zmq
from support.ports import free_ports
from support.virtual_wire import VirtualHosts

from dpwa.errors import AddressError
from dpwa.node.node_thread import NodeThread
from dpwa.runtime import SYSTEM
from dpwa.sim.nodes.runtime import VirtualRuntime
from dpwa.transport.link import LinkState, PeerLink
from dpwa.transport.sockets import receive_from, send_frames, serving_socket
from dpwa.wire.messages import AskStatus, Goodbye, decode


class Virtual:
    """A router's host and a dealer's, in virtual time."""

    def __init__(self, stack):
        hosts = VirtualHosts("here", "there")
        self.here, self.there = hosts.contexts["here"], hosts.contexts["there"]
        self.endpoint, self.until = hosts.endpoint("there"), hosts.until
        self.runtime = VirtualRuntime(hosts.tcp, "here", random.Random(1))


class Real:
    """The same on this machine."""

    runtime = SYSTEM

    def __init__(self, stack):
        self.here = self.there = stack.enter_context(zmq.Context())
        self.endpoint = f"tcp://127.0.0.1:{free_ports(1)[0]}"

    def until(self, condition):
        end = time.monotonic() + 10.0
        while not (found := condition()):
            assert time.monotonic() < end, "it has not come to that"
            time.sleep(0.005)
        return found


@pytest.fixture(params=[Virtual, Real])
def world(request):
    with ExitStack() as stack:
        yield request.param(stack)


@pytest.fixture
def link(world):
    made = PeerLink(world.here, "there", world.endpoint)
    yield made
    if not made.socket.closed:
        made.close()


def entered(link, state):
    """Tell whether a link enters a state with what its monitor tells now."""
    return state in link.update()


def listening(world):
    router = serving_socket(world.there, world.endpoint)
    router.linger = 0
    return router


def asked(router):
    """Take a request, if there is one: whom to answer, and what it is."""
    received = receive_from(router, is_named=False)
    return received and (bytes(received.frames[0]), decode(received.frames[1:])[0], received)


def test_a_link_is_down_where_nobody_listens_and_up_once_somebody_does(world, link):
    world.until(lambda: entered(link, LinkState.DOWN))
    assert link.problem == f"nothing answers at {world.endpoint}"
    assert not link.send_request(Goodbye(request=1, name="here"))
    with listening(world):
        world.until(lambda: entered(link, LinkState.UP))
        assert link.problem == ""
    world.until(lambda: entered(link, LinkState.DOWN))
    with listening(world):
        world.until(lambda: entered(link, LinkState.UP))


def test_messages_come_in_order_and_are_answered_to_whoever_asked(world, link):
    with listening(world) as router, ExitStack() as stack:
        other = PeerLink(world.here, "there", world.endpoint)
        stack.callback(other.close)
        for each in (link, other):
            world.until(lambda each=each: entered(each, LinkState.UP))
        for number in range(50):
            assert link.send_request(AskStatus(request=number))
        assert other.send_request(AskStatus(request=99))
        found = []
        while len(found) < 51:
            found.append(world.until(lambda: asked(router)))
        numbers = [message.request for _, message, _ in found]
        assert [n for n in numbers if n != 99] == list(range(50))
        connections = {received.descriptor for _, _, received in found}
        assert len(connections) == 2
        assert min(connections) >= 0
        to = next(sender for sender, message, _ in found if message.request == 99)
        assert send_frames(router, [to, b"for you"]) is not None
        assert bytes(world.until(other.receive)[0]) == b"for you"
        assert link.receive() is None


def test_a_payload_that_is_lent_is_free_once_it_has_left(world, link):
    payload = np.arange(300_000, dtype=np.uint8)
    with listening(world) as router:
        world.until(lambda: entered(link, LinkState.UP))
        link.send_request(AskStatus(request=1))
        to = world.until(lambda: asked(router))[0]
        receipt = send_frames(router, [to, b"header", memoryview(payload)], is_lent=True)
        frames = world.until(link.receive)
        assert [bytes(frame) for frame in frames] == [b"header", payload.tobytes()]
        world.until(lambda: receipt.done)


def test_who_takes_nothing_is_sent_no_more_than_its_queue_holds(world, link):
    with listening(world) as router:
        world.until(lambda: entered(link, LinkState.UP))
        link.send_request(AskStatus(request=1))
        to = world.until(lambda: asked(router))[0]
        big, taken = bytes(1_000_000), 0
        while taken < 1000 and send_frames(router, [to, big]) is not None:
            taken += 1
        assert 32 <= taken < 1000  # its queue, and what lies on the way


def test_who_is_unknown_or_gone_is_sent_nothing(world, link):
    with listening(world) as router:
        world.until(lambda: entered(link, LinkState.UP))
        link.send_request(AskStatus(request=1))
        to = world.until(lambda: asked(router))[0]
        assert send_frames(router, [b"nobody", b"lost"]) is None
        assert send_frames(router, [to, b"taken"]) is not None
        link.close()
        world.until(lambda: send_frames(router, [to, b"lost"]) is None)


def test_only_one_listens_at_an_endpoint(world):
    with listening(world), pytest.raises(AddressError, match="the port is already in use"):
        listening(world)


def test_a_thread_is_woken_once_for_all_calls(world):
    thread, poller, made_calls = NodeThread(world.runtime, "called"), world.runtime.poller(), []
    poller.register(thread.waker.receiver, zmq.POLLIN)
    try:
        for number in range(5):
            thread.call_soon(made_calls.append, number)
        world.until(lambda: poller.poll(0))
        thread.make_calls()
        assert made_calls == [0, 1, 2, 3, 4]
        assert not poller.poll(0)
    finally:
        thread.discard()
