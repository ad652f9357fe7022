"""The gossip of raw parameters, as a user sees it."""

import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from support.nodes import config_of, eventually, is_connected, status_of
from support.times import at_most

from dpwa import DpwaConnection
from dpwa.config import load_config
from dpwa.errors import (
    AddressError,
    ClosedError,
    ParametersError,
    UnknownNameError,
    UserError,
)


@pytest.fixture
def pair():
    config = config_of(2)
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        yield one, two


def exchanged(one, two, mine, theirs, loss=0.5):
    """Publish on both sides until the first receives something."""

    def attempt():
        two.update_send(theirs, loss)
        one.update_send(mine, loss)
        parameters, factor = one.update_wait(loss)
        return None if parameters is None else (parameters, factor)

    return eventually(attempt)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "int8", "uint16", "int64", "bool", "complex64", ">f4"],
)
def test_an_array_comes_back_with_its_dtype_and_shape(pair, dtype):
    theirs = np.arange(24).reshape(2, 3, 4).astype(dtype)
    parameters, factor = exchanged(*pair, np.zeros_like(theirs), theirs)
    assert parameters.dtype == theirs.dtype
    assert np.array_equal(parameters, theirs)
    assert factor == 0.5


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_come_back_as_bytes_of_any_length(pair, kind):
    parameters, _ = exchanged(*pair, kind(b"short"), kind(b"much longer than that"))
    assert parameters == b"much longer than that"


def test_a_payload_of_many_chunks_arrives_whole(pair):
    theirs = np.random.default_rng(1).random(3_000_001)
    parameters, _ = exchanged(*pair, np.zeros_like(theirs), theirs)
    assert np.array_equal(parameters, theirs)


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::2], lambda a: a[::-1]])
def test_any_strides_can_be_published(pair, view):
    theirs = view(np.arange(12.0).reshape(4, 3))
    parameters, _ = exchanged(*pair, np.zeros(theirs.shape), theirs)
    assert np.array_equal(parameters, theirs)


def test_what_came_back_belongs_to_the_caller(pair):
    theirs = np.ones(1000)
    kept, _ = exchanged(*pair, np.zeros(1000), theirs)
    exchanged(*pair, np.zeros(1000), theirs * 2)
    assert (kept == 1).all()
    kept += 1  # writable


def test_parameters_may_be_changed_as_soon_as_they_are_sent(pair):
    one, two = pair
    theirs = np.ones(100_000)
    two.update_send(theirs, 1.0)
    theirs[:] = 99.0

    def attempt():
        one.update_send(np.zeros(100_000), 1.0)
        return one.update_wait(1.0)[0]

    assert (eventually(lambda: (p := attempt()) is not None and (p,))[0] == 1.0).all()


@pytest.mark.parametrize(
    "parameters",
    [np.array(["text"]), np.array([{}]), np.array([]), b"", "text", [1.0, 2.0], None],
    ids=repr,
)
def test_what_cannot_be_published_is_the_users_error(pair, parameters):
    with pytest.raises(ParametersError, match="parameters must"):
        pair[0].update_send(parameters, 0.1)


def test_every_update_advances_the_clock_and_every_merge_interpolates_it(pair):
    one, two = pair
    for _ in range(5):
        two.update_send(b"x", 1.0)
    assert (one.clock, two.clock) == (0.0, 5.0)
    eventually(lambda: is_connected(one, "w2"))
    one.update_send(b"x", 1.0)
    parameters, factor = one.update_wait(1.0)
    assert (parameters, factor) == (b"x", 0.5)
    assert one.clock == 0.5 * 5 + 0.5 * 1


def test_the_clock_rule_weighs_by_clocks():
    config = config_of(2, interpolation="clock")
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        two.update_send(b"x")
        two.update_send(b"x")

        def attempt():
            own = one.clock + 1
            one.update_send(b"x")
            parameters, factor = one.update_wait()
            return parameters and (own, factor)

        own, factor = eventually(attempt)
        assert factor == pytest.approx(2 / (2 + own))


@pytest.mark.parametrize("loss", [0.5, np.float32(0.5), torch.tensor(0.5), None, 1, np.array(0.5)])
def test_a_loss_may_be_any_number_or_none(pair, loss):
    _, factor = exchanged(*pair, b"x", b"y", loss)
    assert factor == 0.5


@pytest.mark.parametrize(
    ("theirs", "loss"), [(np.array([1.0, np.nan]), 0.5), (np.array([1.0, 2.0]), np.nan)]
)
def test_a_diverged_peer_is_not_handed_over(pair, theirs, loss):
    one, two = pair

    def refused():
        two.update_send(theirs, loss)
        one.update_send(np.zeros(2), 0.5)
        assert one.update_wait(0.5) == (None, 0.0)
        return status_of(one, "w2")["outcomes"].get("diverged")

    eventually(refused)


def test_a_peer_without_a_snapshot_is_not_ready_and_not_blamed(pair):
    one, _ = pair

    def not_ready():
        one.update_send(b"x", 0.1)
        assert one.update_wait(0.1) == (None, 0.0)
        return status_of(one, "w2")["outcomes"].get("not_ready")

    eventually(not_ready)
    assert status_of(one, "w2")["health"] == "alive"
    assert status_of(one, "w2")["score"] == 1000


def test_without_a_fetch_nothing_comes_and_nothing_is_waited_for():
    config = config_of(2, fetch_probability=0.0)
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        two.update_send(b"y", 0.1)
        for _ in range(20):
            one.update_send(b"x", 0.1)
            assert one.update_wait(0.1) == (None, 0.0)
        assert one.clock == 20.0
        assert status_of(one, "w2")["outcomes"] == {}


def test_the_fetch_probability_is_a_seeded_bernoulli_trial():
    config = config_of(1, fetch_probability=0.3)
    with DpwaConnection("w1", config) as one:
        rounds = []
        for _ in range(1_000):
            one.update_send(b"x")
            rounds.append(one.node.rounds._request is not None)
            one.update_wait()
    assert 0.25 < sum(rounds) / 1_000 < 0.35
    with DpwaConnection("w1", config) as again:
        for fetched in rounds[:200]:
            again.update_send(b"x")
            assert (again.node.rounds._request is not None) == fetched


def test_waiting_without_sending_gives_nothing(pair):
    assert pair[0].update_wait(0.1) == (None, 0.0)


def test_sending_again_without_waiting_replaces_the_fetch(pair):
    one, two = pair
    exchanged(one, two, b"x", b"y")
    for _ in range(50):
        one.update_send(b"x", 0.1)
    two.update_send(b"z", 0.1)
    one.update_send(b"x", 0.1)
    assert one.update_wait(0.1)[0] == b"z"
    assert one.update_wait(0.1)[0] is None


@pytest.mark.parametrize("pattern", ["sends", "waits", "both", "few", "finish"])
def test_calls_without_their_other_half_are_told_once(pair, pattern, caplog):
    one, _ = pair
    for number in range(50):
        if pattern in ("sends", "both") or (pattern == "few" and number % 19):
            one.update_send(b"abc")
        if pattern in ("waits", "both") or (pattern == "few" and not number % 19):
            one.update_wait()
    if pattern == "finish":  # as a node that has ended, and serves those who train
        one.finish(np.zeros(1), timeout_s=0.0)
        for _ in range(50):
            one.update_wait()
    told = [text for text in caplog.messages if "the script has made" in text]
    assert len(told) == (pattern in ("sends", "waits"))
    words = {"sends": "20 calls of update_send", "waits": "20 calls of update_wait"}
    assert all(words[pattern] in text for text in told)


def test_peers_come_and_go_by_name():
    config = load_config(config_of(3))
    alone = config.model_copy(update={"nodes": config.nodes[:1]})
    second = config.nodes[1]
    with DpwaConnection("w1", alone) as one, DpwaConnection("w2", config) as two:
        assert one.peers == ()
        one.update_send(b"x")
        assert one.update_wait() == (None, 0.0)
        one.add_peer("w2", second.host, second.port)
        one.add_peer("w2", second.host, second.port)
        assert one.peers == ("w2",)
        assert exchanged(one, two, b"x", b"y")[0] == b"y"
        one.remove_peer("w2")
        assert one.peers == ()
        one.update_send(b"x")
        assert one.update_wait() == (None, 0.0)
        one.add_peer("w2", second.host, second.port)
        assert exchanged(one, two, b"x", b"y")[0] == b"y"


def test_mistakes_with_peers_are_the_users(pair):
    one, _ = pair
    with pytest.raises(UnknownNameError, match="no peer is named 'w9'"):
        one.remove_peer("w9")
    with pytest.raises(UserError, match="is this node itself"):
        one.add_peer("w1", "127.0.0.1", 1)
    with pytest.raises(UserError, match="already known at"):
        one.add_peer("w2", "127.0.0.1", 1)


def test_an_unknown_node_name_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="w1"):
        DpwaConnection("w7", config_of(2))


def test_a_port_in_use_is_one_clear_error_and_leaves_nothing(pair):
    config = pair[0].node.config
    before = threading.active_count()
    with pytest.raises(AddressError, match="port is already in use"):
        DpwaConnection("w1", config)
    assert threading.active_count() == before


def test_closing_is_quick_idempotent_and_final():
    connection = DpwaConnection("w1", config_of(2))
    connection.update_send(b"x")
    start = time.monotonic()
    connection.close()
    connection.close()
    assert time.monotonic() - start < at_most(1.0)
    for use in (
        lambda: connection.update_send(b"x"),
        connection.update_wait,
        lambda: connection.add_peer("w3", "127.0.0.1", 1),
        lambda: connection.remove_peer("w2"),
    ):
        with pytest.raises(ClosedError, match="node 'w1' is closed"):
            use()


def test_a_closed_address_can_be_used_again_at_once():
    config = config_of(2)
    ports = [node["port"] for node in config["nodes"]]
    for _ in range(10):
        with DpwaConnection("w1", config) as one, DpwaConnection("w2", config):
            eventually(lambda one=one: is_connected(one, "w2"), every_s=0.001)
        for port in ports:  # by any program, while connections of before are still remembered
            socket.create_server(("127.0.0.1", port)).close()


def test_every_merge_is_logged_with_factor_and_clocks_at_debug_only(caplog):
    config = config_of(2, log_level="debug", interpolation="constant", constant={"value": 0.25})
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        caplog.set_level("DEBUG", logger="dpwa")
        exchanged(one, two, np.zeros(3), np.ones(3))
    (line,) = [message for message in caplog.messages if "merged" in message]
    before, peer = (float(line.split(f" {key}=")[1].split()[0]) for key in ("clock", "peer_clock"))
    assert line == (
        f"w1: merged w2: factor=0.25 clock={before:.6g} peer_clock={peer:.6g} loss=0.5 "
        f"peer_loss=0.5 new_clock={0.25 * peer + 0.75 * before:.6g}"
    )
    caplog.clear()
    quiet = config_of(2, log_level="info")
    with DpwaConnection("w1", quiet) as one, DpwaConnection("w2", quiet) as two:
        exchanged(one, two, np.zeros(3), np.ones(3))
    assert not [message for message in caplog.messages if "merged" in message]


def test_a_name_that_is_no_text_is_refused_with_what_may_be_missing():
    with pytest.raises(UserError, match="Is DPWA_NAME set"):
        DpwaConnection(None, config_of(1))


def test_messages_go_where_the_program_says_and_each_is_shown_once():
    program = (
        "import logging\n"
        "from dpwa import DpwaConnection\n"
        "log = logging.getLogger('dpwa.node')\n"
        f"DpwaConnection('w1', {config_of(1)}).close()\n"
        "assert logging.getLogger('dpwa').level == logging.NOTSET\n"
        "log.info('nobody sees it'), log.warning('first')\n"
        "logging.basicConfig(format='mine: %(message)s')\n"
        f"DpwaConnection('w1', {config_of(1, log_level='info')}).close()\n"
        "log.info('second')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    lines = [line for line in done.stderr.splitlines() if "seed" not in line]
    assert lines[0].endswith("WARNING dpwa: first")
    assert lines[1:] == ["mine: second"]


def test_the_traceback_of_ctrl_c_ends_in_the_users_code_and_a_line_says_how_far_it_came(
    monkeypatch, caplog
):
    def interrupted(*_):
        raise KeyboardInterrupt

    def train():
        with DpwaConnection("w1", config_of(1)) as node:
            node.update_send(b"x")
            monkeypatch.setattr(node.node.rounds, "begin_update", interrupted)
            node.update_send(b"x")

    with pytest.raises(KeyboardInterrupt) as caught:
        train()
    assert caught.traceback[-1].name == "train"
    assert "w1: the training was interrupted after 1 updates and 0 merges" in caplog.text
