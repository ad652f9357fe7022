"""Attacks on a node, as a stranger or as a greedy peer would make them; stdlib sockets only.

Usage: attackers.py ATTACK PORT SECONDS SEED FINGERPRINT     (ATTACK: see the functions below)

Prints one JSON line at the end: how much was sent, over how many connections, in how much CPU time.
"""

import contextlib
import json
import random
import select
import socket
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from support.requests import fetch_of

from dpwa.wire.messages import AskStatus, Cancel, NewsMessage, encode
from dpwa.wire.tables import TableAddition
from dpwa.wire.transaction_messages import Prepared, Propose, TransactionDecision

GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01NULL".ljust(54, b"\0")
MORE, LONG, COMMAND = 1, 2, 4
TEN_GB = 10 * 1024**3
BLOB_BYTES = 256 * 1024
HELD_CONNECTIONS = 500
MANY = 64


class Attack:
    """The time that is left, randomness, and what is counted."""

    def __init__(self, port, seconds, seed, fingerprint):
        self.port, self.end = port, time.monotonic() + seconds
        self.rng = random.Random(seed)
        self.fingerprint = fingerprint
        self.connections = self.sent_bytes = self.sent_blobs = self.refused = 0

    @property
    def goes_on(self):
        return time.monotonic() < self.end

    def connect(self):
        self.connections += 1
        return socket.create_connection(("127.0.0.1", self.port), timeout=2)

    def peer(self):
        """A connection that has shaken hands, as a DEALER."""
        connection = self.connect()
        connection.sendall(GREETING + ready())
        answer = b""
        while b"Identity" not in answer and b"Socket-Type" not in answer:
            got = connection.recv(4096)  # who speaks before the other side is ready is hung up on
            if not got:
                raise ConnectionError("no handshake")
            answer += got
        return connection

    def send(self, connection, data):
        connection.sendall(data)
        self.sent_bytes += len(data)


def frame(body, flags=0):
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return struct.pack(">BQ", flags | LONG, len(body)) + body


def ready(name=b"DEALER"):
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(name)) + name
    return frame(body, COMMAND)


def message(*frames):
    *first, last = frames
    return b"".join(frame(each, MORE) for each in first) + frame(last)


def repeated(data):
    return data * max(1, BLOB_BYTES // len(data))


# Strangers


def garbage(attack):
    """Connections of random bytes, HTTP, a TLS hello, half a greeting; each closed at once."""
    tls = bytes.fromhex("16030100c8010000c40303") + attack.rng.randbytes(194)
    while attack.goes_on:
        data = attack.rng.choice(
            [attack.rng.randbytes(500), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", tls, GREETING[:30]]
        )
        with contextlib.suppress(OSError), attack.connect() as connection:
            attack.send(connection, data)


def half_open(attack):
    """Hundreds of connections that say nothing, or only how they begin; kept up all the time."""
    held, at_most = [], 0
    while attack.goes_on:
        while len(held) < HELD_CONNECTIONS and attack.goes_on:
            try:
                connection = attack.connect()
                attack.send(connection, attack.rng.choice([b"", GREETING[:11], GREETING]))
                held.append(connection)
            except OSError:
                attack.refused += 1
                break
        at_most = max(at_most, len(held))
        held = still_open(held)
        time.sleep(0.05)


def still_open(held):
    poll = select.poll()
    for connection in held:
        poll.register(connection, select.POLLIN | select.POLLHUP)
    closed = set()
    by_number = {connection.fileno(): connection for connection in held}
    for number, _ in poll.poll(0):
        connection = by_number[number]
        try:
            if connection.recv(4096, socket.MSG_DONTWAIT):
                continue
        except BlockingIOError:
            continue
        except OSError:
            pass
        connection.close()
        closed.add(connection)
    return [connection for connection in held if connection not in closed]


def interrupted(attack):
    """More than a queue takes, with heartbeats between, and then a reset: libzmq would end."""
    ping = frame(b"\x04PING\0\0", COMMAND)
    data = (message(encode(AskStatus(request=1))) * 4 + ping) * 200
    while attack.goes_on:
        with contextlib.suppress(OSError), attack.peer() as connection:
            attack.send(connection, data)
            time.sleep(0.05)
            now = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)


def absurd_lengths(attack):
    """A length of 10 GB in a frame, in a command, in a string and in an array of a header."""
    shapes = [
        ready() + struct.pack(">BQ", LONG, TEN_GB) + bytes(2000),
        struct.pack(">BQ", LONG | COMMAND, TEN_GB) + bytes(2000),
        ready() + message(b"\xdb\xff\xff\xff\xff" + bytes(100)),
        ready() + message(b"\xdd\xff\xff\xff\xff" + bytes(100)),
        ready() + message(b"\x81\xa1v\xc6\xff\xff\xff\xff"),
    ]
    while attack.goes_on:
        with contextlib.suppress(OSError), attack.connect() as connection:
            attack.send(connection, GREETING + attack.rng.choice(shapes))
            time.sleep(0.002)


def endless_frames(attack):
    """A message of empty frames, two bytes each, that never ends: ZeroMQ holds 64 for each."""
    data = frame(b"", MORE) * (BLOB_BYTES * 2)
    while attack.goes_on:
        with contextlib.suppress(OSError), attack.peer() as connection:
            while attack.goes_on:
                attack.send(connection, data)


def many_frames(attack):
    """Messages of a hundred thousand empty frames: as many as may be whole before anybody looks."""
    data = frame(b"", MORE) * 100_000 + frame(b"")
    while attack.goes_on:
        with contextlib.suppress(OSError), attack.peer() as connection:
            attack.send(connection, data)
            time.sleep(0.3)


def slow_writers(attack):
    """Connections that send one byte a second of a valid beginning."""
    data = GREETING + ready() + message(encode(AskStatus(request=1)))
    held = [attack.connect() for _ in range(MANY)]
    for start in range(len(data)):
        for index, connection in enumerate(held):
            with contextlib.suppress(OSError):
                attack.send(connection, data[start : start + 1])
                continue
            held[index] = attack.connect()
        if not attack.goes_on:
            return
        time.sleep(1.0)


def slow_readers(attack):
    """Peers that ask for snapshots again and again, and read one byte a second of the answers."""
    fetch = message(encode(fetch_of(attack.fingerprint, credit=16)))
    held = [attack.peer() for _ in range(MANY)]
    while attack.goes_on:
        for index, connection in enumerate(held):
            try:
                attack.send(connection, fetch)
                connection.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError:
                held[index] = attack.peer()
        time.sleep(1.0)


# Greedy peers


def flood(attack, data, count=1):
    """Send messages as fast as they are taken, and read the answers."""
    blob = repeated(data)
    with contextlib.ExitStack() as stack:
        peers = {}
        for _ in range(count):
            connection = stack.enter_context(attack.peer())
            connection.setblocking(False)
            peers[connection.fileno()] = [connection, memoryview(blob)]
        while attack.goes_on:
            _turn(attack, peers, blob, stack)


def _turn(attack, peers, blob, stack):
    connections = [each[0] for each in peers.values()]
    readable, writable, _ = select.select(connections, connections, [], 0.1)
    if not writable:
        time.sleep(0.0005)  # as it must wait for the node, it need not burn the answers' time
    for connection in {*readable, *writable}:
        number = connection.fileno()
        try:
            if connection in readable and not connection.recv(1 << 20):
                raise OSError
            if connection in writable:
                rest = peers[number][1]
                taken = connection.send(rest)
                attack.sent_bytes += taken
                peers[number][1] = rest[taken:] or memoryview(blob)
        except BlockingIOError:
            continue
        except OSError:
            del peers[number]
            connection.close()
            time.sleep(0.01)
            again = stack.enter_context(attack.peer())
            again.setblocking(False)
            peers[again.fileno()] = [again, memoryview(blob)]


def status_flood(attack):
    """Small requests."""
    flood(attack, message(encode(AskStatus(request=1))))


def many_floods(attack):
    """Small requests over many connections."""
    flood(attack, message(encode(AskStatus(request=1))), MANY)


def news_flood(attack):
    """News of 32 loss reports."""
    news = [(f"w{index}", "", 0.5, 1, 1, 0.0) for index in range(32)]
    flood(attack, message(encode(NewsMessage(request=1, news=news))))


def malformed_flood(attack):
    """Messages of random bytes, of which none can be decoded."""
    flood(attack, b"".join(message(attack.rng.randbytes(40)) for _ in range(1000)))


def push_flood(attack):
    """Payloads of 200 KB that nobody has asked for."""
    header = TableAddition(
        request=1, name="w2", incarnation=bytes(8), view=bytes(8), number=1, start=0,
        nbytes=200_000, table=0, shard=0, client="w2", counter=1, rows=None, is_first=False,
        contained=0,
    )  # fmt: skip
    flood(attack, message(encode(header), bytes(200_000)))


def fetch_flood(attack):
    """Fetches that are cancelled at once."""
    fetch = message(encode(fetch_of(attack.fingerprint, credit=16)))
    flood(attack, fetch + message(encode(Cancel(request=1))))


def propose_flood(attack):
    """Proposals under a thousand numbers, each with the end of another transaction."""
    parts = []
    for _ in range(300):
        transaction = attack.rng.randbytes(8)
        proposal = Propose(
            request=1, transaction=transaction, name="w2", terms="exchange",
            fingerprint=attack.fingerprint, version=1, news=(), budget_ms=1000,
        )  # fmt: skip
        ends = [
            Prepared(request=0, transaction=transaction, name="w2", is_there=False),
            TransactionDecision(
                request=2, transaction=transaction, commit=bool(attack.rng.getrandbits(1))
            ),
        ]
        parts += [message(encode(proposal)), message(encode(attack.rng.choice(ends)))]
    flood(attack, b"".join(parts))


# To compare with


def nothing(attack):
    """Sleep."""
    time.sleep(max(0.0, attack.end - time.monotonic()))


def burn(attack, share):
    """Use this share of a core, and nothing else."""
    while attack.goes_on:
        until = time.monotonic() + 0.01 * share
        while time.monotonic() < until:
            pass
        time.sleep(0.01 * (1 - share))


STRANGERS = (
    garbage, half_open, interrupted, absurd_lengths, endless_frames, many_frames, slow_writers,
    slow_readers,
)  # fmt: skip
GREEDY = (
    status_flood, many_floods, news_flood, malformed_flood, push_flood, fetch_flood, propose_flood,
)  # fmt: skip
ATTACKS = {attack.__name__: attack for attack in (*STRANGERS, *GREEDY, nothing)}


def main():
    name, port, seconds, seed, fingerprint = sys.argv[1:]
    attack = Attack(int(port), float(seconds), seed, bytes.fromhex(fingerprint))
    start = time.monotonic()
    if name.startswith("burn:"):
        burn(attack, float(name.removeprefix("burn:")))
    else:
        with contextlib.suppress(ConnectionError, TimeoutError):
            ATTACKS[name](attack)
    result = {
        "cpu_share": time.process_time() / (time.monotonic() - start),
        "connections": attack.connections,
        "sent_mb": attack.sent_bytes / 1e6,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
