"""What collectives exchange is counted: by node and by peer, and as what it came."""

import numpy as np
import pytest
from support.collective_nodes import Nodes, is_settled
from support.nodes import config_of, eventually

CALLS = 7
COUNTED = ("sent_bytes", "received_bytes", "mapped_bytes", "merged_bytes")
SIZES = [300, 250_000]  # of float32; the first travels along with the calls


def counted(node):
    metrics = node.metrics()
    return np.array([metrics[f"dpwa/{name}"] for name in COUNTED])


def of_peers(node):
    peers = node.node.condition().peers
    return np.array([[p.bytes_sent, p.bytes_received, p.bytes_mapped] for p in peers]).sum(axis=0)


def exchanged(transport, count, task):
    """Return what `CALLS` calls of all nodes have added to the counters of all, and of peers."""
    config = config_of(count, transport=transport)
    nodes = Nodes(config, [f"w{index + 1}" for index in range(count)])
    try:
        # Until here, a node may not have mapped the memory of the others.
        nodes.each(lambda node: [task(node) for _ in range(2)] and node.barrier())
        eventually(lambda: is_settled(nodes))
        before = nodes.each(lambda node: (counted(node), of_peers(node)))
        nodes.each(lambda node: [task(node) for _ in range(CALLS)] and node.barrier())
        after = nodes.each(lambda node: (counted(node), of_peers(node)))
        grown = [
            [now - was for now, was in zip(after[n], before[n], strict=True)] for n in nodes.names
        ]
        return [sum(row) for row in zip(*grown, strict=True)]
    finally:
        nodes.close()


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_every_byte_of_a_reduction_is_counted_once(transport, count, elements):
    in_all, of_all_peers = exchanged(
        transport, count, lambda node: node.all_reduce(np.ones(elements, np.float32))
    )
    # By shards, (n-1)/n of a value comes in to be reduced, and as much of the result. A small value
    # goes to everybody.
    times = 2 * (count - 1) if elements == SIZES[1] else count * (count - 1)
    taken = CALLS * times * 4 * elements
    streamed, mapped = (0, taken) if transport == "auto" else (taken, 0)
    assert in_all.tolist() == [streamed, streamed, mapped, taken]
    assert of_all_peers.tolist() == [streamed, streamed, mapped]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_so_are_objects_and_broadcasts(transport):
    def task(node):
        node.all_gather(bytes(20_000))
        node.broadcast(np.ones(50_000), "w2")

    in_all, _ = exchanged(transport, 3, task)
    gathered, broadcast = 3 * 2 * 20_000, 2 * 400_000
    taken = in_all[3]
    # A packed object has a header; shards of a broadcast go from the root by way of their owners.
    assert CALLS * (gathered + broadcast) <= taken <= CALLS * (gathered + 2 * broadcast)
    assert in_all[2] == (taken if transport == "auto" else 0)
    assert in_all[0] == in_all[1] == (0 if transport == "auto" else taken)
