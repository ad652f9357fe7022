"""Nodes that go by keys: who is in, who is out, who was thrown out, and what is never shown."""

import contextlib
import logging
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import zmq
from support.inside import context_of, threads_of
from support.keys import key_folders
from support.nodes import config_of, eventually, is_connected, status_of
from support.shared_memory import own_shm
from support.times import SetClock

from dpwa import DpwaConnection
from dpwa.config import load_config
from dpwa.data.shared_memory import SHARED_MEMORY_ROOT
from dpwa.errors import ConfigError, UserError
from dpwa.node.peers import STARTUP_GRACE_S, PeerTable
from dpwa.node.serving.service import Listener, Service
from dpwa.policy.health import Outcome
from dpwa.tables.node_tables import Tables
from dpwa.transport import authenticator
from dpwa.transport.keyring import Keyring
from dpwa.transport.link import LinkState, PeerLink
from dpwa.wire.messages import AskStatus, Goodbye

__all__ = ["own_shm"]

ELEMENTS = 1_000


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(authenticator, "RELOAD_EVERY_S", 0.05)
    monkeypatch.setattr("dpwa.node.fetching.tx_thread.RENEWAL_S", 0.1)
    monkeypatch.setattr("dpwa.node.fetching.tx_thread.IDLE_S", 0.05)
    monkeypatch.setattr("dpwa.node.serving.rx_thread.IDLE_S", 0.05)


class Cluster:
    """Nodes w1, w2, ..., each with a folder of keys of its own, as on machines of their own."""

    def __init__(self, root, count, **settings):
        self.config = config_of(count, security="curve", transport="tcp", **settings)
        self.names = [f"w{index}" for index in range(1, count + 1)]
        self.folders = key_folders(root, *self.names)

    def config_for(self, name):
        return {**self.config, "keys": str(self.folders[name].path)}

    @contextlib.contextmanager
    def running(self, *names):
        with ExitStack() as stack:
            yield [
                stack.enter_context(DpwaConnection(name, self.config_for(name)))
                for name in names or self.names
            ]


@pytest.fixture
def two(tmp_path):
    return Cluster(tmp_path, 2)


def merges(one, two, times=1):
    """Let both publish until the first has merged so often; return what it got last."""
    found = []

    def attempt():
        two.update_send(np.full(ELEMENTS, 2.0), 0.5)
        one.update_send(np.full(ELEMENTS, 1.0), 0.5)
        parameters, _ = one.update_wait(0.5)
        if parameters is not None:
            found.append(np.unique(parameters).tolist())
        return found[times - 1 :]

    return eventually(attempt)[0]


def tries(one, two, times=5):
    """Let both publish so often; return how many merges the first made."""
    got = 0
    for _ in range(times):
        two.update_send(np.full(ELEMENTS, 2.0), 0.5)
        one.update_send(np.full(ELEMENTS, 1.0), 0.5)
        got += one.update_wait(0.5)[0] is not None
    return got


def problem(connection, peer):
    return status_of(connection, peer)["problem"]


@contextlib.contextmanager
def link_of(cluster, name, to):
    """A link of somebody with the key of a node, up."""
    endpoint = load_config(cluster.config_for(name)).node(to).connect_endpoint
    folder = cluster.folders[name]
    with zmq.Context() as context:
        link = PeerLink(context, to, endpoint, Keyring(folder, name))
        try:
            eventually(lambda: link.update() and link.state is LinkState.UP)
            yield link
        finally:
            link.close(200)


# Everything works with keys


@pytest.mark.parametrize("transport", ["auto", "tcp", "shm"])
def test_nodes_with_keys_gossip(tmp_path, own_shm, transport):
    cluster = Cluster(tmp_path, 2)
    cluster.config["transport"] = transport
    with cluster.running() as (one, two):
        assert merges(one, two) == [2.0]
        if transport == "tcp":
            eventually(lambda: two.node.report()["bytes_sent"] > 0)
        else:
            assert two.node.report()["bytes_sent"] == 0


def test_nodes_with_keys_gossip_over_sockets_in_the_file_system(tmp_path):
    cluster = Cluster(tmp_path, 2)
    cluster.config["nodes"] = [
        {"name": name, "endpoint": f"ipc://{tmp_path}/{name}.sock"} for name in cluster.names
    ]
    with cluster.running() as (one, two):
        assert merges(one, two) == [2.0]


def test_collectives_and_tables_work_with_keys(tmp_path):
    cluster = Cluster(tmp_path, 3, collective_timeout_s=20.0)

    def work(connection):
        total, _ = connection.all_reduce(np.full(200_000, 1.0), op="sum")
        with contextlib.closing(Tables(connection)) as tables:
            array = tables.array(10, np.zeros(10))
            array.add(np.ones(10))
            tables.barrier()
            values = array.get()
            tables.barrier()
        return float(np.unique(total).item()), np.unique(values).tolist()

    with cluster.running() as nodes, ThreadPoolExecutor(3) as pool:
        found = [future.result(60) for future in [pool.submit(work, node) for node in nodes]]
    assert found == [(3.0, [3.0])] * 3


def test_shared_memory_of_nodes_with_keys_is_for_their_user_only(tmp_path, own_shm):
    cluster = Cluster(tmp_path, 2)
    cluster.config["transport"] = "shm"
    with cluster.running() as (one, two):
        merges(one, two)
        names = [context_of(node.node).pool.shared.name for node in (one, two)]
        files = [path for name in names for path in (SHARED_MEMORY_ROOT / name).iterdir()]
        assert files
        assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
        assert {oct(path.parent.stat().st_mode & 0o777) for path in files} == {"0o700"}


# Who is out


def test_a_node_without_keys_takes_no_part_and_is_told_why(two):
    plain = {**two.config, "security": "none"}
    with two.running("w1") as (one,), DpwaConnection("w2", plain) as other:
        eventually(lambda: "curve" in problem(other, "w1"))
        eventually(lambda: "curve" in problem(one, "w2"))
        assert tries(one, other) == tries(other, one) == 0


def test_a_key_that_comes_later_lets_its_node_in_without_a_restart(two):
    public = two.folders["w1"].public_key("w2")
    two.folders["w1"].remove("w2")
    with two.running() as (one, other):
        eventually(lambda: problem(other, "w1"))
        two.folders["w1"].allow_key("w2", public)
        eventually(lambda: is_connected(one, "w2") and is_connected(other, "w1"))
        assert problem(one, "w2") == problem(other, "w1") == ""
        assert merges(one, other) == merges(other, one) == [2.0]


def test_a_revoked_node_is_out_while_it_is_connected_and_in_again_with_its_key(two):
    public = two.folders["w1"].public_key("w2")
    with two.running() as (one, other):
        merges(one, other)
        merges(other, one)
        two.folders["w1"].remove("w2")
        eventually(lambda: not is_connected(one, "w2"))
        assert problem(one, "w2") == f"no key of w2 in {two.folders['w1'].allowed}"
        assert is_connected(other, "w1")  # ZeroMQ asks once only
        assert tries(one, other) == 0
        served = one.node.report()["snapshots_served"]
        other.update_send(np.full(ELEMENTS, 2.0), 0.5)
        assert other.update_wait(0.5)[0] is None
        assert one.node.report()["snapshots_served"] == served
        two.folders["w1"].allow_key("w2", public)
        eventually(lambda: is_connected(one, "w2"))
        assert merges(one, other) == merges(other, one) == [2.0]


def test_whoever_relies_on_a_connection_hears_that_it_is_not_used_any_more(two):
    heard = []

    class Ear(Listener):
        def link_changed(self, peer, state):
            heard.append((peer, state))

    class Mute(Service):
        handles = ()

    with two.running() as (one, _):
        eventually(lambda: is_connected(one, "w2"))
        one.node.attach(Mute(), Ear())
        eventually(lambda: heard == [("w2", LinkState.UP)])
        two.folders["w1"].remove("w2")
        eventually(lambda: heard == [("w2", LinkState.UP), ("w2", LinkState.DOWN)])


def test_a_new_key_of_a_peer_is_used_as_soon_as_it_is_known(two):
    with two.running("w1") as (one,):
        with two.running("w2") as (other,):
            merges(one, other)
        two.folders["w2"].secret_file("w2").unlink()
        two.folders["w2"].remove("w2")
        new = two.folders["w2"].create("w2")
        with two.running("w2") as (other,):
            eventually(lambda: "its key is not the key known here" in problem(one, "w2"))
            two.folders["w1"].remove("w2")
            two.folders["w1"].allow_key("w2", new.public)
            eventually(lambda: is_connected(one, "w2") and is_connected(other, "w1"))
            assert merges(one, other) == merges(other, one) == [2.0]


def test_nobody_speaks_in_the_name_of_another_node(tmp_path):
    cluster = Cluster(tmp_path, 3)
    with cluster.running("w1", "w2") as (one, _):
        eventually(lambda: is_connected(one, "w2"))
        with link_of(cluster, "w3", "w1") as link:
            assert link.send_request(Goodbye(request=0, name="w2"))
            assert link.send_request(AskStatus(request=1))
            eventually(link.receive)  # both were read by now
        assert not context_of(one.node).peer_table.has_left("w2")
        with link_of(cluster, "w2", "w1") as link:  # its own it may say
            assert link.send_request(Goodbye(request=0, name="w2"))
            eventually(lambda: context_of(one.node).peer_table.has_left("w2"))


def test_the_name_of_a_joining_peer_says_which_key_it_must_have(tmp_path):
    cluster = Cluster(tmp_path, 3)
    alone = {**cluster.config_for("w1"), "nodes": cluster.config["nodes"][:1]}
    with DpwaConnection("w1", alone) as one, cluster.running("w2") as (other,):
        nodes = {node["name"]: node for node in cluster.config["nodes"]}
        one.node.add_peer("w3", "127.0.0.1", nodes["w2"]["port"])  # it is not
        eventually(lambda: "its key is not the key known here" in problem(one, "w3"))
        one.node.remove_peer("w3")
        one.node.add_peer("w2", "127.0.0.1", nodes["w2"]["port"])
        assert merges(one, other) == [2.0]


# What is refused at the start


def test_a_node_without_a_key_does_not_start(two):
    shutil.rmtree(two.folders["w1"].path)
    with pytest.raises(UserError, match="dpwa keys new w1 --keys"):
        DpwaConnection("w1", two.config_for("w1"))


# Settings


def test_the_folder_of_keys_is_beside_the_file(tmp_path, monkeypatch):
    file = tmp_path / "run.yaml"
    file.write_text("nodes: [{name: w1, port: 45000}]\nsecurity: curve\n")
    assert load_config(file, environ={}).keys == str(tmp_path / "keys")
    over = load_config(file, environ={"DPWA_KEYS": "/somewhere"})
    assert over.keys == "/somewhere"
    monkeypatch.chdir(tmp_path)
    mapping = {"nodes": [{"name": "w1", "port": 45000}], "security": "curve", "keys": "mine"}
    assert load_config(mapping, environ={}).keys == str(tmp_path / "mine")


def test_keys_may_be_in_the_configuration(tmp_path):
    cluster = Cluster(tmp_path, 2)
    public = cluster.folders["w1"].public_key("w2")
    cluster.folders["w1"].remove("w2")
    config = {**cluster.config_for("w1"), "allow": {"w2": public}}
    loaded = load_config(config)
    assert loaded.allow == {"w2": public}
    assert load_config(loaded.to_mapping()) == loaded
    assert hash(load_config(loaded.to_mapping())) == hash(loaded)
    with DpwaConnection("w1", config) as one, cluster.running("w2") as (other,):
        assert merges(one, other) == [2.0]


@pytest.mark.parametrize(
    ("allow", "message"),
    [
        ({"w1": "short"}, "allow.w1: expected a public key of 40 characters"),
        ({"a b": "a" * 40}, "expected 1 to 64 letters"),
        ({"w1": "a" * 40, "w2": "a" * 40}, "expected a different key for every name"),
        (["w1"], "allow: expected a mapping"),
    ],
)
def test_wrong_keys_in_the_configuration_are_told(allow, message):
    with pytest.raises(ConfigError) as caught:
        load_config({"nodes": [{"name": "w1", "port": 45000}], "allow": allow}, environ={})
    assert len(caught.value.problems) == 1
    assert message in caught.value.problems[0]


# What is said, and what is not


@pytest.mark.parametrize(
    ("security", "bind", "count"),
    [("none", "0.0.0.0", 1), ("none", None, 0), ("curve", "0.0.0.0", 0)],
)
def test_an_open_door_is_told_once(tmp_path, caplog, security, bind, count):
    cluster = Cluster(tmp_path, 2)
    config = {**cluster.config_for("w1"), "security": security}
    if bind:
        config["nodes"] = [{**node, "bind": bind} for node in config["nodes"]]
    with DpwaConnection("w1", config):
        told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == count
    if told:
        assert "any process that can connect to tcp://0.0.0.0:" in told[0]
        assert "`security: curve`" in told[0]


@pytest.mark.parametrize(("other", "count"), [("gpu02", 1), ("127.0.0.2", 0)])
def test_a_node_says_that_it_listens_on_loopback_where_others_cannot_connect(caplog, other, count):
    config = config_of(3, transport="tcp")
    config["nodes"][0]["host"], config["nodes"][2]["host"] = "127.0.0.1", other
    with DpwaConnection("w1", config) as connection:
        told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        listens = f"w1: this node listens on {connection.node.endpoint}, so nodes on other"
    assert [said.partition(" machine")[0] for said in told] == count * [listens]


def test_the_health_of_a_peer_is_logged_with_the_reason(caplog):
    clock = SetClock()
    peer_table = PeerTable("w1", clock, random.Random(1))
    peer_table.add_peers({"w2": "tcp://127.0.0.1:1"})
    clock.time = STARTUP_GRACE_S + 1
    peer_table.link_changed("w2", LinkState.DOWN, "no key of w2 in keys/allowed")
    peer_table.record("w2", Outcome.UNREACHABLE)
    assert "peer w2 cannot be reached: no key of w2 in keys/allowed" in caplog.text


def test_no_secret_is_ever_shown(tmp_path, caplog, capfd):
    cluster = Cluster(tmp_path, 2, log_level="debug")
    secrets = [
        cluster.folders[name].key_pair(name).secret.reveal().decode() for name in cluster.names
    ]
    shown = []
    with caplog.at_level(logging.DEBUG, logger="dpwa"), cluster.running() as (one, other):
        merges(one, other)
        cluster.folders["w1"].remove("w2")
        eventually(lambda: problem(one, "w2"))
        for name, node in (("w1", one.node), ("w2", other.node)):
            config = load_config(cluster.config_for(name))
            shown += [config.to_yaml(), repr(config), repr(node.report())]
            shown += [repr(vars(part)) for part in _parts_of(node)]
    shown += [caplog.text, *capfd.readouterr()]
    assert "w2" in caplog.text  # something was logged
    assert not [text for text in shown for secret in secrets if secret in text]


def _parts_of(node):
    authorizer = threads_of(node).authorizer
    return [
        authorizer,
        authorizer.keyring,
        authorizer.keyring.own,
        threads_of(node),
        threads_of(node).rx,
        threads_of(node).tx,
    ]
