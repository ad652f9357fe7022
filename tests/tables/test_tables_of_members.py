"""Tables of nodes that come and go."""

import numpy as np
from support.nodes import at_once
from support.open_cluster import cluster

from dpwa.tables.node_tables import Tables

ONES = np.ones((10, 4), np.float32)


def table_of(node):
    return Tables(node).matrix(10, 4)


def test_a_newcomer_takes_over_the_tables_of_a_lone_node_whatever_their_names():
    with cluster(initial_state="own") as nodes:
        table = table_of(nodes.add("z"))
        table.add(ONES, sync=True)
        newcomer = table_of(nodes.add("a", "z"))
        newcomer.add(ONES, sync=True)
        assert table.get().sum() == newcomer.get().sum() == 2 * ONES.size


def test_nothing_is_lost_of_two_who_begin_at_the_same_time():
    with cluster(initial_state="own") as nodes:
        started = [nodes.add("z"), nodes.add("a", "z")]
        nodes.agree()
        tables = {}

        def work(node):
            table = tables[node] = table_of(node)
            for _ in range(20):
                table.add(ONES)

        at_once([lambda node=node: work(node) for node in started])
        for table in tables.values():
            table.add(ONES, sync=True)
        assert [table.get().sum() for table in tables.values()] == [42 * ONES.size] * 2
