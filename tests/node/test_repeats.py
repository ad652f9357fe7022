"""What a peer has published is merged once, unless the configuration or the algorithm repeats."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.nodes import config_of, eventually, is_connected
from torch import nn

from dpwa import DpwaConnection
from dpwa.adapters.pytorch import DpwaPyTorchAdapter

TRANSPORTS = ("auto", "tcp")
ONE, TWO = np.ones(100), np.full(100, 2.0)


def merged(connection):
    """The values that a round brings, all alike; `None` if it brings none."""
    connection.update_send(np.zeros(100))
    parameters, _ = connection.update_wait()
    return None if parameters is None else parameters[0]


def rounds(connection, count=5):
    return [merged(connection) for _ in range(count)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_version_is_merged_once_and_the_next_one_again(transport):
    config = config_of(2, transport=transport)
    with DpwaConnection("w1", config) as quick, DpwaConnection("w2", config) as slow:
        slow.update_send(ONE)
        assert eventually(lambda: merged(quick)) == 1.0
        before = quick.node.report()["bytes_received"]
        assert rounds(quick) == [None] * 5
        assert quick.node.report()["bytes_received"] - before < ONE.nbytes
        slow.update_send(TWO)
        assert eventually(lambda: merged(quick)) == 2.0
        assert rounds(quick) == [None] * 5
        told = quick.node.report()["peers"][0]
        assert (told["health"], told["score"]) == ("alive", 1000)
        assert told["outcomes"]["nothing_new"] >= 10


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_another_peer_is_asked_in_the_place_of_one_that_has_nothing_new(transport):
    config = config_of(3, transport=transport, timeout_ms=20_000)
    with (
        DpwaConnection("w1", config) as quick,
        DpwaConnection("w2", config) as slow,
        DpwaConnection("w3", config) as other,
    ):
        slow.update_send(ONE)
        eventually(lambda: merged(quick) == 1.0)

        def both_are_merged():
            other.update_send(TWO)
            return merged(quick)

        eventually(both_are_merged)
        assert [both_are_merged() for _ in range(20)] == [2.0] * 20
        assert quick.node.report()["peers"][0]["outcomes"]["nothing_new"] > 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_it_is_merged_again_where_that_is_asked_for(transport):
    config = config_of(2, transport=transport, repeat="merge")
    with DpwaConnection("w1", config) as quick, DpwaConnection("w2", config) as slow:
        slow.update_send(ONE)
        for _ in range(5):
            assert eventually(lambda: merged(quick)) == 1.0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_shard_of_a_version_is_merged_once(transport):
    config = config_of(2, transport=transport, fraction=0.5, initial_state="own")
    nets = [nn.Linear(40_000, 1, bias=False) for _ in range(2)]
    with torch.no_grad():
        nets[0].weight.fill_(0.0)
        nets[1].weight.fill_(1.0)
    with (
        DpwaPyTorchAdapter(nets[0], "w1", config) as quick,
        DpwaPyTorchAdapter(nets[1], "w2", config) as slow,
    ):
        slow.update_send()
        eventually(lambda: is_connected(quick.connection, "w2"))  # else it is soon far ahead
        brought = []

        def has_all():
            quick.update_send()
            brought.append(quick.update_wait() is not None)
            return nets[0].weight.min().item() > 0.0

        eventually(has_all)
        for _ in range(6):
            has_all()
        assert sum(brought) == 2
        assert torch.equal(nets[0].weight, torch.full_like(nets[0].weight, 0.5))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_was_started_again_is_merged_though_it_counts_from_one(transport):
    config = config_of(2, transport=transport)
    with DpwaConnection("w1", config) as quick:
        for value in (ONE, TWO):
            with DpwaConnection("w2", config) as slow:
                slow.update_send(value)
                assert slow.node.version == 1
                assert eventually(lambda: merged(quick)) == value[0]


def test_algorithms_that_are_drawn_to_where_a_peer_stands_repeat():
    config = config_of(2, algorithm="lsgd", lsgd={"local_period": 1, "global_period": 1})
    config["loss_window"] = 1
    with (
        DpwaPyTorchAdapter(nn.Linear(4, 1), "w1", config) as quick,
        DpwaPyTorchAdapter(nn.Linear(4, 1), "w2", config) as leader,
    ):
        leader.update_send(0.1)
        count = 0

        def is_pulled_often():
            nonlocal count
            quick.update_send(9.0)
            count += quick.update_wait(9.0) is not None
            return count >= 3

        eventually(is_pulled_often)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_whose_training_is_over_is_merged_again(transport):
    config = config_of(2, transport=transport)
    with DpwaConnection("w1", config) as quick, DpwaConnection("w2", config) as other:
        other.update_send(TWO)
        assert eventually(lambda: merged(quick)) == 2.0
        assert rounds(quick) == [None] * 5
        with ThreadPoolExecutor() as pool:
            ended = pool.submit(other.finish, TWO, timeout_s=30)
            eventually(lambda: rounds(quick) == [2.0] * 5)
            quick.finish(TWO)
            assert ended.result()[1].took_part == ("w1",)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_trains_on_after_the_end_is_merged_once_again(transport):
    config = config_of(2, transport=transport)
    with DpwaConnection("w1", config) as quick, DpwaConnection("w2", config) as other:
        other.update_send(ONE)
        eventually(lambda: merged(quick))
        with ThreadPoolExecutor() as pool:
            ended = pool.submit(other.finish, ONE, timeout_s=30)
            quick.finish(ONE)
            ended.result()
        late = other.node.finish.endings.message()
        other.update_send(TWO)
        assert eventually(lambda: merged(quick) == 2.0)
        quick.node.finish.endings.receive_ending("w2", late)  # it took its time
        assert rounds(quick) == [None] * 5


def test_a_peer_that_had_ended_and_is_started_again_is_merged_once_a_version():
    config = config_of(2, transport="tcp")
    with DpwaConnection("w1", config) as quick:
        with DpwaConnection("w2", config) as other:
            other.update_send(ONE)
            eventually(lambda: merged(quick))
            said = {"round_number": 1, "version": 9}
            ended = other.node.finish.endings.message().model_copy(update=said)
            quick.node.finish.endings.receive_ending("w2", ended)
            eventually(lambda: rounds(quick) == [1.0] * 5)
        with DpwaConnection("w2", config) as other:
            other.update_send(TWO)
            assert eventually(lambda: merged(quick)) == 2.0
            assert rounds(quick) == [None] * 5


def test_who_comes_after_the_others_have_ended_merges_them_again():
    config = config_of(2, transport="tcp")
    with DpwaConnection("w2", config) as ended:
        with DpwaConnection("w1", config) as one, ThreadPoolExecutor() as pool:
            ended.update_send(TWO)
            eventually(lambda: merged(one))
            other = pool.submit(ended.finish, TWO, timeout_s=30)
            one.finish(TWO)
            other.result()
        with DpwaConnection("w1", config) as late:
            eventually(lambda: rounds(late) == [2.0] * 5)


def test_with_neighbours_of_each_round_a_peer_that_stands_still_holds_nobody_up():
    config = config_of(3, topology="one_peer_exponential", transport="tcp", timeout_ms=500)
    with (
        DpwaConnection("w1", config) as quick,
        DpwaConnection("w2", config) as slow,
        DpwaConnection("w3", config) as other,
    ):
        slow.update_send(ONE)
        brought = []

        def has_both():
            other.update_send(TWO)
            brought.append(merged(quick))
            other.update_wait()
            return {1.0, 2.0} <= set(brought)

        eventually(has_both)
        for _ in range(20):
            has_both()
        assert brought.count(1.0) == 1
        assert brought[-20:].count(2.0) >= 5
