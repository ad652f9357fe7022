"""Dashboards of real runs and of runs that are told by hand, and browsers to look at them."""

import math
import re
import signal
import threading
import time
from contextlib import contextmanager

from dpwa.node.report import PeerReport
from dpwa.observe.dashboard import server
from dpwa.observe.dashboard.server import Feed
from dpwa.observe.events import RunEvent
from dpwa.observe.figures import INDEX, NAMES
from dpwa.observe.history import OTHER_NODE, SampleHistory
from dpwa.observe.run_view import Followed, HistoryAnswer, RunView
from support.processes import start

TIMEOUT_S = 20
LOOPBACK = "127.0.0.1"


@contextmanager
def dashboard(*options, port=0):
    """Run `dpwa dashboard`; yields its address, and a list for how it has ended."""
    process, ended = start("dpwa_command.py", "dashboard", *options, "--port", port), []
    try:
        yield re.search(r"http://\S+", process.stdout.readline())[0], ended
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        ended += [process.returncode, errors]


@contextmanager
def served(view, token=""):
    """Serve the dashboard of a run that is told by a function; yields its address."""
    found = server.Server(server.app_of(Feed(view), LOOPBACK, token))
    with server.listen(LOOPBACK, 0) as listening:
        thread = threading.Thread(target=found.run, args=([listening],))
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{listening.getsockname()[1]}/"
        finally:
            found.should_exit = True
            thread.join(TIMEOUT_S)


class ToldRun:
    """A run that is told by hand; its time goes on by itself.

    The second node is slow, and the third has not answered for a while.
    """

    def __init__(self, names, past_s=60):
        self.names = names
        self.histories = {name: SampleHistory(len(NAMES)) for name in names}
        self.began = time.time() - past_s
        self.told = 0

    def view(self):
        now = time.time()
        while self.began + self.told <= now:
            self._go_on()
        nodes = tuple(
            Followed(
                name,
                f"tcp://h:{port}",
                self._answer(name, port),
                30.0 if port == 3 else 0.0,
                "",
                self.histories[name],
                SampleHistory(4, OTHER_NODE),
            )
            for port, name in enumerate(self.names, 1)
        )
        events = tuple(
            RunEvent(self.began + i, self.names[0], "joined", name, f"as {name}")
            for i, name in enumerate(self.names)
        )
        return RunView(now, self.names[0], nodes, events)

    def _go_on(self):
        self.told += 1
        for number, name in enumerate(self.names, 1):
            speed = 1.0 if number == 2 else 5.0
            figures = {
                "steps": speed * self.told,
                "merges": speed * self.told,
                "train_s": 0.7 * self.told,
                "publish_s": 0.05 * self.told,
                "wait_s": 0.2 * self.told,
                "merge_s": 0.05 * self.told,
                "staleness_sum": 2.0 * self.told,
                "received_bytes": 1e6 * self.told,
                "clock": speed * self.told,
                "loss": 0.1 + 2.0 * math.exp(-self.told / (90 + number)) + 0.01 * (self.told % 3),
                "consensus_distance": 0.5 * math.exp(-self.told / 200) + 0.01 * (number % 5),
            }
            values = [math.nan] * len(NAMES)
            for figure, value in figures.items():
                values[INDEX[figure]] = value
            if number != 3 or self.told < 30:
                self.histories[name].add_sample(self.began + self.told - 1, values)

    def _answer(self, name, port):
        peers = tuple(self._peer(other, (port + i) % 17) for i, other in enumerate(self.names))
        # Unchecked: the names are none that a node can have, and still must do no harm.
        return HistoryAnswer.model_construct(
            schema_version=1,
            name=name,
            endpoint=f"tcp://h:{port}",
            host="host",
            pid=port,
            algorithm="gossip",
            topology="random",
            group="",
            started=self.began,
            now=time.time(),
            last=0.0,
            figures=(),
            samples=b"",
            events=(),
            peers=tuple(peer for peer in peers if peer.name != name),
            members=(),
        )

    @staticmethod
    def _peer(name, merged_s):
        return PeerReport(
            name=name,
            endpoint="tcp://h:1",
            health="alive",
            quarantined=False,
            score=900,
            merges=12,
            merged_s=float(merged_s),
            staleness=1.5,
            bytes_received=1_000_000,
            bytes_sent=2_000,
            latency_ms=0.4,
            bandwidth_mbps=900.0,
            heard_s=0.5,
        )
