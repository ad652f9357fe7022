import contextlib
import math
import socket
import threading
import time
from functools import partial

import pytest
import zmq
from support.interrupts import Moments
from support.nodes import eventually
from support.ports import free_ports

from dpwa.errors import AddressError
from dpwa.node.node_thread import NodeThread
from dpwa.runtime import SYSTEM
from dpwa.transport.link import LinkState, PeerLink
from dpwa.transport.sockets import drop_frames, receive, receive_from, send_frames, serving_socket
from dpwa.wire import limits
from dpwa.wire.messages import AskStatus, encode


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


@pytest.fixture
def endpoint():
    return f"tcp://127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture
def link(context, endpoint):
    link = PeerLink(context, "peer", endpoint)
    yield link
    link.close()


def state_of(link):
    link.update()
    return link.state


def when_up(link):
    eventually(lambda: state_of(link) is LinkState.UP)


def serving_again(context, endpoint):
    """Listen on a port that another socket of this context is just leaving."""

    def attempt():
        with contextlib.suppress(AddressError):
            return serving_socket(context, endpoint)

    return eventually(attempt)


def ask(link):
    return link.send_request(AskStatus(request=1))


def test_a_quick_restart_between_two_looks_is_still_noticed(context, endpoint, link):
    with serving_socket(context, endpoint):
        when_up(link)
    with serving_again(context, endpoint) as router:
        # What is sent before the loss is noticed is lost: ask until something arrives.
        eventually(lambda: (ask(link), receive(router))[1])
        assert LinkState.DOWN in link.update()


def test_a_peer_that_accepts_but_never_speaks_is_not_up(context):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = PeerLink(context, "peer", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        connection, _ = silent.accept()
        with connection:
            assert state_of(link) is LinkState.CONNECTING
        link.close()


def test_a_frame_over_the_limit_ends_the_connection_and_is_never_delivered(context, endpoint, link):
    with serving_socket(context, endpoint) as router:
        when_up(link)
        send_frames(link.socket, [bytes(limits.MAX_PUSH_BYTES * 2)])
        eventually(lambda: LinkState.DOWN in link.update())
        assert receive(router) is None


@pytest.mark.parametrize("more", [1, 500, 4096, 10_000])
def test_of_a_message_with_too_many_frames_few_are_kept_and_some_dropped_at_once(
    context, endpoint, link, more
):
    with serving_socket(context, endpoint) as router:
        when_up(link)
        send_frames(link.socket, [b"x"] * (limits.MAX_FRAMES + 1 + more))
        ask(link)
        received = eventually(lambda: receive_from(router, is_named=False))
        assert (len(received.frames), received.goes_on) == (limits.MAX_FRAMES + 2, True)
        turns = 1
        while drop_frames(router):
            turns += 1
        assert turns == math.ceil(more / 4096)
        assert bytes(eventually(lambda: receive(router))[1]) == encode(AskStatus(request=1))


def test_a_message_of_one_frame_too_many_is_whole(context, endpoint, link):
    with serving_socket(context, endpoint) as router:
        when_up(link)
        send_frames(link.socket, [b"x"] * (limits.MAX_FRAMES + 1))
        assert not eventually(lambda: receive_from(router, is_named=False)).goes_on


def test_a_link_over_which_too_many_frames_come_is_down_and_reads_no_more(context, endpoint, link):
    with serving_socket(context, endpoint) as router:
        when_up(link)
        ask(link)
        identity = bytes(eventually(lambda: receive(router))[0])
        send_frames(router, [identity, *[b"x"] * 10_000])
        send_frames(router, [identity, b"header"])
        assert len(eventually(link.receive)) > limits.MAX_FRAMES
        time.sleep(0.1)
        assert link.receive() is None
        assert link.update() == [LinkState.DOWN]
        assert link.is_useless
        other = link.renewed(context)
        when_up(other)
        assert link.update() == []
        other.close()


def test_an_address_of_another_machine_says_what_to_set(context):
    with pytest.raises(AddressError, match=r"not an address of this machine.*`bind`"):
        serving_socket(context, "tcp://192.0.2.1:45000")


def test_ipv6_works(context):
    endpoint = f"tcp://[::1]:{free_ports(1)[0]}"
    with serving_socket(context, endpoint):
        link = PeerLink(context, "peer", endpoint)
        when_up(link)
        link.close()


def test_an_interrupt_while_something_is_put_costs_nobody_else_a_wake_up():
    moments, closing, made_calls = Moments(), contextlib.ExitStack(), []

    def made():
        thread, poller = NodeThread(SYSTEM, "called"), zmq.Poller()
        closing.callback(thread.discard)
        poller.register(thread.waker.receiver, zmq.POLLIN)
        return thread, poller

    with closing:
        thread, poller = made()
        moments.watch(lambda: thread.call_soon(made_calls.append, 0))
        for moment in moments.seen:
            thread, poller = made()
            call = partial(thread.call_soon, made_calls.append)
            assert moments.interrupt(moment, partial(call, 0))
            for number in (1, 2):
                call(number)
                assert poller.poll(30_000)
                thread.make_calls()
                assert made_calls[-1] == number
                assert not poller.poll(0)


def test_a_call_that_fails_costs_the_others_nothing():
    thread, poller, made_calls = NodeThread(SYSTEM, "called"), zmq.Poller(), []
    poller.register(thread.waker.receiver, zmq.POLLIN)
    thread.call_soon(divmod, 1, 0)
    thread.call_soon(made_calls.append, 1)
    with pytest.raises(ZeroDivisionError):
        thread.make_calls()
    assert poller.poll(0)
    thread.make_calls()
    assert made_calls == [1]
    thread.discard()


def test_a_thread_is_woken_for_every_call():
    thread, poller, taken = NodeThread(SYSTEM, "called"), zmq.Poller(), []
    poller.register(thread.waker.receiver, zmq.POLLIN)
    senders = [
        threading.Thread(target=lambda: [thread.call_soon(taken.append, i) for i in range(2_000)])
        for _ in range(4)
    ]
    for sender in senders:
        sender.start()
    while len(taken) < 8_000:
        assert poller.poll(30_000)
        thread.make_calls()
    for sender in senders:
        sender.join()
    assert sorted(taken) == sorted(list(range(2_000)) * 4)
    thread.discard()
    thread.call_soon(taken.append, 1)  # after the end: dropped
