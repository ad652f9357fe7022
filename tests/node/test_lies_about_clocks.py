"""A peer that lies about its training clock, or about those of others, takes nobody over."""

import math

import msgpack
import pytest
import torch
from support.inside import context_of
from support.members import in_lockstep, members
from support.nodes import config_of, eventually, status_of
from support.partners import partner_of

from dpwa.data.segments import NONCE_BYTES, SegmentHeader
from dpwa.errors import ProtocolError
from dpwa.types import MAX_CLOCK, TrainingProgress
from dpwa.wire.messages import NewsMessage, SnapshotHeader, decode, encode
from dpwa.wire.state import StateOffer, StateStanding
from dpwa.wire.transaction_messages import Agreed

TRANSPORTS = ("auto", "tcp")
HONEST, POISON = 1.0, 666.0


def set_to(member, value):
    with torch.no_grad():
        member.net.weight.fill_(value)


def say(member, clock):
    member.node.rounds.merger.set_progress(clock=float(clock))


def met(nodes):
    """How often the last of four nodes was fetched from, or refused."""
    outcomes = [status_of(member.adapter.connection, "w4")["outcomes"] for member in nodes]
    return sum(each.get("fetched", 0) + each.get("misbehaved", 0) for each in outcomes)


def highest(nodes):
    return max(float(member.x.max()) for member in nodes)


@pytest.mark.parametrize(
    ("lie", "transport"), [(60.0, "auto"), (2000.0, "tcp"), (1e12, "tcp"), (MAX_CLOCK, "auto")]
)
def test_one_lie_takes_nobody_over_and_clocks_go_on_to_count(lie, transport, monkeypatch):
    config = config_of(4, transport=transport, initial_state="own", log_level="error")
    with members(config, [HONEST] * 4) as nodes:
        *honest, liar = nodes
        eventually(lambda: in_lockstep(nodes, 5) or all(m.node.report()["merges"] for m in nodes))
        while liar.adapter.clock < 15.0:
            in_lockstep(nodes, 1)
        taken_over = []
        for member in honest:
            monkeypatch.setattr(member.node.rounds.merger, "_took_over", taken_over.append)
        before = met(honest)
        while met(honest) == before:
            say(liar, lie)
            set_to(liar, POISON)
            in_lockstep(nodes, 1)
        say(liar, honest[0].adapter.clock)
        set_to(liar, HONEST)
        in_lockstep(nodes, 3)
        clocks = [member.adapter.clock for member in honest]
        assert taken_over == []  # at most it was merged, as anybody is: by half
        assert highest(honest) < POISON
        assert max(clocks) < 2 * 20.0 + 10.0
        assert all(clock + 1.0 != clock for clock in clocks)


@pytest.mark.parametrize("kind", ["gossip", "symmetric", "lsgd", "clock rule"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_newcomer_takes_over_what_another_one_bears_out(kind, transport):
    """It meets the liar first; the honest ones have come to 30."""
    settings = {
        "gossip": {},
        "symmetric": {"algorithm": "symmetric"},
        "lsgd": {"algorithm": "lsgd", "lsgd": {"local_period": 1, "global_period": 1}},
        "clock rule": {"interpolation": "clock"},
    }[kind]
    config = config_of(4, transport=transport, initial_state="own", log_level="error", **settings)
    losses = {"w1": 0.01, "w2": 0.5, "w3": 0.6, "w4": 0.7}
    with members(config, [POISON, HONEST, HONEST, 99.0]) as (liar, two, three, new):
        for member, clock in ((liar, 500), (two, 30), (three, 30)):
            member.node.rounds.resume(float(clock), clock)

        def has_caught_up():
            for member in (liar, two, three, new):
                member.adapter.update_send(losses[member.name])
            new.adapter.update_wait(losses["w4"])
            assert highest([new]) < POISON
            return new.adapter.clock >= 15.0 and (new.x == HONEST).all()

        eventually(has_caught_up, 30)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_cannot_ask_another_one_takes_over_after_a_few_rounds(transport):
    config = config_of(3, transport=transport, initial_state="own", timeout_ms=300)
    with members(config, [HONEST, 99.0]) as (one, new):  # w3 never comes
        one.node.rounds.resume(500.0, 500)
        one.adapter.update_send()
        rounds = eventually(
            lambda: new.round() and new.adapter.clock >= 500 and new.adapter.updates, 30
        )
        assert (new.x == HONEST).all()
        assert rounds < 40


def test_a_take_over_is_judged_by_the_loss_as_a_merge_is():
    config = config_of(2, initial_state="own", quarantine_s=60.0)
    with members(config, [HONEST, HONEST]) as (one, late):
        eventually(
            lambda: in_lockstep([one, late], 10, lambda m: m.round(1.0)) or late.adapter.clock > 40
        )
        one.node.rounds.resume(5000.0, 5000)
        set_to(one, POISON)

        def takes_over():
            one.adapter.update_send(1.0)
            return late.round(1.0) and late.adapter.clock >= 5000.0

        eventually(takes_over, 30)
        assert late.node.rounds._losses._quarantine._strikes == {}
        late.round(400.0)
        late.round(400.0)
        assert late.node.rounds._losses._quarantine._strikes == {"w1": 1.0}


def test_a_clock_that_no_updates_bring_about_is_told_as_such(caplog):
    config = config_of(2, initial_state="own")
    with members(config, [HONEST, HONEST]) as (one, two):
        eventually(lambda: in_lockstep([one, two], 1) or two.node.report()["merges"])
        say(one, 1e9)

        def is_refused():
            one.adapter.update_send()
            two.round()
            return status_of(two.adapter.connection, "w1")["outcomes"].get("misbehaved")

        eventually(is_refused, 30)
        assert two.adapter.clock < 1e6
    assert any("faster than any training can" in text for text in caplog.messages)


def test_news_of_a_node_that_others_tell_make_nobody_a_beginner():
    config = config_of(2, transport="tcp", timeout_ms=50, loss_window=1, interpolation="leader")
    with members(config, [HONEST]) as [member], partner_of(member) as partner:
        member.round(0.5)
        for version in (10**6, 2**53):
            lies = tuple((name, "", 0.9, 2**40, version, 0.0) for name in ("w9", "w2"))
            assert partner.ask(NewsMessage(request=1, news=lies))
            member.round(0.5)
            member.round(0.5)
            assert member.adapter.leader == "w1"


# Bounds


def headers(clock):
    yield SnapshotHeader, {
        "version": 1, "clock": clock, "loss": None, "is_finite": None, "nbytes": 8, "codec": "none",
        "news": [],
    }  # fmt: skip
    yield Agreed, {"transaction": bytes(8), "version": 1, "clock": clock, "units": 0, "news": []}
    yield StateStanding, {"clock": clock, "is_trained": True, "is_sound": True}
    yield StateOffer, {
        "token": bytes(8), "nbytes": 8, "fingerprint": bytes(16), "clock": clock, "updates": 1,
    }  # fmt: skip


@pytest.mark.parametrize("clock", [math.nan, math.inf, -1.0, 1e300, MAX_CLOCK + 2.0])
def test_a_clock_that_no_float_counts_is_malformed(clock):
    for kind, fields in headers(clock):
        sound = {"request": 1, **fields, "clock": MAX_CLOCK}
        frame = msgpack.unpackb(encode(kind(**sound)))
        payload = [b""] if kind.max_payload_bytes else []
        decode([msgpack.packb(frame), *payload])
        with pytest.raises(ProtocolError, match="clock"):
            decode([msgpack.packb({**frame, "clock": clock}), *payload])


def test_a_version_that_cannot_be_is_no_news():
    message = NewsMessage(request=1, news=(("w2", "", 0.1, 1, 2**53, 0.0),))
    frame = msgpack.unpackb(encode(message))
    decode([msgpack.packb(frame)])
    frame["news"][0][4] += 1
    with pytest.raises(ProtocolError):
        decode([msgpack.packb(frame)])


@pytest.mark.parametrize(
    "changed",
    [{"clock": c} for c in (math.nan, math.inf, -1.0, 1e300)] + [{"loss": -math.inf}],
)
def test_a_mapped_header_is_checked_like_one_that_is_streamed(changed):
    def header(version=1, **told):
        progress = TrainingProgress(**{"clock": 3.0, "loss": 0.5, **told})
        packed = SegmentHeader(bytes(NONCE_BYTES), bytes(16), version, progress, True, 8).pack()
        return SegmentHeader.unpack(packed)

    assert header().progress.clock == 3.0
    assert header(clock=MAX_CLOCK) is not None
    assert header(**changed) is None
    assert header(version=2**63) is None


def test_who_is_in_quarantine_bears_nothing_out():
    with members(config_of(3), [HONEST]) as [one]:
        table = context_of(one.node).peer_table

        def judged():
            doubt, most = table.doubt("w2", 500.0, 3.0)
            return doubt.value, most

        assert judged()[0] == "unconfirmed"
        table.told_clock("w3", 40.0)
        assert judged() == ("contradicted", 50.0)
        table.told_clock("w3", 400.0)
        assert judged()[0] == "none"
        table.quarantine({"w3"})
        assert judged()[0] == "none"  # there is nobody else
