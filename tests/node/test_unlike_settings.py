"""Nodes that differ in a setting: both name it and both values, or the table has it as free."""

import json
from contextlib import ExitStack, suppress
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
from support.inside import context_of, threads_of
from support.launched import run_nodes
from support.members import Member, in_lockstep
from support.nodes import config_of, eventually, status_of
from support.partners import partner_of
from support.processes import PROGRAMS
from support.runtimes import Ahead

from dpwa import DpwaConnection
from dpwa.algorithms import Algorithm, Ask, base, register_algorithm
from dpwa.config import load_config
from dpwa.config.comparison import compared, unlike
from dpwa.config.methods import method, methods
from dpwa.config.model import NodeConfig
from dpwa.config.schema import options_model, setting_names
from dpwa.errors import ConfigError
from dpwa.node.fetching.tx_thread import GONE_AFTER_S
from dpwa.node.settings import Settings
from dpwa.transport.link import LinkState
from dpwa.types import StrictModel, Unlike
from dpwa.wire.messages import AskSettings, Fetch, Goodbye, NewsMessage, OtherSettings, pack

W1, W2 = {"name": "w1", "port": 1}, {"name": "w2", "port": 2}
# What an option must be set beside; and for what has no number or word, or is bounded, two values.
BESIDE = {"file": {"path": "edges"}}
VALUES = {
    "nodes": ([W1, W2], [W2, W1]),
    "nodes.name": ([W1, W2], [W1, {**W2, "name": "w3"}]),
    "nodes.group": ([W1, W2], [W1, {**W2, "group": "blue"}]),
    "codec": ("none", "bf16"),
    "statistics": ([], ["*.running_mean"]),
    "lsgd.local_period": (2, 4),
    "lsgd.global_period": (8, 200),
    "star.center": (0, 1),
    "small_world.neighbours": (2, 6),
}
CANDIDATES = (
    *("lsgd", "gossip", "ring", "full", "clock", "loss", "delta", "interpolate", "average", "keep"),
    *("skip", "merge", "none", "linear", "backward", "step", 0.25, 0.75, 3, 8),
)


def every_path():
    for name in setting_names():
        model = NodeConfig if name == "nodes" else options_model(name)
        yield (name,)
        yield from ((name, option) for option in (model.model_fields if model else ()))
    for found in methods():
        yield from ((found.name, option) for option in found.options.model_fields)


MUST_BE_EQUAL = [path for path in every_path() if unlike(*path) is not Unlike.ALLOWED]
MAY_DIFFER = {".".join(path) for path in every_path() if unlike(*path) is Unlike.ALLOWED}


def config_with(path, value):
    found = method(path[0]) if len(path) == 2 else None
    settings = {"nodes": [W1, W2]}
    if unlike(*path) is Unlike.WARNS_IF_AVERAGED:
        settings["algorithm"] = "together"
    if found is not None:
        settings |= {found.kind: found.name, found.name: {**BESIDE.get(found.name, {})}}
        settings[found.name][path[1]] = value
    else:
        settings[path[0]] = value
    return load_config(settings, environ={})


def two_configs(path):
    """Two configurations that differ in one setting only, as far as nodes compare them."""
    key, made = ".".join(path), []
    for value in VALUES.get(key, CANDIDATES):
        with suppress(ConfigError):
            config = config_with(path, value)
            if not made or compared(config) != compared(made[0]):
                made.append(config)
        if len(made) == 2:
            return made
    raise AssertionError(f"{key}: no two values are known")


@pytest.mark.parametrize("path", MUST_BE_EQUAL, ids=".".join)
def test_both_nodes_name_a_setting_that_must_be_equal_and_both_values(path, caplog):
    one, two = two_configs(path)
    key = "nodes" if path[0] == "nodes" else ".".join(path)
    values = compared(one)[key], compared(two)[key]
    assert values[0] != values[1]
    for own, other, (here, there) in ((one, two, values), (two, one, values[::-1])):
        caplog.clear()
        refused = Settings("w1", own).compare("w2", Settings("w2", other).packed)
        expected = f"{key} is {here} here, {there} there"
        if unlike(*path) is Unlike.REFUSES:
            assert expected in refused
        else:
            assert refused == ""
            assert f"differ from the settings of this node: {expected}" in caplog.text
            assert "[DPWA-W087]" in caplog.text


def test_the_table_says_which_settings_may_differ():
    for free in ("fetch_probability", "quarantine_s", "slots", "transport", "seed", "fraction"):
        assert free in MAY_DIFFER
    assert {"nodes.port", "clip.window", "checkpoint.dir", "file.path"} <= MAY_DIFFER
    compared_ones = {".".join(path) for path in MUST_BE_EQUAL}
    for name in (
        "lsgd",
        "elastic",
        "local",
        "noloco",
        "outer",
        "push_sum",
        "small_world",
        "constant",
    ):
        assert {f"{name}.{o}" for o in method(name).options.model_fields} <= compared_ones
    assert {"merge", "interpolation", "topology", "repeat", "loss_window"} <= compared_ones
    assert not MAY_DIFFER & set(compared(config_with(("algorithm",), "together")))


def test_settings_that_one_node_does_not_know_are_not_compared(caplog):
    settings = Settings("w1", config_with(("merge",), "delta"))
    assert settings.compare("w2", pack({**settings.own, "novel": "8"})) == ""
    assert settings.compare("w2", pack({"novel": "8"})) == ""
    assert not caplog.records


def test_nodes_of_a_run_that_others_join_may_know_others_of_them():
    assert "nodes" not in compared(load_config({"nodes": [W1], "join": []}, environ={}))


def test_a_long_list_of_nodes_is_told_by_its_beginning_and_a_digest():
    nodes = [{"name": f"w{i}", "port": i} for i in range(1, 1000)]
    one, two = (load_config({"nodes": n}, environ={}) for n in (nodes, nodes[:-1]))
    texts = compared(one)["nodes"], compared(two)["nodes"]
    assert texts[0] != texts[1]
    assert max(map(len, texts)) < 250


EAGER = {  # algorithms, and options with which they ask in every round
    "symmetric": {},
    "push_sum": {"probability": 1.0},
    "gossip": {},
    "lsgd": {"local_period": 1, "global_period": 1},
    "noloco": {"period": 1},
    "outer": {"period": 1},
    "local": {"period": 1},
    "elastic": {"period": 1},
}
OPTIONS = {
    "noloco": ({"beta": 0.7}, {"beta": 0.6}),
    "push_sum": ({"probability": 1.0}, {"probability": 0.9}),
    "lsgd": ({"global_period": 1}, {"global_period": 2}),
    "elastic": ({"beta": 0.5}, {"beta": 0.25}),
}
ALGORITHMS = [
    ("gossip", "symmetric"),
    ("gossip", "push_sum"),
    ("symmetric", "push_sum"),
    ("noloco", "local"),
    ("elastic", "gossip"),
    ("gossip", "lsgd"),
]


def eager(algorithm, **options):
    """Settings of a node that asks in every round, as far as its algorithm has it ask."""
    options = {**EAGER[algorithm], **options}
    return {"algorithm": algorithm, "loss_window": 1} | ({algorithm: options} if options else {})


# Settings of both nodes, and what is said of them on w1 and on w2.
PAIRS = {name: [eager(name, **o) for o in two] + [f"{name}."] * 2 for name, two in OPTIONS.items()}
PAIRS |= {
    f"{one}-{two}": [
        eager(one),
        eager(two),
        f"algorithm is {one} here, {two} there",
        f"algorithm is {two} here, {one} there",
    ]
    for one, two in ALGORITHMS
}


def play(settings, rounds=6):
    """Rounds of nodes w1, w2, ... with these settings; their parameters, merges and healths."""
    with ExitStack() as stack:
        nodes = [Member(f"w{n}", each, float(n)) for n, each in enumerate(settings, start=1)]
        for node in nodes:
            stack.callback(node.adapter.close)
        for node in nodes:
            eventually(lambda node=node: set(node.node.links.values()) == {LinkState.UP})
        in_lockstep(nodes, rounds, lambda member: member.round(float(member.name[1:])))

        def healths():
            return [[peer["health"] for peer in node.node.report()["peers"]] for node in nodes]

        eventually(lambda: not any("unknown" in each for each in healths()))
        reports = [node.node.report() for node in nodes]
        return [n.x[0].item() for n in nodes], [report["merges"] for report in reports], healths()


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_nodes_of_other_algorithms_or_options_of_them_are_not_merged(kind, transport, caplog):
    config = config_of(2, transport=transport, timeout_ms=1500)
    *settings, on_w1, on_w2 = PAIRS[kind]
    found = play([{**config, **each} for each in settings])
    assert found == ([1.0, 2.0], [0, 0], [["other_settings"], ["other_settings"]])
    for name, said in (("w1", on_w1), ("w2", on_w2)):
        told = [r for r in caplog.messages if r.startswith(f"{name}: peer") and "W007" in r]
        assert len(told) == 1, told
        assert f"has different settings and is not merged: {said}" in told[0]


def test_the_others_go_on_without_the_one_that_differs():
    config = config_of(3, algorithm="local", timeout_ms=1500)
    periods = [{**config, "local": {"period": period}} for period in (1, 2, 1)]
    values, merges, healths = play(periods)
    assert (values[1], merges[1]) == (2.0, 0)
    assert values[0] == values[2] == 2.0 or min(merges[::2]) > 0
    assert healths == [
        ["other_settings", "alive"],
        ["other_settings"] * 2,
        ["alive", "other_settings"],
    ]


def test_finish_says_of_a_peer_that_it_has_other_settings():
    config = config_of(2, algorithm="local", transport="tcp", timeout_ms=300)
    with ExitStack() as stack:
        nodes = [Member(f"w{n}", {**config, "local": {"period": n}}) for n in (1, 2)]
        for node in nodes:
            stack.callback(node.adapter.close)
        for node in nodes:
            eventually(
                lambda node=node: node.node.report()["peers"][0]["health"] == "other_settings"
            )
        found = nodes[0].adapter.finish(timeout_s=1)
        assert found.missed == {"w2": "has different settings and is not merged"}
        nodes[0].adapter.close()
        eventually(lambda: nodes[1].node.report()["peers"][0]["health"] == "finished")
        found = nodes[1].adapter.finish(timeout_s=1)
        assert found.missed == {"w1": "has different settings and is not merged"}


class Reach(StrictModel):
    reach: int = 1


class NamesItsPeer(Algorithm):
    options_model = Reach

    def asks(self, view):
        return Ask(view.peers[0])


def test_a_peer_that_differs_is_not_asked_either_if_an_algorithm_names_it(monkeypatch):
    monkeypatch.setattr(base, "_REGISTRY", deepcopy(base._REGISTRY))
    register_algorithm("names")(NamesItsPeer)
    config = config_of(2, algorithm="names", transport="tcp", timeout_ms=300)
    found = play([{**config, "names": {"reach": reach}} for reach in (1, 2)])
    assert found == ([1.0, 2.0], [0, 0], [["other_settings"], ["other_settings"]])


def test_a_peer_that_differs_is_told_no_news_and_compared_again_after_a_goodbye_that_was_none():
    config = config_of(2, transport="tcp", timeout_ms=300, interpolation="leader")
    time = Ahead()
    with DpwaConnection("w1", config, runtime=time) as connection:
        node = SimpleNamespace(name="w1", node=connection.node)
        values = np.zeros(4, np.float32)

        def health():
            return status_of(connection, "w2")["health"]

        def other():
            partner.heard(AskSettings)
            own = {**context_of(node.node).settings.own, "algorithm": "lsgd"}
            partner.answer(OtherSettings(request=0), pack(own))
            eventually(lambda: health() == "other_settings")

        with partner_of(node) as partner:
            other()
            threads_of(node.node).tx.pass_on_news()
            connection.update_send(values, 0.5)
            connection.update_wait(0.5)
            assert partner.hears((Fetch, NewsMessage), 0.2) is None
            partner.say(Goodbye(request=0, name="w2"))
            eventually(lambda: health() == "finished")
            time.seconds += GONE_AFTER_S
            other()


def test_nodes_that_only_warn_go_on_together(caplog):
    config = config_of(2, timeout_ms=1500)
    found = play([config, {**config, "merge": "interpolate"}])
    assert min(found[1]) > 0
    for name, here, there in (("w1", "delta", "interpolate"), ("w2", "interpolate", "delta")):
        told = [r for r in caplog.messages if r.startswith(f"{name}: the settings of peer")]
        assert len(told) == 1, told
        assert f"merge is {here} here, {there} there" in told[0]


def test_in_real_processes_both_nodes_say_what_differs():
    told = [json.loads(out) for out in run_nodes(PROGRAMS / "unlike.py", 2)]
    for rank, node in enumerate(told):
        said = "\n".join(node["said"])
        here, there = (("1.0", "0.5"), ("0.5", "1.0"))[rank]
        assert (
            f"has different settings and is not merged: local.lr is {here} here, {there} there"
            in said
        )
        here, there = (("average", "keep"), ("keep", "average"))[rank]
        assert f"the settings of this node: buffers is {here} here, {there} there" in said
        assert "AllReduceEA: beta is 0.9 on w1, and 0.5 on w2" in said
        assert (node["merges"], node["weight"]) == (0, [[float(rank)] * 2])
