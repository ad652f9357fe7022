"""Virtual TCP: what messages take, how links are shared, and how connections end."""

import itertools

import pytest
import zmq
from support.virtual_wire import MBPS, PlainLinks, VirtualHosts

from dpwa.sim.nodes.zeromq import MONITORED
from dpwa.sim.rules.wire_sizes import wire_bytes
from dpwa.transport.sockets import asking_socket, send_frames, serving_socket

NAMES = {int(event): event.name for event in zmq.Event}


class Wire(VirtualHosts):
    """A router on each host, and dealers from one to another."""

    def __init__(self, *names, links=None):
        super().__init__(*names, links=links)
        self.routers = {n: serving_socket(self.contexts[n], self.endpoint(n)) for n in names}

    def dealer(self, client, server):
        dealer = asking_socket(self.contexts[client], self.endpoint(server))
        dealer.monitor_of = dealer.get_monitor_socket(zmq.EVENT_ALL)
        dealer.connect(self.endpoint(server))
        return dealer

    def connected(self, client, server):
        dealer = self.dealer(client, server)
        self.network.run_for(1.0)
        assert events(dealer) == ["HANDSHAKE_SUCCEEDED"]
        return dealer

    def arrival(self, receiver, seconds=1000.0):
        """Let time pass until a message is there; return when that is."""
        self.until(lambda: receiver.is_readable, seconds)
        return self.now


def events(dealer):
    """What the monitor tells now."""
    told = []
    while dealer.monitor_of.is_readable:
        event, _ = MONITORED.unpack(dealer.monitor_of.recv_multipart()[0])
        told.append(NAMES[event])
    return told


def request(dealer, payload):
    return send_frames(dealer, [b"header", payload])


def taken(router):
    return [router.recv_multipart()[2] for _ in iter(lambda: router.is_readable, False)]


def test_a_message_takes_the_latency_and_the_time_for_its_bytes():
    wire = Wire("a", "b", links=PlainLinks(0.05, upload_mbps=100, download_mbps=40))
    dealer, began = wire.connected("a", "b"), wire.now
    request(dealer, bytes(1000))
    small_s = wire.arrival(wire.routers["b"]) - began
    assert small_s == pytest.approx(0.05, abs=0.0015)
    taken(wire.routers["b"])
    began = wire.now
    request(dealer, bytes(5_000_000))
    large_s = wire.arrival(wire.routers["b"]) - began
    assert large_s == pytest.approx(0.05 + wire_bytes([6, 5_000_000]) / (40 * MBPS), abs=0.0015)
    assert large_s == pytest.approx(1.05 * 1.047, rel=0.01)


def test_a_link_is_shared_fairly_by_those_that_are_served():
    wire = Wire("a", "b", "c", "d", links=PlainLinks(0.0))
    dealers = [wire.connected(name, "a") for name in "bcd"]
    for dealer in dealers:
        request(dealer, b"please")
    wire.network.run_for(0.1)
    router, began = wire.routers["a"], wire.now
    addresses = [router.recv_multipart()[0] for _ in dealers]
    sizes = 1_000_000, 1_000_000, 2_000_000
    for address, size in zip(addresses, sizes, strict=True):
        send_frames(router, [address, bytes(size)])
    seconds = [wire.arrival(dealer) - began for dealer in dealers]
    one_s = wire_bytes([1_000_000]) / (100 * MBPS)
    assert seconds == pytest.approx([3 * one_s, 3 * one_s, 4 * one_s], abs=0.003)


def test_a_transfer_has_no_more_than_its_share_at_either_end():
    wire = Wire("a", "b", "c", links=PlainLinks(0.0, upload_mbps=100, download_mbps=100))
    one, two, other = (wire.connected(*pair) for pair in (("a", "c"), ("b", "c"), ("a", "b")))
    began = wire.now
    for dealer in (one, two, other):
        request(dealer, bytes(1_000_000))
    # a sends to c and b, b sends to c: each of a's and of c's transfers has half of a link.
    wire.until(lambda: wire.tcp.traffic["c"].received > 2_000_000)
    assert wire.now - began == pytest.approx(2 * 1_047_000 / (100 * MBPS), rel=0.02)


def test_who_stands_still_takes_nothing_from_the_others():
    wire = Wire("a", "b", "c", links=PlainLinks(0.0, upload_mbps=8, download_mbps=8))
    held, other = wire.connected("a", "b"), wire.connected("a", "c")
    one_s = wire_bytes([6, 2_000_000]) / (8 * MBPS)
    began = wire.now
    request(held, bytes(2_000_000))
    wire.network.run_for(0.5)
    wire.network.partition({"b"}, {"a", "c"})
    request(other, bytes(2_000_000))
    assert wire.arrival(wire.routers["c"]) - began == pytest.approx(0.5 + one_s, abs=0.01)
    taken(wire.routers["c"])
    wire.network.heal()
    began = wire.now
    request(other, bytes(1_000_000))
    assert wire.arrival(wire.routers["c"]) - began == pytest.approx(one_s, abs=0.01)  # by halves
    assert wire.arrival(wire.routers["b"]) - began == pytest.approx(1.5 * one_s - 0.5, abs=0.01)


def test_those_of_a_site_share_its_link_to_others():
    links = PlainLinks(0.0, upload_mbps=1000, download_mbps=1000)
    links.shared = "site", 10 * MBPS
    wire = Wire("a", "b", "c", "d", links=links)
    one, two = wire.connected("a", "c"), wire.connected("b", "d")
    began = wire.now
    request(one, bytes(500_000))
    request(two, bytes(500_000))
    seconds = wire.arrival(wire.routers["c"]) - began
    assert seconds == pytest.approx(2 * 0.5e6 * 1.047 / (10 * MBPS), rel=0.01)


def test_messages_of_a_connection_stay_in_order_whatever_each_takes():
    wire = Wire("a", "b", links=PlainLinks(0.01, jitter_s=0.5))
    dealer = wire.dealer("a", "b")
    wire.network.run_for(5.0)
    for number in range(100):
        request(dealer, b"%d" % number + bytes(20_000 * (number % 3 == 0)))
    wire.network.run_for(30.0)
    assert [int(data.rstrip(b"\0")) for data in taken(wire.routers["b"])] == list(range(100))


def test_who_is_refused_tries_again_less_and_less_often():
    wire = Wire("a", "b", links=PlainLinks(0.001))
    wire.routers["b"].close()
    dealer, told = wire.dealer("a", "b"), []
    for _ in range(6000):
        wire.network.run_for(0.001)
        told += [(wire.now, event) for event in events(dealer)]
    closed = [at for at, event in told if event == "CLOSED"]
    assert [event for _, event in told] == ["CLOSED", "CONNECT_RETRIED"] * len(closed)
    pauses = [after - before for before, after in itertools.pairwise(closed)]
    assert pauses[:6] == pytest.approx([0.052, 0.102, 0.202, 0.402, 0.802, 1.002], abs=0.002)
    assert pauses[6] == pytest.approx(1.002, abs=0.002)


def test_who_cannot_be_reached_does_not_answer_at_all():
    wire = Wire("a", "b")
    wire.links.hidden.add("b")
    dealer = wire.dealer("a", "b")
    wire.network.run_for(2.9)
    assert events(dealer) == []
    wire.network.run_for(0.2)
    assert events(dealer) == ["CLOSED", "CONNECT_RETRIED"]


def test_a_process_that_is_killed_closes_its_connections():
    wire = Wire("a", "b", links=PlainLinks(0.2, upload_mbps=8))
    dealer, back = wire.connected("a", "b"), wire.connected("b", "a")
    request(dealer, b"last words")
    request(dealer, bytes(2_000_000))  # this takes two seconds
    request(back, b"too late")
    wire.network.run_for(0.1)
    wire.contexts["a"].kill()
    wire.network.run_for(0.09)
    assert events(back) == []
    wire.network.run_for(0.02)
    assert taken(wire.routers["b"]) == [b"last words"]
    wire.network.run_for(0.1)
    assert events(back)[:1] == ["DISCONNECTED"]
    assert not request(back, b"nobody")


def test_a_cut_is_noticed_by_its_silence_and_a_short_one_loses_nothing():
    wire = Wire("a", "b")
    dealer = wire.connected("a", "b")
    wire.network.partition({"a"}, {"b"})
    request(dealer, b"kept")
    request(dealer, bytes(3_000_000))
    wire.network.run_for(4.9)
    assert not taken(wire.routers["b"])
    wire.network.heal()
    wire.network.run_for(1.0)
    assert [len(data) for data in taken(wire.routers["b"])] == [4, 3_000_000]
    wire.network.partition({"a"}, {"b"})
    began = wire.now
    assert wire.until(lambda: events(dealer)) == ["DISCONNECTED", "CONNECT_RETRIED"]
    assert 5.0 <= wire.now - began <= 6.0
    wire.network.heal()
    wire.until(lambda: "HANDSHAKE_SUCCEEDED" in events(dealer))
    request(dealer, b"again")
    wire.network.run_for(0.1)
    assert taken(wire.routers["b"]) == [b"again"]


def test_bytes_are_counted_with_their_headers_at_both_ends():
    wire = Wire("a", "b")
    dealer = wire.connected("a", "b")
    before = wire.tcp.traffic["a"].sent
    request(dealer, bytes(100_000))
    wire.network.run_for(1.0)
    sent = wire.tcp.traffic["a"].sent - before
    assert sent == wire_bytes([6, 100_000]) == 100_000 + 9 + 6 + 2 + 66 * 70
    assert wire.tcp.traffic["b"].received - sent == before
