"""A proxy does to a stream of bytes what it was told to, and nothing else."""

import socket
import struct
import threading
import time

import pytest
from support.ports import free_ports
from support.times import at_most

from dpwa.errors import ClosedError, UserError
from dpwa.testing import TcpProxy

LONGEST_S = 60.0


@pytest.fixture
def echo():
    """The port of a server that sends everything back, and ends when the other side does."""
    connections = []

    def serve(connection):
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                pass

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(connection,))
            connections.append((thread, connection))
            thread.start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    accepting.join()
    for thread, _ in connections:
        thread.join(LONGEST_S)
        assert not thread.is_alive()


def proxied(echo, **settings):
    return TcpProxy("127.0.0.1", echo, **settings)


def connected(proxy):
    connection = socket.create_connection((proxy.host, proxy.port), LONGEST_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exactly(connection, count):
    data = b""
    while len(data) < count:
        data += connection.recv(count - len(data)) or pytest.fail("the connection has ended")
    return data


def round_trip_s(connection, data=b"ping"):
    began = time.monotonic()
    connection.sendall(data)
    assert exactly(connection, len(data)) == data
    return time.monotonic() - began


def everything(connection, data):
    """Send, end, and return all that comes back."""
    sender = threading.Thread(target=lambda: (connection.sendall(data), end(connection)))
    sender.start()
    found = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    sender.join()
    return found


def end(connection):
    connection.shutdown(socket.SHUT_WR)


def test_what_goes_in_comes_out_whole_when_either_side_ends(echo):
    data = bytes(range(256)) * 40_000  # 10 MB: far more than the kernel holds
    with proxied(echo) as proxy, connected(proxy) as connection:
        assert everything(connection, data) == data
        assert proxy.counts.bytes_to_target == proxy.counts.bytes_from_target == len(data)
        assert proxy.counts.connections == 1


def test_a_round_trip_takes_twice_the_delay_and_hardly_more(echo):
    with proxied(echo, delay_s=0.05) as proxy, connected(proxy) as connection:
        times_s = [round_trip_s(connection) for _ in range(5)]
    assert min(times_s) >= 0.1
    assert min(times_s) < at_most(0.15)


def test_delayed_chunks_travel_side_by_side(echo):
    """Ten chunks take one delay each way, not ten."""
    with proxied(echo, delay_s=0.1) as proxy, connected(proxy) as connection:
        began = time.monotonic()
        for number in range(10):
            connection.sendall(bytes([number]) * 100)
            time.sleep(0.005)
        data = exactly(connection, 1000)
        assert 0.2 <= time.monotonic() - began < at_most(0.6)
    assert data == b"".join(bytes([number]) * 100 for number in range(10))


def test_jitter_keeps_the_order_and_is_bounded(echo):
    proxy = proxied(echo, delay_s=0.01, jitter_s=0.05, seed=3)
    with proxy, connected(proxy) as connection:
        times_s = [round_trip_s(connection, bytes([n])) for n in range(20)]
        assert min(times_s) >= 0.02
        assert max(times_s) - min(times_s) > 0.02  # of sums of two draws from 0.05
        data = bytes(range(256)) * 1000
        assert everything(connection, data) == data


@pytest.mark.parametrize("bytes_per_s", [100_000, 20_000_000])
def test_the_bandwidth_is_that_asked_for(echo, bytes_per_s):
    data = bytes(bytes_per_s // 2)
    proxy = proxied(echo, bandwidth_bytes_per_s=bytes_per_s)
    with proxy:
        times_s = [time_of_everything_s(proxy, data) for _ in range(2)]
    assert 0.4 < min(times_s) < at_most(0.6)


def time_of_everything_s(proxy, data):
    with connected(proxy) as connection:
        began = time.monotonic()
        assert everything(connection, data) == data
        return time.monotonic() - began


def test_connections_share_the_bandwidth(echo):
    proxy = proxied(echo, bandwidth_bytes_per_s=200_000)
    with proxy, connected(proxy) as one, connected(proxy) as two:
        began = time.monotonic()
        one.sendall(bytes(50_000))
        two.sendall(bytes(50_000))
        exactly(one, 50_000)
        exactly(two, 50_000)
        assert 0.4 <= time.monotonic() - began < at_most(0.9)  # 0.25 if each had its own


def test_settings_may_be_changed_while_bytes_flow(echo):
    with proxied(echo) as proxy, connected(proxy) as connection:
        assert round_trip_s(connection) < 0.1
        proxy.delay_s = 0.1
        assert round_trip_s(connection) >= 0.2
        proxy.delay_s = 0.0
        proxy.bandwidth_bytes_per_s = 20_000
        assert round_trip_s(connection, bytes(4000)) >= 0.15
        proxy.bandwidth_bytes_per_s = None
        assert round_trip_s(connection, bytes(4000)) < 0.1


def test_a_cut_resets_connections_and_refuses_new_ones_until_healed(echo):
    with proxied(echo) as proxy:
        with connected(proxy) as connection:
            round_trip_s(connection)
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
            for _ in range(3):
                with pytest.raises(ConnectionRefusedError):
                    connected(proxy)
            assert proxy.counts.open_connections == 0
        proxy.heal()
        with connected(proxy) as connection:
            round_trip_s(connection)
            assert proxy.counts.open_connections == 1
            assert proxy.counts.connections == 2


def test_a_stall_holds_everything_and_loses_nothing(echo):
    with proxied(echo) as proxy, connected(proxy) as before:
        round_trip_s(before)
        proxy.stall()
        with connected(proxy) as during:
            for connection in (before, during):
                connection.sendall(b"held")
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
            proxy.heal()
            for connection in (before, during):
                connection.settimeout(LONGEST_S)
                assert exactly(connection, 4) == b"held"


def test_a_stalled_link_can_be_cut_and_a_cut_one_stalled(echo):
    with proxied(echo) as proxy, connected(proxy) as connection:
        round_trip_s(connection)
        proxy.stall()
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        proxy.stall()
        with connected(proxy) as held:
            held.sendall(b"held")
            proxy.heal()
            assert exactly(held, 4) == b"held"


def test_a_reset_of_one_side_reaches_the_other():
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, TcpProxy("127.0.0.1", listener.getsockname()[1]) as proxy:
        client = connected(proxy)
        served, _ = listener.accept()
        with served:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            served.settimeout(LONGEST_S)
            with pytest.raises(ConnectionResetError):
                served.recv(1)


def test_who_connects_while_the_target_is_away_is_reset():
    proxy = TcpProxy("127.0.0.1", free_ports(1)[0])
    with proxy, pytest.raises(ConnectionResetError), connected(proxy) as connection:
        connection.recv(1)


def test_a_name_is_looked_up_without_leaving_threads(echo):
    with TcpProxy("localhost", echo) as proxy, connected(proxy) as connection:
        round_trip_s(connection)


def test_a_closed_proxy_refuses_everything_but_to_be_closed_again(echo):
    proxy = proxied(echo)
    proxy.close()
    proxy.close()
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    with pytest.raises(ClosedError):
        proxy.cut()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delay_s": -1.0}, "delay_s is -1.0, but must be at least 0"),
        ({"jitter_s": -0.1}, "jitter_s is -0.1"),
        ({"bandwidth_bytes_per_s": 0}, "must be above 0, or None"),
    ],
)
def test_settings_out_of_range_are_the_users_mistake(settings, message):
    with pytest.raises(UserError, match=message):
        TcpProxy("127.0.0.1", 1, **settings)
