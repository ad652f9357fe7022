"""What was recorded of a genuine peer and is played back: with keys, and without."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import zmq
from recorder import Recorder, play, play_politely
from support.inside import context_of, threads_of
from support.keys import key_folders
from support.nodes import config_of, eventually, is_connected
from support.ports import free_ports

from dpwa import DpwaConnection
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.node.fetching import tx_thread
from dpwa.tables.node_tables import Tables
from dpwa.transport import sockets
from dpwa.transport.keyring import Keyring
from dpwa.transport.link import LinkState, PeerLink
from dpwa.wire.messages import AskStatus, Goodbye

PLAYERS = [play, play_politely]


class Keyed:
    """A node w1 with keys, and a way to it for w2 that is overheard."""

    def __init__(self, tmp_path, stack):
        self.config = config_of(2, security="curve", transport="tcp")
        self.folders = key_folders(tmp_path, "w1", "w2")
        self.port = self.config["nodes"][0]["port"]
        self.recorder = Recorder(self.port)
        stack.callback(self.recorder.close)
        self.one = stack.enter_context(DpwaConnection("w1", self._config_for("w1")))
        self.heard = []
        authorizer = threads_of(self.one.node).authorizer
        heard = authorizer.mark_heard
        authorizer.mark_heard = lambda descriptor: (
            self.heard.append(descriptor),
            heard(descriptor),
        )

    def _config_for(self, name):
        return {**self.config, "keys": str(self.folders[name].path)}

    def two(self):
        """The node w2, which reaches w1 over the recorder."""
        config = self._config_for("w2")
        nodes = [{**self.config["nodes"][0], "port": self.recorder.port}, config["nodes"][1]]
        return DpwaConnection("w2", {**config, "nodes": nodes})

    @contextlib.contextmanager
    def link(self):
        """A link of w2, and nothing else of it."""
        with zmq.Context() as context:
            keyring = Keyring(self.folders["w2"], "w2")
            link = PeerLink(context, "w1", f"tcp://127.0.0.1:{self.recorder.port}", keyring)
            try:
                eventually(lambda: link.update() and link.state is LinkState.UP)
                yield link
            finally:
                link.close(200)

    def asks(self, link):
        assert link.send_request(AskStatus(request=1))
        eventually(link.receive)

    def counts(self):
        report = self.one.node.report()
        return {**report["connections"], **report["handshakes_refused"]}

    def settled(self):
        """Both counts, once all connections have ended and nothing of them is left to be read."""

        def found():
            before = self.counts(), self.what_counts()
            time.sleep(0.3)
            has_ended = before[0]["ended"] == before[0]["accepted"]
            return before if has_ended and (self.counts(), self.what_counts()) == before else None

        return eventually(found)

    def what_counts(self):
        """What nobody may change who only repeats what others said."""
        report = self.one.node.report()
        shown = {
            key: report[key] for key in ("merges", "snapshots_served", "clock", "transactions")
        }
        shown["has_ended"] = context_of(self.one.node).peer_table.has_left("w2")
        shown["peers"] = [p["name"] for p in report["peers"]]
        shown["news"] = report["news"]
        shown["heard"] = len(self.heard)
        return shown


@pytest.fixture
def keyed(tmp_path, monkeypatch):
    # What libzmq finds repeated it reads no further; the connection ends when its heartbeat fails.
    monkeypatch.setattr(sockets, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(sockets, "HEARTBEAT_TIMEOUT_MS", 200)
    with contextlib.ExitStack() as stack:
        yield Keyed(tmp_path, stack)


def merged(one, two):
    two.update_send(np.full(1000, 2.0), 0.5)
    one.update_send(np.full(1000, 1.0), 0.5)
    return all([one.update_wait(0.5)[0] is not None, two.update_wait(0.5)[0] is not None])


@pytest.mark.parametrize("player", PLAYERS)
def test_with_keys_nothing_of_a_recorded_session_is_heard_over_a_new_connection(keyed, player):
    with keyed.two() as two:
        eventually(lambda: merged(keyed.one, two))
    eventually(
        lambda: context_of(keyed.one.node).peer_table.has_left("w2")
    )  # its farewell is recorded too
    recorded = max(map(bytes, keyed.recorder.sessions), key=len)
    assert len(recorded) > 500
    with keyed.two():
        eventually(lambda: not context_of(keyed.one.node).peer_table.has_left("w2"))
        eventually(lambda: is_connected(keyed.one, "w2"))
        keyed.recorder.cut()
    counts, state = keyed.settled()
    player(keyed.port, recorded)
    eventually(lambda: keyed.counts()["unheard"] == counts["unheard"] + 1)
    assert (
        sum(keyed.counts()[k] - counts[k] for k in ("unknown_key", "protocol", "broken_off")) == 1
    )
    assert keyed.what_counts() == state


@pytest.mark.parametrize("change", ["repeats", "swaps"])
def test_with_keys_a_message_that_is_repeated_or_late_ends_the_connection(keyed, change):
    with keyed.link() as link:
        keyed.asks(link)
        heard, counts = len(keyed.heard), keyed.counts()
        setattr(keyed.recorder, change, 1)
        assert link.send_request(AskStatus(request=2))
        assert link.send_request(AskStatus(request=3))
        eventually(lambda: keyed.counts()["ended"] == counts["ended"] + 1)
        # Of what was repeated, the first; of what changed places, the one that came first.
        assert len(keyed.heard) - heard <= 1
        refusals = ("unknown_key", "protocol")
        assert sum(keyed.counts()[k] - counts[k] for k in refusals) == 1


def test_with_keys_a_farewell_is_worth_nothing_in_another_session_of_the_same_peer(keyed):
    with keyed.link() as link:
        keyed.asks(link)
        before = len(keyed.recorder.sessions[-1])
        assert link.send_request(Goodbye(request=0, name="w2"))
        eventually(lambda: context_of(keyed.one.node).peer_table.has_left("w2"))
    farewell = bytes(keyed.recorder.sessions[-1][before:])
    assert farewell
    with keyed.link() as link:
        keyed.asks(link)
        heard, counts = len(keyed.heard), keyed.counts()
        keyed.recorder.inject(farewell)
        eventually(lambda: keyed.counts()["ended"] == counts["ended"] + 1)
        refusals = ("unknown_key", "protocol")
        assert sum(keyed.counts()[k] - counts[k] for k in refusals) == 1
        assert len(keyed.heard) == heard


# Without keys whatever is repeated is heard, but it must do no harm


class Open:
    """Two members without keys; what w2 says to w1 is recorded."""

    def __init__(self, stack):
        (self.port,) = free_ports(1)
        self.recorder = Recorder(self.port)
        stack.callback(self.recorder.close)
        self._stack = stack
        self.place = f"tcp://127.0.0.1:{self.recorder.port}"
        self.heard = []

    def watch(self, node):
        """Take note of what the node w1 hears."""
        self.node = node
        threads_of(node).authorizer.mark_heard = self.heard.append

    def add(self, name, make=DpwaConnection):
        """A member, which w2 becomes over the recorder."""
        if name == "w1":
            where = {"listen": f"tcp://127.0.0.1:{self.port}", "advertise": self.place, "join": []}
        else:
            where = {"join": [self.place]}
        common = {"transport": "tcp", "timeout_ms": 2000, "seed": 7, "collective_timeout_s": 10.0}
        return self._stack.enter_context(contextlib.closing(make(name, {**common, **where})))

    def agree(self, two):
        for node, peer in ((self.node, "w2"), (two.node, "w1")):
            eventually(lambda n=node, p=peer: p in n.peers and n.links[p] is LinkState.UP)

    def state(self):
        """What no request that is repeated may change."""
        report = self.node.report()
        membership = {key: report["membership"][key] for key in ("members", "view", "components")}
        shown = {key: report[key] for key in ("clock", "version", "merges", "transactions")}
        has_ended = {peer["name"]: peer["health"] == "finished" for peer in report["peers"]}
        return {**shown, **membership, "has_ended": has_ended}

    def settled(self):
        """The state, once it stays as it is for a moment."""

        def found():
            before = self.state()
            time.sleep(0.3)
            return before if self.state() == before else None

        return eventually(found)

    def replay(self, sessions=None):
        """Play all that was recorded to the node; return how many messages of it were heard."""
        heard = len(self.heard)
        for session in sessions or [bytes(session) for session in self.recorder.sessions]:
            play_politely(self.port, session, 0.5)
        return len(self.heard) - heard


@pytest.fixture
def opened():
    with contextlib.ExitStack() as stack:
        yield Open(stack)


@contextlib.contextmanager
def shared_table(*nodes):
    """A table whose shards are with all nodes, and to which each has added three times."""

    def task(own):
        array = own.array(10, np.zeros(10))
        for _ in range(3):
            array.add(np.ones(10))
        own.barrier()
        return array

    with ThreadPoolExecutor(len(nodes)) as pool:
        tables = list(pool.map(Tables, nodes))
        try:
            yield list(pool.map(task, tables))
        finally:
            list(pool.map(Tables.close, tables))


def test_without_keys_a_repeated_session_changes_no_view_and_no_table(opened):
    one = opened.add("w1")
    opened.watch(one.node)
    two = opened.add("w2")
    opened.agree(two)
    with shared_table(one, two) as (array, _):
        eventually(lambda: merged(one, two))
        assert array.get().tolist() == [6.0] * 10
        state = opened.settled()
        assert opened.replay() > 5  # it was heard: what counts here is what it does
        assert opened.settled() == state
        assert array.get().tolist() == [6.0] * 10
        assert eventually(lambda: merged(one, two))


class Training:
    """A node that makes transactions."""

    def __init__(self, name, config):
        torch.manual_seed(len(name))
        self.net = torch.nn.Linear(20, 20)
        self.adapter = DpwaPyTorchAdapter(self.net, name, {**config, "algorithm": "symmetric"})
        self.node = self.adapter._node
        self.close = self.adapter.close

    def step(self):
        self.adapter.update_send(0.5)
        self.adapter.update_wait(0.5)

    def parameters(self):
        return [p.detach().clone() for p in self.net.parameters()]


def test_without_keys_a_repeated_session_makes_no_transaction_and_changes_no_parameter(opened):
    one = opened.add("w1", Training)
    opened.watch(one.node)
    two = opened.add("w2", Training)
    opened.agree(two)

    def trades():
        one.step()
        two.step()
        return one.node.report()["merges"] > 5

    eventually(trades)
    state, parameters = opened.settled(), one.parameters()
    assert opened.replay() > 5
    assert opened.settled() == state
    assert all(torch.equal(a, b) for a, b in zip(parameters, one.parameters(), strict=True))
    merges = state["merges"] + 3
    eventually(lambda: trades() and one.node.report()["merges"] > merges)


def test_without_keys_what_an_earlier_life_of_a_peer_said_does_not_take_the_later_one_away(
    opened, monkeypatch
):
    monkeypatch.setattr(tx_thread, "GONE_AFTER_S", 0.3)
    monkeypatch.setattr(tx_thread, "RENEWAL_S", 0.1)
    monkeypatch.setattr(tx_thread, "IDLE_S", 0.05)
    one = opened.add("w1")
    opened.watch(one.node)
    with contextlib.closing(opened.add("w2")) as two:
        opened.agree(two)
        eventually(lambda: merged(one, two))
    eventually(lambda: "w2" not in one.peers)  # it said farewell, which is recorded too
    recorded = [bytes(session) for session in opened.recorder.sessions]
    two = opened.add("w2")
    opened.agree(two)
    eventually(lambda: merged(one, two))
    state = opened.settled()
    assert opened.replay(recorded) > 5
    # Its name was in the farewell, but its connection is still there: so it is believed again.
    eventually(lambda: opened.settled() == state)
    assert eventually(lambda: merged(one, two))
