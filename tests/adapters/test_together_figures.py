"""What nodes under `algorithm: together` tell of themselves: bytes, rounds, and who is in sync."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.nodes import config_of, eventually

import dpwa

FORM_BYTES = 12  # that go along with each gradient: whether there is one, and of which form


def run(count, task, width=8, **settings):
    """Have nodes do a task at once, each with `(gossip, step)`, and return what each returns."""
    config = config_of(count, **{"algorithm": "together", "log_level": "error"} | settings)

    def train(index):
        torch.manual_seed(0)
        net = torch.nn.Linear(4, width)
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        with dpwa.connect(net, optimizer, config=config, name=f"w{index + 1}") as gossip:

            def step(pause_s=0.0):
                gossip.update_send(1.0)
                optimizer.zero_grad()
                time.sleep(pause_s)
                net(torch.ones(2, 4)).square().mean().backward()
                optimizer.step()
                gossip.update_wait()

            return task(index, gossip, step)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(train, range(count)))


@pytest.mark.parametrize("width", [8, 40_000])  # the small one goes along with messages
@pytest.mark.parametrize(("transport", "count"), [("auto", 2), ("auto", 3), ("tcp", 2), ("tcp", 3)])
def test_gradients_are_in_the_bytes_that_nodes_tell(transport, count, width):
    steps = 6

    def task(index, gossip, step):
        for _ in range(3):
            step()
        gossip.barrier()
        before = gossip.metrics()
        for _ in range(steps):
            step()
        gossip.barrier()
        after = gossip.metrics()
        gossip.barrier()  # a node that has ended is in sync with nobody
        assert after["dpwa/rounds"] - before["dpwa/rounds"] == steps
        assert (after["dpwa/in_sync"], after["dpwa/consensus_distance"]) == (count, 0.0)
        assert after["dpwa/merges"] == 0
        kinds = "sent", "received", "mapped", "merged"
        return {k: after[f"dpwa/{k}_bytes"] - before[f"dpwa/{k}_bytes"] for k in kinds}

    of_nodes = run(count, task, transport=transport, width=width)
    in_all = {kind: sum(found[kind] for found in of_nodes) for kind in of_nodes[0]}
    model = 4 * 5 * width + 2 * FORM_BYTES
    taken = steps * model * (2 * (count - 1) if width > 1000 else count * (count - 1))
    assert in_all["merged"] == taken
    assert in_all["mapped"] == (taken if transport == "auto" else 0)
    assert in_all["sent"] == in_all["received"] == (0 if transport == "auto" else taken)


def test_a_late_node_is_out_of_sync_until_it_is_back_and_its_peers_say_who_averages():
    is_back, told = threading.Event(), {}

    def task(index, gossip, step):
        def pace():
            return gossip.connection.node.condition().pace

        def all_in_sync():
            step()
            return pace().in_sync == ("w1", "w2", "w3")

        eventually(all_in_sync)
        if index == 2:
            while pace().size:  # the first time, it comes back at once
                step(1.2)  # longer than others wait
            told["late"] = pace()
            eventually(all_in_sync)
            is_back.set()
        while not is_back.is_set():
            step(0.005)
            if pace().in_sync == ("w1", "w2"):
                told[index] = pace(), gossip.metrics()
        for _ in range(5):
            step()
        return pace()

    paces = run(3, task)
    pace, metrics = told[0]
    assert pace.out_of_sync_s is None
    assert (metrics["dpwa/in_sync"], metrics["dpwa/consensus_distance"]) == (2, 0.0)
    late = told["late"]
    assert late.in_sync == ()
    assert 0.0 <= late.out_of_sync_s < 1.2
    assert pace.rounds_with["w2"] > pace.rounds_with["w3"] == late.rounds
    assert all(found.rounds_with.keys() == {"w1", "w2", "w3"} - {f"w{i + 1}"}
               for i, found in enumerate(paces))  # fmt: skip


def test_snapshots_that_two_nodes_exchange_on_one_host_count_as_mapped():
    def task(index, gossip, step):
        def has_merged():
            step(0.01)
            return gossip.metrics()["dpwa/merges"] >= 5

        eventually(has_merged)
        found = gossip.metrics()
        gossip.barrier()
        return found

    for found in run(2, task, width=20_000, algorithm="symmetric"):
        nbytes = 4 * 5 * 20_000
        assert found["dpwa/merged_bytes"] >= 5 * nbytes
        # The first may come as a stream. One that is broken off is read, and not merged.
        assert found["dpwa/mapped_bytes"] >= found["dpwa/merged_bytes"] - 2 * nbytes
        assert found["dpwa/received_bytes"] <= 2 * nbytes
