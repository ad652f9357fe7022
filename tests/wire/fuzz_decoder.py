"""Fuzz what strangers' bytes come to first: messages, news, layouts, and the RxThread's answers.

Usage: python tests/wire/fuzz_decoder.py [SECONDS] [SEED]

Mutations of a small corpus of valid messages, one file for each type (`--write-corpus` writes those
that are missing), and of what mutations of them first led to: an input whose outcome (the text of
the error, or the type of the message) was never seen before is kept and mutated further. That is
guidance by behaviour, at a tenth of what watching every line would cost.

Findings: any exception but `ProtocolError`, a message that takes long, or one that takes much
memory. They are printed with the bytes that cause them; the exit status is 1 if there are any.
"""

import hashlib
import random
import sys
import time
import tracemalloc
from pathlib import Path

import msgpack

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.valid_messages import valid_message

from dpwa.config.model import Limits
from dpwa.data.layout import Layout, TensorSpec
from dpwa.errors import ProtocolError
from dpwa.node.serving.admission import AdmissionControl, Clients
from dpwa.node.serving.rx_thread import RxThread
from dpwa.node.serving.service import Service
from dpwa.transport.authenticator import Authorizer
from dpwa.transport.sockets import ReceivedMessage
from dpwa.wire import limits
from dpwa.wire.messages import (
    decode,
    encode,
    message_types,
    pack,
    pack_layout,
    unpack_layout,
    unpack_news,
)

CORPUS = Path(__file__).parent / "corpus"
MAX_BYTES = 32 * limits.MAX_DETAIL_BYTES  # 32 times what comes: objects of msgpack are that large
MAX_DECODE_S = 0.25  # 16 KB of header, 256 KB of details; on a machine that is busy
KEPT = 4096
TRACED_EVERY = 50  # tracing memory slows everything down

INTERESTING = [
    b"", b"\x00", b"\x80", b"\x90", b"\xc0", b"\xc1", b"\xc3", b"\xca\x7f\xc0\x00\x00",
    b"\xcb\x7f\xf0" + bytes(6), b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7),
    b"\xdb\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xd8\x01" + bytes(16), b"\xd6\xff" + bytes(4), b"\x91" * 600,
    b"\x81\xa1v\x05", b"\xa1\xff", b"\xff" * 8,
]  # fmt: skip


class Everything(Service):
    """Handles every message, and answers nothing."""

    handles = message_types()

    def handle(self, sender, message, reply):
        pass


class FakeRouter:
    """A socket that takes every answer."""

    closed = False

    def send(self, *arguments, **options):
        return None


class Targets:
    """What is fuzzed: each takes bytes, and returns what tells outcomes apart."""

    def __init__(self):
        admission = AdmissionControl(Authorizer(), Limits())
        self._rx = RxThread.__new__(RxThread)
        self._rx.admission = admission
        self._rx._services = dict.fromkeys(Everything.handles, Everything())
        self._rx._clients, self._rx._due = Clients(64), {}
        self._rx.bad_messages = self._rx.bytes_sent = 0
        self._router = FakeRouter()

    def header(self, data):
        return type(decode([data])[0]).__name__

    def with_payload(self, data):
        return type(decode([data, b"payload"])[0]).__name__

    def news(self, data):
        return f"{len(unpack_news(data))} loss reports"

    def layout(self, data):
        unpack_layout(data)
        return "layout"

    def answer(self, data):
        bad = self._rx.bad_messages
        cut = len(data) // 2
        frames = [[data], [data, b"payload"], [data[:cut], data[cut:]], [data] * 3]
        for each in frames:
            self._rx._answer_one(self._router, ReceivedMessage([b"peer", *each], None))
        return f"{self._rx.bad_messages - bad} bad"

    def all(self):
        return [self.header, self.with_payload, self.news, self.layout, self.answer]


def write_corpus():
    CORPUS.mkdir(exist_ok=True)
    for kind in message_types():
        name = kind.model_fields["type"].default
        path = CORPUS / f"{name}.msgpack"
        if not path.exists():
            path.write_bytes(encode(valid_message(kind, random.Random(name))))
    specs = tuple(TensorSpec(f"w{index}", "float32", (2, 3), 4) for index in range(3))
    (CORPUS / "layout.payload").write_bytes(pack_layout(Layout(specs)))
    (CORPUS / "news.payload").write_bytes(pack([["w2", "a", 0.5, 1, 1, 0.0]] * 3))


def corpus():
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def mutated(data, rng, pool):
    raw = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        at = rng.randrange(len(raw) + 1)
        action = rng.randrange(7)
        if action == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif action == 1 and at < len(raw):
            raw[at] = rng.randrange(256)
        elif action == 2:
            raw[at:at] = rng.choice(INTERESTING)
        elif action == 3:
            del raw[at : at + rng.choice([1, 2, 8, 64])]
        elif action == 4:
            other = rng.choice(pool)
            start = rng.randrange(len(other) + 1)
            raw[at:] = other[start:]
        elif action == 5:
            raw[at:at] = raw[at : at + rng.randrange(1, 40)] * rng.choice([1, 2, 30])
        else:
            _change_a_field(raw, rng)
    return bytes(raw[: limits.MAX_DETAIL_BYTES + 1])


def _change_a_field(raw, rng):
    """Keep the structure, and give one field a value of another kind."""
    try:
        header = msgpack.unpackb(bytes(raw), raw=False, strict_map_key=False)
        if isinstance(header, dict) and header:
            values = [None, True, -1, 2**63, 2**64 - 1, 1e308, float("nan"), "", "x" * 300, b"",
                      bytes(17), [], [[]] * 50, {}, {"a": {}}, [header], "\ud7ff\0"]  # fmt: skip
            header[rng.choice(list(header))] = rng.choice(values)
            raw[:] = msgpack.packb(header)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        pass


def outcome(target, data):
    try:
        return f"{target.__name__}: {target(data)}"
    except ProtocolError as error:  # with VersionError
        text = "".join(c for c in str(error) if not c.isdigit())
        return f"{target.__name__}: {text[:60]}"


def check(target, data, *, is_traced):
    """Return what happened, and what is wrong with it, if anything."""
    if is_traced:
        tracemalloc.start()
    start = time.thread_time()
    try:
        found = outcome(target, data)
        took_s = time.thread_time() - start
        peak = tracemalloc.get_traced_memory()[1] if is_traced else 0
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "", f"{type(error).__name__}: {error}"[:200]
    finally:
        if is_traced:
            tracemalloc.stop()
    if took_s > MAX_DECODE_S * (10 if is_traced else 1):
        return found, f"took {1000 * took_s:.0f} ms"
    if peak > MAX_BYTES:
        return found, f"took {peak} bytes for {len(data)}"
    return found, ""


def fuzz(seconds, seed):
    """Return the findings, how many inputs were tried, and how many outcomes were seen."""
    rng, targets = random.Random(seed), Targets().all()
    pool, seen, findings, tried = corpus(), set(), {}, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutated(rng.choice(pool), rng, pool)
        is_traced = tried % TRACED_EVERY == 0
        tried += 1
        for target in targets:
            found, wrong = check(target, data, is_traced=is_traced)
            if wrong:
                kind = f"{target.__name__}: {wrong.partition(' ')[0]}"
                findings.setdefault(kind, (wrong, data))
            if found not in seen and len(pool) < KEPT:
                seen.add(found)
                pool.append(data)
    return findings, tried, len(seen)


def main():
    if "--write-corpus" in sys.argv:
        write_corpus()
        return 0
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    findings, tried, outcomes = fuzz(seconds, seed)
    print(f"seed {seed}: {tried} inputs, {outcomes} outcomes, {len(findings)} findings")
    for kind, (wrong, data) in findings.items():
        digest = hashlib.blake2b(data, digest_size=4).hexdigest()
        print(f"{kind}\n  {wrong}\n  {digest}: {data[:400]!r} ({len(data)} bytes)")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
