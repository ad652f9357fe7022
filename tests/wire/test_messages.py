import contextlib
import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from dpwa.data.layout import Layout, TensorSpec
from dpwa.errors import ProtocolError, VersionError
from dpwa.wire import limits
from dpwa.wire.collecting import (
    AskToJoinView,
    CollectiveOutcome,
    Evicted,
    Hello,
    Post,
    Pull,
    PulledPiece,
    Vote,
)
from dpwa.wire.messages import (
    AskIdentity,
    AskSettings,
    AskStatus,
    Cancel,
    Chunk,
    Credit,
    Fetch,
    Goodbye,
    Identity,
    NewsMessage,
    NotReady,
    OtherModel,
    OtherSettings,
    Refused,
    SharedMemoryName,
    SnapshotHeader,
    Status,
    decode,
    encode,
    pack,
    pack_layout,
    unpack_layout,
)
from dpwa.wire.state import (
    AskPiece,
    AskState,
    OtherState,
    StateBusy,
    StateDone,
    StateGone,
    StateOffer,
    StatePiece,
    StateStanding,
)
from dpwa.wire.tables import (
    TableAdded,
    TableAddition,
    TableArrived,
    TableElsewhere,
    TableGet,
    TableGot,
    TableHoldings,
    TableMade,
    TableReady,
    TableRefused,
    TableSeen,
    TableState,
    TableStateTaken,
)
from dpwa.wire.transaction_messages import (
    Agreed,
    Busy,
    DecisionAck,
    Prepared,
    Propose,
    TransactionDecision,
)

FETCH = Fetch(
    request=7,
    name="w1",
    version=0,
    merged=0,
    news=(("w1", "", 0.5, 1, 2, 0.25), ("w2", "left", None, 1, 2, 0.0)),
    fingerprint=b"f" * 16,
    can_map=True,
    codec="none",
    chunk_bytes=4096,
    first=0,
    count=0,
    credit=4,
    budget_ms=2500,
)
SNAPSHOT = SnapshotHeader(
    request=7,
    version=3,
    clock=1.5,
    loss=0.25,
    is_finite=True,
    nbytes=100,
    codec="none",
    news=(),
)
OF_GROUP = {"request": 0, "tag": "", "name": "w1", "incarnation": b"12345678"}
OF_COLLECTIVE = {**OF_GROUP, "view": b"87654321", "number": 3}
MEMBERS = (("w1", b"12345678"), ("w2", b""))
COLLECTIVE_MESSAGES = [
    Hello(
        request=0, name="w1", incarnation=b"12345678", folder="", nonce=bytes(16), is_mapped=True
    ),
    Post(**OF_COLLECTIVE, phase=1, record=b"record"),
    Vote(
        **OF_COLLECTIVE,
        suspects=("w2",),
        entered=True,
        ready=False,
        expired=True,
        seen=("w1",),
        join_requests=MEMBERS,
    ),
    CollectiveOutcome(
        **OF_COLLECTIVE, holds=True, lost=("w3",), members=MEMBERS, since=4, before=b""
    ),
    Evicted(**OF_COLLECTIVE, size=2, ended=9, first="w1", waits=True),
    AskToJoinView(**OF_GROUP, size=0, ended=0, first=""),
    Pull(**OF_COLLECTIVE, area=1, start=0, stop=4096),
    PulledPiece(request=7, start=0),
]
MESSAGES = [
    FETCH,
    Credit(request=7, chunks=1),
    Cancel(request=7),
    AskStatus(request=0),
    Goodbye(request=0, name="w1"),
    AskIdentity(request=0, name="w1", incarnation=b"12345678", endpoint="tcp://h:1", expects="w2"),
    Identity(
        request=0, name="w3", incarnation=b"12345678", taken_by="ipc:///tmp/w1", is_certain=True
    ),
    SNAPSHOT,
    SNAPSHOT.model_copy(update={"loss": None}),
    SNAPSHOT.model_copy(update={"loss": math.inf}),
    SNAPSHOT.model_copy(update={"is_finite": None}),
    SharedMemoryName(request=7, name="dpwa-0", nonce=b"n" * 16),
    Chunk(request=7, index=0, checksum=2**64 - 1),
    NewsMessage(request=0, news=FETCH.news),
    Propose(
        request=7,
        transaction=b"12345678",
        name="w1",
        terms="exchange",
        fingerprint=b"f" * 16,
        version=3,
        news=(),
        budget_ms=2500,
    ),
    Agreed(request=7, transaction=b"12345678", version=4, clock=3.5, units=2**40, news=()),
    Busy(request=7, transaction=b"12345678"),
    Prepared(request=0, transaction=b"12345678", name="w1", is_there=True),
    TransactionDecision(request=8, transaction=b"12345678", commit=True),
    DecisionAck(request=8, transaction=b"12345678"),
    *COLLECTIVE_MESSAGES,
    AskSettings(request=0, digest=b"1" * 16),
    OtherSettings(request=0),
    NotReady(request=7),
    OtherModel(request=7),
    Refused(request=7, reason="no"),
    Status(request=7),
]

MEMBER = {"request": 7, "name": "w1", "incarnation": b"12345678", "view": b"87654321"}
PIECE = {**MEMBER, "number": 1, "start": 0, "nbytes": 7}
SHARD = {"table": 127, "shard": 3}
MESSAGES += [
    TableSeen(**MEMBER, number=3, wants=True),
    TableElsewhere(**MEMBER),
    TableHoldings(**PIECE),
    TableMade(**PIECE, table=0, shards=1),
    TableReady(**MEMBER, number=1, table=0),
    TableArrived(**MEMBER, number=1, passed=2, is_waiting=True),
    TableAddition(
        **PIECE, **SHARD, client="w1:1", counter=1, rows=None, is_first=False, contained=1
    ),
    TableAdded(**MEMBER, **SHARD, number=1, client="w1:1", counter=2**63 - 1, refused=""),
    TableState(**MEMBER, **SHARD, number=1, part="state.s"),
    TableStateTaken(**MEMBER, **SHARD, number=1, is_whole=False),
    TableGet(**PIECE, **SHARD, rows=3),
    TableGot(request=7, start=0, nbytes=7, image=1),
    TableRefused(request=7, reason="no"),
]
MESSAGES += [
    AskState(request=7, part="model", kind=b"f" * 16, prepares=True, token=b"12345678"),
    AskState(request=7, part="values", kind=b"", prepares=False, token=b""),
    StateStanding(request=7, clock=2.5, is_trained=True, is_sound=False),
    StateBusy(request=7, retry_after_s=0.5),
    OtherState(request=7),
    StateOffer(request=7, token=b"12345678", nbytes=9, fingerprint=b"f" * 16, clock=2.5, updates=3),
    AskPiece(request=7, token=b"12345678", part="optimizer", index=0),
    StatePiece(request=7, index=0, checksum=2**64 - 1),
    StateGone(request=7),
    StateDone(request=0),
]


def frames_of(message):
    return [encode(message), *([] if message.max_payload_bytes is None else [b"payload"])]


def header(**fields):
    return {
        "v": limits.PROTOCOL_VERSION,
        "type": "fetch",
        **FETCH.model_dump(exclude={"type"}),
        **fields,
    }


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.type)
def test_every_message_survives_the_wire(message):
    decoded, payload = decode(frames_of(message))
    assert decoded == message
    assert payload == (b"" if message.max_payload_bytes is None else b"payload")


@pytest.mark.parametrize("version", [0, 1, 2, 3, -1, 2**63])
def test_another_protocol_version_is_told_apart(version):
    told = f"speaks protocol version {version}, but this node speaks {limits.PROTOCOL_VERSION}"
    with pytest.raises(VersionError, match=told):
        decode([msgpack.packb(header(v=version))])


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("version", [None, "1", True, 1.5, [1], nested(400)])
def test_a_version_that_is_no_number_is_told_by_its_type_only(version):
    with pytest.raises(VersionError, match="version of type"):
        decode([msgpack.packb(header(v=version))])


@pytest.mark.parametrize("depth", [10, 400, 900])
@pytest.mark.parametrize("key", ["type", "request", "fingerprint", "extra"])
def test_deeply_nested_values_are_a_protocol_error(key, depth):
    with pytest.raises(ProtocolError):
        decode([msgpack.packb(header(**{key: nested(depth)}))])


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "fetched"},
        {"type": None},
        {"request": -1},
        {"request": "7"},
        {"request": True},
        {"request": 2**64 - 1},
        {"fingerprint": b"short"},
        {"fingerprint": "f" * 16},
        {"credit": 0},
        {"credit": limits.MAX_CREDIT_CHUNKS + 1},
        {"budget_ms": -1},
        {"can_map": 1},
        {"codec": ""},
        {"codec": "x" * 33},
        {"chunk_bytes": 0},
        {"chunk_bytes": 4096 + 8},
        {"chunk_bytes": limits.CHUNK_BYTES + 64},
        {"first": -1},
        {"count": 2**63},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_field_out_of_its_range_is_refused(fields):
    with pytest.raises(ProtocolError):
        decode([msgpack.packb(header(**fields))])


@pytest.mark.parametrize(
    "message",
    [m for m in MESSAGES if hasattr(m, "name") and not isinstance(m, SharedMemoryName)],
    ids=lambda message: message.type,
)
def test_whoever_says_its_name_has_one(message):
    sent = {"v": limits.PROTOCOL_VERSION, **message.model_dump(), "name": ""}
    with pytest.raises(ProtocolError, match="name: "):
        decode([msgpack.packb(sent)])


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 0},
        {"clock": math.nan},
        {"clock": -1.0},
        {"clock": math.inf},
        {"loss": math.nan},
        {"loss": -math.inf},
        {"nbytes": -1},
        {"is_finite": 1},
        {"codec": ""},
        {"codec": "x" * 33},
    ],
    ids=str,
)
def test_a_snapshot_header_is_checked_before_anything_is_allocated(fields):
    sent = {"v": limits.PROTOCOL_VERSION, **SNAPSHOT.model_dump(), **fields}
    with pytest.raises(ProtocolError):
        decode([msgpack.packb(sent)])


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xc1"],
        [b"x" * (limits.MAX_HEADER_BYTES + 1)],
        [encode(FETCH), b"payload"],
        [encode(Chunk(request=1, index=0, checksum=0))],
        [encode(Chunk(request=1, index=0, checksum=0)), bytes(limits.MAX_CHUNK_BYTES + 1)],
        [encode(Chunk(request=1, index=0, checksum=0)), b"", b""],
        [msgpack.packb([1, 2])],
        [msgpack.packb({1: 2})],
        [msgpack.packb(header()) + b"trailing"],
        [b"\x91" * 10_000],
        [b"\xdf\xff\xff\xff\xff"],
        [
            msgpack.packb(
                {"v": limits.PROTOCOL_VERSION, "type": "fetch", "request": msgpack.ExtType(1, b"x")}
            )
        ],
    ],
    ids=range(14),
)
def test_malformed_frames_are_refused(frames):
    with pytest.raises(ProtocolError):
        decode(frames)


def decode_never_crashes(frames):
    with contextlib.suppress(ProtocolError):
        decode(frames)


@examples(1_000)
@given(st.lists(st.binary(max_size=200), max_size=4))
def test_random_frames_are_a_message_or_a_protocol_error(frames):
    decode_never_crashes(frames)


@examples(1_000)
@given(st.sampled_from(MESSAGES), st.data())
def test_mutated_messages_are_a_message_or_a_protocol_error(message, data):
    frames = frames_of(message)
    raw = bytearray(frames[0])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, max(0, len(raw) - 1)))
        action = data.draw(st.sampled_from(["flip", "insert", "cut"]))
        if action == "flip" and raw:
            raw[position] ^= data.draw(st.integers(1, 255))
        elif action == "insert":
            raw[position:position] = data.draw(st.binary(min_size=1, max_size=6))
        else:
            del raw[position : position + data.draw(st.integers(1, 6))]
    decode_never_crashes([bytes(raw), *frames[1:]])


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@examples(500)
@given(st.sampled_from(MESSAGES), st.text() | st.sampled_from(["v", "type", "request"]), json_like)
def test_a_field_of_any_value_is_a_message_or_a_protocol_error(message, key, value):
    sent = {"v": limits.PROTOCOL_VERSION, **message.model_dump(), key: value}
    decode_never_crashes([msgpack.packb(sent), *frames_of(message)[1:]])


def layout_of(tensors, name="w"):
    specs = (TensorSpec(f"{name}{index}", "float32", (2, 3), 4) for index in range(tensors))
    return Layout(tuple(specs))


def test_the_description_of_a_layout_is_read_back():
    layout = layout_of(3)
    assert unpack_layout(pack_layout(layout)) == (3, list(layout.descriptions))


def test_of_a_long_layout_as_much_is_sent_as_fits():
    layout = layout_of(50_000)
    packed = pack_layout(layout)
    assert len(packed) <= limits.MAX_DETAIL_BYTES
    count, descriptions = unpack_layout(packed)
    assert count == 50_000
    assert descriptions == list(layout.descriptions[: len(descriptions)])
    assert len(descriptions) > 5_000


@pytest.mark.parametrize(
    "foreign", [7, "text", [], [1], [1, 2], [1, [2]], [1, ["x", None]], [True, {}], {"a": 1}]
)
def test_anything_else_is_no_description_of_a_layout(foreign):
    with pytest.raises(ProtocolError):
        unpack_layout(pack(foreign))


def test_foreign_descriptions_are_made_safe_to_log():
    count, (description,) = unpack_layout(pack([1, ["\x1b[31mred\n" + "x" * 10_000]]))
    assert count == 1
    assert description.isprintable()
    assert len(description) == 300


def test_details_are_limited_before_they_are_unpacked():
    frames = [encode(OtherModel(request=1)), b"\x90" * (limits.MAX_DETAIL_BYTES + 1)]
    with pytest.raises(ProtocolError, match="the payload of 'other_model' is too long"):
        decode(frames)
