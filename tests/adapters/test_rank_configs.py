"""The nodes that have the shards of one rank."""

from support.nodes import config_of

from dpwa.adapters.ranks.shards import rank_config_of_members
from dpwa.config import load_config
from dpwa.observe.prometheus import ports_of


def test_every_rank_of_every_member_has_a_port_for_its_metrics():
    nodes = [{"name": f"w{n}", "host": "127.0.0.1", "port": 20_000 + 10 * n} for n in range(3)]
    config = load_config({**config_of(1), "nodes": nodes, "metrics": {"port": 9100}})
    configs = [rank_config_of_members(config, rank, 2, 1) for rank in range(2)]
    ports = [ports_of(config, f"w{n}") for config in configs for n in range(3)]
    assert ports == [(9100 + index,) for index in range(6)]
    without = load_config({**config_of(1), "nodes": nodes})
    assert rank_config_of_members(without, 1, 2, 1).metrics.port is None
