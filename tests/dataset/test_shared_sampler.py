"""SharedSampler between nodes of this process, which are closed, and started again."""

import logging
import multiprocessing
import threading

import numpy as np
import pytest
import torch
from support.collective_nodes import LONGEST_S, collective_nodes
from support.inside import pending_of
from torch.utils.data import DataLoader

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.dataset import SharedSampler
from dpwa.errors import ClosedError, MismatchError, UserError
from dpwa.policy.range_leases import IS_DONE
from dpwa.tables.node_tables import Tables

SIZE, RANGE = 300, 16  # the last range has 12 items
DATA = np.arange(SIZE)


def sampler_of(connection, size=SIZE, **settings):
    return SharedSampler(size, connection, **{"range_size": RANGE, **settings})


def loader_of(sampler, batch_size=10, **settings):
    if settings.get("num_workers"):
        # Not forks of this process: in these, torch waits for threads of a process group of before.
        settings["multiprocessing_context"] = "forkserver"
        multiprocessing.set_forkserver_preload(["torch.utils.data"])  # once, and not by each worker
    return DataLoader(DATA, batch_size=batch_size, sampler=sampler, **settings)


def epoch_of(sampler, **settings):
    """Go through an epoch; return the items in their order."""
    return [
        item for batch in sampler.batches(loader_of(sampler, **settings)) for item in batch.tolist()
    ]


def all_of(found):
    return sorted(item for items in found.values() for item in items)


@pytest.mark.parametrize("workers", [0, 2])
def test_all_nodes_together_see_each_item_once_in_each_epoch(workers):
    def train(connection):
        with sampler_of(connection) as sampler:
            found = []
            for epoch in range(2):
                sampler.set_epoch(epoch)
                found.append(epoch_of(sampler, num_workers=workers))
            assert sampler.acknowledged == sum(map(len, found))
            assert sampler.refused == 0
        return found

    with collective_nodes(2) as nodes:
        found = nodes.each(train)
    for epoch in range(2):
        assert all_of({name: items[epoch] for name, items in found.items()}) == list(range(SIZE))
    assert found["w1"][0] != found["w1"][1]


def test_a_range_is_acknowledged_with_the_batch_that_ends_it_and_not_when_it_is_drawn():
    with collective_nodes(1) as nodes, sampler_of(nodes["w1"]) as sampler:
        done = []
        for batch in sampler.batches(loader_of(sampler, 10)):
            done.append((len(batch), len(sampler.state_dict()["done"])))
    # While a batch is trained on, only ranges that end in those before it are done.
    expected = [before * 10 // RANGE for before in range(SIZE // 10)]
    assert done == [(10, ranges) for ranges in expected]


def test_what_a_node_that_leaves_has_not_trained_on_is_seen_by_another():
    met = threading.Barrier(2, timeout=LONGEST_S)

    def train(connection):
        sampler = sampler_of(connection)
        met.wait()
        if connection.name == "w2":
            batches = sampler.batches(loader_of(sampler, RANGE))
            first = next(batches).tolist()
            second = next(batches).tolist()  # the first range is acknowledged now
            sampler.state_dict()
            connection.close()
            return first, second
        found = epoch_of(sampler)
        sampler.close()
        return found

    with collective_nodes(2) as nodes:
        found = nodes.each(train)
    first, second = found["w2"]
    assert sorted(found["w1"] + first) == list(range(SIZE))
    assert set(second) < set(found["w1"])


def test_a_loop_that_is_left_gives_back_what_it_holds():
    with collective_nodes(1) as nodes, sampler_of(nodes["w1"]) as sampler:
        for batch in sampler.batches(loader_of(sampler, RANGE)):
            first = batch.tolist()
            break
        assert sampler.acknowledged == 0
        assert sorted(epoch_of(sampler)) == list(range(SIZE))
        assert len(first) == RANGE


def test_a_range_that_a_living_node_keeps_too_long_is_given_to_who_waits(caplog):
    met = threading.Barrier(2, timeout=LONGEST_S)

    def train(connection):
        with sampler_of(connection, lease_s=0.3) as sampler:
            met.wait()
            if connection.name == "w1":
                found = epoch_of(sampler)
                met.wait()
                return found
            batches = sampler.batches(loader_of(sampler, RANGE))
            next(batches)
            met.wait()  # w1 is through
            with caplog.at_level(logging.WARNING, "dpwa.dataset"):
                assert list(batches) == []
            assert (sampler.acknowledged, sampler.refused) == (0, 1)
            return []

    with collective_nodes(2) as nodes:
        found = nodes.each(train)
    assert sorted(found["w1"]) == list(range(SIZE))
    assert "was given to another node" in caplog.text


def test_who_was_left_out_goes_on_and_says_so(caplog):
    with collective_nodes(1) as nodes, sampler_of(nodes["w1"]) as sampler:
        batches = sampler.batches(loader_of(sampler, RANGE))
        first = next(batches).tolist()
        pending_of(sampler.tables).note_parted("w1")
        with caplog.at_level(logging.WARNING, "dpwa.dataset"):
            rest = [item for batch in batches for item in batch.tolist()]
        assert sorted(first + rest) == list(range(SIZE))
    assert "nodes may train on some ranges again" in caplog.text


def test_who_was_left_out_before_it_has_a_sampler_gets_one():
    with collective_nodes(1) as nodes, Tables(nodes["w1"]) as tables:
        pending_of(tables).note_parted("w1")
        assert sorted(epoch_of(sampler_of(nodes["w1"], tables=tables))) == list(range(SIZE))


# States


def test_all_nodes_go_on_from_their_states_with_what_is_left():
    met = threading.Barrier(2, timeout=LONGEST_S)

    def begin(connection):
        with sampler_of(connection) as sampler:
            sampler.set_epoch(3)
            seen, state = [], None
            for batch in sampler.batches(loader_of(sampler, RANGE)):
                state = sampler.state_dict()
                if len(seen) == (2 if connection.name == "w1" else 4) * RANGE:
                    break
                seen += batch.tolist()
            met.wait()
            return seen, state

    def go_on(connection):
        seen, state = begun[connection.name]
        with sampler_of(connection) as sampler:
            sampler.load_state_dict(state)
            return seen + epoch_of(sampler)

    with collective_nodes(2) as nodes:
        begun = nodes.each(begin)
        assert all(state["epoch"] == 3 for _, state in begun.values())
    with collective_nodes(2) as nodes:
        assert all_of(nodes.each(go_on)) == list(range(SIZE))


def test_an_old_state_of_one_node_that_comes_back_changes_nothing():
    with collective_nodes(1) as nodes, sampler_of(nodes["w1"]) as sampler:
        old = sampler.state_dict()
        batches = sampler.batches(loader_of(sampler, RANGE))
        first = next(batches).tolist()
        second = next(batches).tolist()
        sampler.load_state_dict(old)  # does not wait: a range was taken
        assert sorted(first + second + epoch_of(sampler)) == sorted([*range(SIZE), *second])


def test_a_state_of_an_epoch_that_is_over_has_no_batches():
    with collective_nodes(1) as nodes, sampler_of(nodes["w1"]) as sampler:
        epoch_of(sampler)
        state = sampler.state_dict()
    with collective_nodes(1) as nodes, sampler_of(nodes["w1"]) as sampler:
        sampler.load_state_dict(state)
        assert epoch_of(sampler) == []
        sampler.set_epoch(1)
        assert sorted(epoch_of(sampler)) == list(range(SIZE))


# Use


def test_loops_of_their_own_acknowledge_by_themselves():
    with collective_nodes(1) as nodes, sampler_of(nodes["w1"], shuffle=False) as sampler:
        seen = []
        while not sampler.is_over():
            for batch in loader_of(sampler, 7):
                seen += batch.tolist()
                sampler.acknowledge(len(batch))
        assert seen == list(range(SIZE))
        assert sampler.acknowledged == SIZE


def test_who_turns_to_a_later_epoch_ends_the_one_before_for_all():
    met = threading.Barrier(2, timeout=LONGEST_S)

    def train(connection):
        with sampler_of(connection) as sampler:
            if connection.name == "w1":
                batches = sampler.batches(loader_of(sampler, RANGE))
                next(batches)
                met.wait()
                met.wait()
                rest = list(batches)
                met.wait()
                return 1 + len(rest)
            met.wait()
            sampler.set_epoch(1)
            next(iter(sampler))
            met.wait()
            met.wait()
            return 0

    with collective_nodes(2) as nodes:
        assert nodes.each(train)["w1"] < SIZE // RANGE


def test_two_samplers_of_a_node_share_its_tables():
    with collective_nodes(1) as nodes, sampler_of(nodes["w1"]) as sampler:
        other = sampler_of(nodes["w1"], 20, tables=sampler.tables)
        assert len(list(other)) == 20
        assert sorted(epoch_of(sampler)) == list(range(SIZE))


def test_it_may_be_closed_after_its_node_and_has_no_batches_then():
    with collective_nodes(1) as nodes:
        sampler = sampler_of(nodes["w1"])
        batches = sampler.batches(loader_of(sampler))
        next(batches)
        nodes["w1"].close()
        with pytest.raises(ClosedError):
            list(batches)
        sampler.close()
        sampler.close()


def test_an_adapter_will_do():
    with collective_nodes(1) as nodes:
        config = nodes.config
    with (
        DpwaPyTorchAdapter(torch.nn.Linear(2, 1), "w1", config) as gossip,
        sampler_of(gossip) as sampler,
    ):
        assert sorted(epoch_of(sampler)) == list(range(SIZE))


def test_nodes_with_different_samplers_are_told():
    met = threading.Barrier(2, timeout=LONGEST_S)

    def make(connection):
        try:
            sampler = sampler_of(connection, seed=int(connection.name == "w2"))
        finally:
            met.wait()
        sampler.close()

    with collective_nodes(2) as nodes:
        found = nodes.outcomes(make)
    errors = [error for error in found.values() if error is not None]  # whoever came second
    assert errors
    assert all(isinstance(e, MismatchError) and "'seed': 1}" in str(e) for e in errors), found


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"size": 0}, "dataset_size: expected a whole number of at least 1"),
        ({"size": 2.5}, "dataset_size"),
        ({"range_size": 0}, "range_size"),
        ({"seed": 2**32}, "seed: expected a number of at most"),
        ({"replicas": -1}, "replicas"),
    ],
)
def test_impossible_numbers_are_refused(settings, what):
    with collective_nodes(1) as nodes, pytest.raises(UserError, match=what):
        sampler_of(nodes["w1"], **settings)


def test_mistakes_in_use_are_explained():
    with collective_nodes(1) as nodes, sampler_of(nodes["w1"]) as sampler:
        for loader, what in [
            (DataLoader(DATA), "`sampler` argument is this SharedSampler"),
            (loader_of(sampler, drop_last=True), "drop_last=False"),
        ]:
            with pytest.raises(UserError, match=what):
                next(sampler.batches(loader))
        with pytest.raises(UserError, match="epoch"):
            sampler.set_epoch(-1)
        with pytest.raises(UserError, match="items: expected a number of at most 0"):
            sampler.acknowledge(1)
        state = sampler.state_dict()
        for change, what in [
            ({"dataset_size": 7}, "dataset_size=7, but this sampler has dataset_size=300"),
            ({"done": [99]}, "range numbers from 0 to 18"),
            ({"done": None}, "range numbers from 0 to 18"),
            ({"epoch": None}, "epoch: expected"),
        ]:
            with pytest.raises(UserError, match=what):
                sampler.load_state_dict({**state, **change})
        epoch_of(sampler)
        with pytest.raises(UserError, match="epoch 0 has ended on this node"):
            epoch_of(sampler)
        rows = sampler._table._table.get()
        assert (rows[:, IS_DONE] == 1.0).all()


def test_a_node_with_tables_passes_them():
    with (
        collective_nodes(1) as nodes,
        sampler_of(nodes["w1"]),
        pytest.raises(UserError, match="already has a Tables object"),
    ):
        sampler_of(nodes["w1"])
