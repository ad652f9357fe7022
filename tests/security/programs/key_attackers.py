"""Attacks on a node with keys, by strangers who know its public key, as everybody may.

Usage: key_attackers.py ATTACK PORT SECONDS SEED PUBLIC_KEY     (ATTACK: see the functions below)

Prints what attackers.py prints.
"""

import select
import socket
import time

import zmq
from attackers import ATTACKS, HELD_CONNECTIONS, main, still_open

CURVE_GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01CURVE".ljust(54, b"\0")
HELLO_BYTES = len(CURVE_GREETING) + 2 + 200
WELCOME_BYTES = len(CURVE_GREETING) + 2 + 168
AT_ONCE = 32
KEYS = 200  # of strangers; more than are named in the log


def hello_for(public_key):
    """The first bytes of a client that means this key: its greeting and a genuine HELLO."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
    ):
        dealer.linger = 0
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = public_key
        dealer.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        connection, _ = listener.accept()
        with connection:
            connection.sendall(CURVE_GREETING)
            hello = b""
            while len(hello) < HELLO_BYTES:
                hello += connection.recv(4096)
    return hello


def hello_storm(attack):
    """One genuine HELLO over and over: it costs the node arithmetic, and the stranger none."""
    _storm(attack, hello_for(attack.fingerprint), WELCOME_BYTES)


def bad_hello_storm(attack):
    """A HELLO that is not for this node: found out by public-key arithmetic only."""
    hello = bytearray(hello_for(attack.fingerprint))
    hello[-1] ^= 1
    _storm(attack, bytes(hello), 1 << 20)


def _storm(attack, data, enough_bytes):
    """Connect and send as fast as is taken, over some connections at once."""
    got = {}
    poll = select.epoll()
    while attack.goes_on:
        while len(got) < AT_ONCE:
            connection = socket.socket()
            connection.setblocking(False)
            attack.connections += 1
            connection.connect_ex(("127.0.0.1", attack.port))
            got[connection.fileno()] = [connection, -1]
            poll.register(connection, select.EPOLLOUT)
        for number, _ in poll.poll(0.05):
            connection, nbytes = got[number]
            try:
                if nbytes < 0:
                    attack.send(connection, data)
                    got[number][1] = 0
                    poll.modify(number, select.EPOLLIN)
                    continue
                found = len(connection.recv(4096))
                got[number][1] += found
                if found and got[number][1] < enough_bytes:
                    continue
                attack.sent_blobs += found > 0
            except OSError:
                attack.refused += 1
            del got[number]
            connection.close()
    for connection, _ in got.values():
        connection.close()


def wrong_keys(attack):
    """Whole handshakes, of which the node learns at the end that it does not know the key."""
    pairs = [zmq.curve_keypair() for _ in range(KEYS)]
    dealers = []
    with zmq.Context(io_threads=1) as context:
        context.max_sockets = 4096
        while attack.goes_on:
            dealer = context.socket(zmq.DEALER)
            dealer.linger = 0
            dealer.curve_publickey, dealer.curve_secretkey = attack.rng.choice(pairs)
            dealer.curve_serverkey = attack.fingerprint
            dealer.reconnect_ivl = -1
            dealer.connect(f"tcp://127.0.0.1:{attack.port}")
            attack.connections += 1
            dealers.append(dealer)
            if len(dealers) > AT_ONCE:
                time.sleep(0.0002)
                dealers.pop(0).close(0)
        for dealer in dealers:
            dealer.close(0)


def half_handshakes(attack):
    """Hundreds of connections that say HELLO, and then nothing; kept up all the time."""
    hello = hello_for(attack.fingerprint)
    held = []
    while attack.goes_on:
        while len(held) < HELD_CONNECTIONS and attack.goes_on:
            try:
                connection = attack.connect()
                attack.send(connection, attack.rng.choice([hello, hello[:100], CURVE_GREETING]))
                held.append(connection)
            except OSError:
                attack.refused += 1
                break
        held = still_open(held)
        time.sleep(0.05)


for attack in (hello_storm, bad_hello_storm, wrong_keys, half_handshakes):
    ATTACKS[attack.__name__] = attack

if __name__ == "__main__":
    main()
