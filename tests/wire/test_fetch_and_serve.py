"""Both ends of a fetch, without sockets: what one emits goes into the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.snapshot import Snapshot
from dpwa.errors import ProtocolError
from dpwa.policy.health import Outcome
from dpwa.types import Standing
from dpwa.wire import limits
from dpwa.wire.fetching import FetchSession
from dpwa.wire.messages import (
    Chunk,
    Credit,
    Fetch,
    NotReady,
    OtherModel,
    SnapshotHeader,
    Status,
    pack_layout,
)
from dpwa.wire.serving import ServeSession


def layout_of(nbytes):
    return Layout((TensorSpec("w", "uint8", (nbytes,), 1),))


def snapshot_of(nbytes, layout=None):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    return Snapshot(3, Standing(clock=2.0, loss=0.5), layout or layout_of(nbytes), data)


def empty(nbytes):
    return np.empty(nbytes, np.uint8)


def begun(nbytes=100, chunk_bytes=64):
    session = FetchSession(1, layout_of(nbytes), empty)
    session.receive(
        SnapshotHeader(
            request=1, version=1, clock=1.0, loss=None, nbytes=nbytes, chunk_bytes=chunk_bytes
        ),
        b"",
    )
    return session


@pytest.mark.parametrize("layout", [None, Layout.of_bytes()], ids=["tensor", "bytes"])
@given(size=st.sampled_from([1, 1000, 2**20 - 1, 2**20, 2**20 + 1, 7 * 2**20 + 5]))
def test_a_snapshot_arrives_whole_and_within_the_credit(layout, size):
    snapshot = snapshot_of(size, layout)
    fetch = FetchSession(1, snapshot.layout, empty)
    request = fetch.request_message(budget_ms=1000)
    serve = ServeSession(request, snapshot)
    (header, nothing), *waiting = serve.due()
    assert fetch.receive(header, nothing) is None
    assert len(waiting) <= request.credit
    while waiting:
        chunk, data = waiting.pop(0)
        credit = fetch.receive(chunk, data.tobytes())
        if credit is not None:
            serve.grant(credit.chunks)
            waiting += serve.due()
        assert len(waiting) <= request.credit
    assert serve.finished
    assert fetch.result.outcome is Outcome.FETCHED
    assert fetch.result.snapshot.data.tobytes() == snapshot.data.tobytes()
    assert fetch.result.snapshot.version == 3
    assert fetch.result.snapshot.standing == snapshot.standing


def test_credit_never_exceeds_its_limit():
    request = Fetch(request=1, fingerprint=b"f" * 16, credit=1, budget_ms=0)
    serve = ServeSession(request, snapshot_of(limits.CHUNK_BYTES * 40))
    for _ in range(10):
        serve.grant(limits.MAX_CREDIT_CHUNKS)
    assert len(list(serve.due())) == 1 + limits.MAX_CREDIT_CHUNKS


def test_what_could_not_be_sent_is_due_again():
    request = Fetch(request=1, fingerprint=b"f" * 16, credit=3, budget_ms=0)
    serve = ServeSession(request, snapshot_of(limits.CHUNK_BYTES * 2))
    for _ in range(3):
        header, _ = next(serve.due())  # and then the socket is full
        assert header.type == "snapshot"
    assert not serve.finished
    assert [message.type for message, _ in serve.due()] == ["snapshot", "chunk", "chunk"]
    assert serve.finished


def test_not_ready_ends_the_fetch_without_blame():
    session = FetchSession(1, layout_of(4), empty)
    session.receive(NotReady(request=1), b"")
    assert session.result.outcome is Outcome.NOT_READY


def test_another_model_is_refused_naming_the_first_difference():
    session = FetchSession(1, layout_of(4), empty)
    session.receive(OtherModel(request=1), pack_layout(layout_of(5)))
    assert session.result.outcome is Outcome.OTHER_MODEL
    assert "here 'w' uint8[4], there 'w' uint8[5]" in session.result.detail


def test_a_header_of_another_size_allocates_nothing():
    asked = []
    session = FetchSession(1, layout_of(100), lambda n: asked.append(n) or empty(n))
    with pytest.raises(ProtocolError, match="a snapshot of 1000 bytes, expected 100"):
        session.receive(
            SnapshotHeader(request=1, version=1, clock=1.0, loss=None, nbytes=1000, chunk_bytes=64),
            b"",
        )
    assert not asked


def test_a_boundless_payload_is_refused():
    session = FetchSession(1, Layout.of_bytes(), empty)
    with pytest.raises(ProtocolError):
        session.receive(
            SnapshotHeader(
                request=1, version=1, clock=1.0, loss=None, nbytes=2**62, chunk_bytes=64
            ),
            b"",
        )


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (Chunk(request=1, index=1), bytes(64)),  # out of order
        (Chunk(request=1, index=0), bytes(63)),  # too short
        (Chunk(request=1, index=0), bytes(65)),  # too long
        (OtherModel(request=1), b"\xc1"),
        (Status(request=1), b""),
        (Credit(request=1, chunks=1), b""),
        (
            SnapshotHeader(request=1, version=1, clock=1.0, loss=None, nbytes=100, chunk_bytes=64),
            b"",
        ),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_what_the_protocol_does_not_allow_is_a_protocol_error(message, payload):
    with pytest.raises(ProtocolError):
        begun().receive(message, payload)


def test_a_chunk_before_its_header_is_refused():
    with pytest.raises(ProtocolError):
        FetchSession(1, layout_of(4), empty).receive(Chunk(request=1, index=0), bytes(4))
