"""Both ends of a fetch, without sockets: what one emits goes into the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.requests import header_of

from dpwa.data.checksum import checksum
from dpwa.data.codecs import codec
from dpwa.data.layout import Layout, Piece, TensorSpec
from dpwa.data.snapshot import Snapshot
from dpwa.errors import ProtocolError
from dpwa.policy.health import Outcome
from dpwa.types import TrainingProgress
from dpwa.wire import limits
from dpwa.wire.fetching import (
    Ended,
    FetchSession,
    Greeting,
    ServeSession,
)
from dpwa.wire.messages import (
    Chunk,
    Credit,
    NotReady,
    OtherModel,
    Refused,
    SharedMemoryName,
    SnapshotHeader,
    Status,
    pack_layout,
)
from dpwa.wire.shards import Shard, shard_of

NONCE = b"n" * 16


def session_of(layout, **fields):
    return FetchSession(1, layout, Greeting("w1"), **fields)


def layout_of(nbytes):
    return Layout((TensorSpec("w", "uint8", (nbytes,), 1),))


def snapshot_of(nbytes, layout=None):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    return Snapshot(
        3, TrainingProgress(clock=2.0, loss=0.5), layout or layout_of(nbytes), data, True
    )


def chunk(payload, index=0):
    return Chunk(request=1, index=index, checksum=checksum(payload)), payload


def begun(nbytes=100):
    session = session_of(layout_of(nbytes))
    session.receive(header_of(nbytes=nbytes), b"")
    return session


def fetched(snapshot, fetch, encoder=None):
    """Run one fetch; return its announcement and the pieces, never more in flight than allowed."""
    request = fetch.request_message(budget_ms=1000)
    serve = ServeSession(request, snapshot, encoder or codec("none"))
    (first, nothing), *waiting = serve.next_outgoing()
    announced = fetch.receive(first, nothing)
    assert isinstance(announced, SnapshotHeader)
    arrived, ends, allowed = [], [], request.credit
    while waiting:
        assert len(waiting) <= request.credit
        message, data = waiting.pop(0)
        payload = data.tobytes()
        piece = fetch.receive(message, payload)
        assert isinstance(piece, Piece)
        arrived.append((piece, payload))
        ends.append(fetch.is_complete)
        credit = fetch.credit()
        if credit is not None:
            serve.grant(credit.chunks)
            allowed += credit.chunks
            waiting += serve.next_outgoing()
    assert serve.finished
    assert allowed <= max(request.credit, len(arrived))
    assert ends == [False] * (len(arrived) - 1) + [True]
    return announced, arrived


@pytest.mark.parametrize("layout", [None, Layout.of_bytes()], ids=["tensor", "bytes"])
@given(size=st.sampled_from([1, 1000, 2**20 - 1, 2**20, 2**20 + 1, 7 * 2**20 + 5]))
def test_a_snapshot_arrives_whole_and_within_the_credit(layout, size):
    snapshot = snapshot_of(size, layout)
    announced, arrived = fetched(snapshot, session_of(snapshot.layout))
    assert b"".join(payload for _, payload in arrived) == snapshot.data.tobytes()
    assert (announced.version, announced.clock, announced.loss) == (3, 2.0, 0.5)
    assert announced.is_finite is True


@given(size=st.integers(1, 300_000), fraction=st.floats(0.01, 1.0))
def test_shards_take_turns_and_together_are_the_whole(size, fraction):
    snapshot = snapshot_of(size)
    turns = int(np.ceil(1 / fraction))
    seen = np.zeros(size, int)
    for turn in range(turns):
        shard = shard_of(snapshot.layout, fraction, turn)
        assert shard == shard_of(snapshot.layout, fraction, turn)
        _, arrived = fetched(snapshot, session_of(snapshot.layout, shard=shard))
        for piece, payload in arrived:
            seen[piece.start : piece.stop] += 1
            assert payload == snapshot.data[piece.start : piece.stop].tobytes()
    assert seen.min() >= 1
    if size >= turns * limits.MIN_CHUNK_BYTES:
        assert seen.max() == 1


def test_a_shard_brings_about_the_fraction_that_was_asked_for():
    layout = layout_of(10 * limits.CHUNK_BYTES)
    for fraction in (0.5, 0.25, 0.1, 0.05):
        shard = shard_of(layout, fraction, turn=0)
        assert shard.count * shard.chunk_bytes == pytest.approx(layout.nbytes * fraction, rel=0.21)


def test_a_snapshot_is_summed_once_for_all_who_read_it_as_it_is():
    layout = Layout((TensorSpec("w", "float32", (600_000,), 4),))
    values = np.random.default_rng(1).standard_normal(600_000, np.float32)
    snapshot = Snapshot(1, TrainingProgress(clock=1.0), layout, values.view(np.uint8))
    shard = Shard(limits.CHUNK_BYTES // 2)
    for _ in range(2):
        fetched(snapshot, session_of(layout))
        fetched(snapshot, session_of(layout, shard=shard))
        fetched(snapshot, session_of(layout, codec="fp16"), encoder=codec("fp16"))
    snapshot.data[-1] ^= 1  # as it must not, and who reads the sum of before finds it
    fetched(snapshot, session_of(layout, shard=shard))
    with pytest.raises(ProtocolError):
        fetched(snapshot, session_of(layout))


def test_credit_never_exceeds_its_limit():
    snapshot = snapshot_of(limits.CHUNK_BYTES * 40)
    request = session_of(snapshot.layout).request_message(0)
    serve = ServeSession(request, snapshot, codec("none"))
    for _ in range(10):
        serve.grant(limits.MAX_CREDIT_CHUNKS)
    assert len(list(serve.next_outgoing())) == 1 + limits.MAX_CREDIT_CHUNKS


def test_what_could_not_be_sent_is_due_again_and_encoded_once():
    snapshot = snapshot_of(limits.CHUNK_BYTES * 2)
    request = session_of(snapshot.layout).request_message(0)
    serve = ServeSession(request, snapshot, codec("none"))
    for _ in range(3):
        message, _ = next(serve.next_outgoing())  # and then the socket is full
        assert message.type == "snapshot"
    assert not serve.finished
    sent = []
    for message, _ in serve.next_outgoing():
        sent.append(message)
        if message.type == "chunk":
            break
    assert next(serve.next_outgoing())[0] is sent[-1]
    assert not serve.finished
    assert len(list(serve.next_outgoing())) == 2
    assert serve.finished


def test_not_ready_ends_the_fetch_without_blame():
    session = session_of(layout_of(4))
    assert session.receive(NotReady(request=1), b"") == Ended(Outcome.NOT_READY)


def test_shared_memory_is_an_answer_only_to_those_who_can_map_it():
    answer = SharedMemoryName(request=1, name="dpwa-0", nonce=NONCE)
    session = session_of(layout_of(4), can_map=True)
    assert session.receive(answer, b"") is answer
    with pytest.raises(ProtocolError):
        session_of(layout_of(4)).receive(answer, b"")


def test_a_refusal_is_told_in_its_words():
    ended = session_of(layout_of(4)).receive(Refused(request=1, reason="unknown codec x\n"), b"")
    assert (ended.outcome, ended.detail) == (
        Outcome.MISBEHAVED,
        "the peer refuses: unknown codec x?",
    )


def test_another_model_is_refused_naming_the_first_difference():
    session = session_of(layout_of(4))
    ended = session.receive(OtherModel(request=1), pack_layout(layout_of(5)))
    assert ended.outcome is Outcome.OTHER_MODEL
    assert "here 'w' uint8[4], there 'w' uint8[5]" in ended.detail


@pytest.mark.parametrize(
    ("fields", "layout"),
    [
        ({"nbytes": 1000}, layout_of(100)),
        ({"nbytes": 2**62}, Layout.of_bytes()),
        ({"nbytes": 0}, Layout.of_bytes()),
        ({"codec": "fp16"}, layout_of(100)),
    ],
    ids=str,
)
def test_a_header_of_what_was_not_asked_for_is_refused(fields, layout):
    with pytest.raises(ProtocolError):
        session_of(layout).receive(header_of(**fields), b"")


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        chunk(bytes(100), index=1),  # out of order
        (Chunk(request=1, index=0, checksum=0), bytes(100)),  # corrupted
        (OtherModel(request=1), b"\xc1"),
        (Status(request=1), b""),
        (Credit(request=1, chunks=1), b""),
        (header_of(), b""),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_what_the_protocol_does_not_allow_is_a_protocol_error(message, payload):
    with pytest.raises(ProtocolError):
        begun().receive(message, payload)


def test_a_chunk_before_its_header_or_after_the_last_is_refused():
    with pytest.raises(ProtocolError):
        session_of(layout_of(4)).receive(*chunk(bytes(4)))
    session = begun()
    session.receive(*chunk(bytes(100)))
    with pytest.raises(ProtocolError):
        session.receive(*chunk(bytes(100), index=1))


@given(st.binary(max_size=100), st.data())
def test_a_checksum_finds_every_change_of_one_byte(payload, data):
    changed = bytearray(payload + b"x")
    place = data.draw(st.integers(0, len(payload)))
    changed[place] ^= data.draw(st.integers(1, 255))
    assert checksum(bytes(changed)) != checksum(payload + b"x")
    assert checksum(payload + b"\0") != checksum(payload)


def test_pieces_past_the_end_are_none_at_all():
    snapshot = snapshot_of(100)
    fetch = session_of(snapshot.layout, shard=Shard(first=1000, count=1))
    serve = ServeSession(fetch.request_message(0), snapshot, codec("none"))
    assert [message.type for message, _ in serve.next_outgoing()] == ["snapshot"]
    assert serve.finished
