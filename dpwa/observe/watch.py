"""Watch monitors all nodes of a run from a process that is not a node.

It asks each node for the records since the node's last answer. Nodes also report their peers, so
one living node is enough to find all nodes, and to learn about nodes that do not answer.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import zmq

from dpwa.clock import Clock, SystemClock
from dpwa.config.endpoints import Seed, ipc_path, split_tcp
from dpwa.errors import ProtocolError
from dpwa.lifecycle import Closeable
from dpwa.observe.events import RunEvent, keep_event
from dpwa.observe.figures import GONE_S, NAMES, OTHER_NAMES
from dpwa.observe.history import OTHER_NODE, SampleHistory
from dpwa.observe.run_view import Followed, HistoryAnswer, RunView, read_answer
from dpwa.runtime import SYSTEM
from dpwa.transport.keyring import Keyring
from dpwa.transport.link import RENEWAL_S, LinkState, PeerLink
from dpwa.transport.sockets import Context
from dpwa.types import Frame
from dpwa.wire.messages import GoAway, decode
from dpwa.wire.watching import AskHistory, HistoryMessage

INTERVAL_S = 1.0
SILENT_S = 2.5  # after this time without an answer, a node counts as silent
TOLD_EVERY_S = 5.0  # time between two requests to a node about a silent node
MOVE_S = 5.0  # minimum time before a silent node is asked at a different address
MAX_NODES = 512
MAX_EVENTS = 2000
MAX_SEEN = 20_000  # events that are remembered, so that each is shown once
MAX_ASKED = 1_000  # unanswered requests about silent nodes
TURN_S = 0.1  # time between two checks of all links, because polling hundreds of sockets costs more
FIRST_TURN_S = 0.02  # the same, until all nodes have answered
FIRST_TURNS = 250  # maximum number of these quick checks
STOP_TIMEOUT_S = 3.0
SAME_EVENT_S = 5.0  # reports by several nodes within this time are about the same event
NO_SKEW_S = 1.0  # clocks of two machines count as equal up to this difference


@dataclass
class _Followed:
    """The data about one node. Access needs the lock of the watch."""

    name: str
    endpoint: str
    began: float
    there_at: float  # time of its last answer, or of the last report that it is alive
    moved_at: float = -math.inf  # when its address changed to this one
    history: SampleHistory = field(default_factory=lambda: SampleHistory(len(NAMES)))
    told: SampleHistory = field(default_factory=lambda: SampleHistory(len(OTHER_NAMES), OTHER_NODE))
    answer: HistoryAnswer | None = None
    answered_at: float | None = None
    problem: str = ""
    link: PeerLink | None = None
    linked_at: float = -math.inf
    asked_at: float = -math.inf
    waits: bool = False  # whether a request to the node is unanswered
    since: float = 0.0
    events_after: int = 0
    is_behind: bool = False  # whether the node has more samples than its last answer could hold
    told_at: float = -math.inf
    ahead_s: float = 0.0  # how far its wall clock is ahead of this machine's

    def silent_s(self, now: float) -> float:
        """Return the seconds since the node's last answer, or 0 while it answers."""
        seconds = now - (self.began if self.answered_at is None else self.answered_at)
        is_out_of_reach = self.answered_at is None and bool(self.problem)
        has_ended = self.answer is not None and self.answer.ended is not None
        return seconds if seconds > SILENT_S or is_out_of_reach or has_ended else 0.0

    def seen(self, now: float) -> Followed:
        """Return the data about the node at this moment."""
        silent_s = self.silent_s(now)
        told = self.problem, self.history, self.told
        return Followed(self.name, self.endpoint, self.answer, silent_s, *told)


class Watch(Closeable):
    """Follows the nodes of a run on a separate thread, until closed.

    Args:
        seeds: nodes to ask first. One living node among them is enough.
        keyring: the keys with which to ask. `None` if nodes have none.
        interval_s: seconds between two requests to the same node.
        clock: time source.
    """

    def __init__(
        self,
        seeds: Iterable[Seed],
        keyring: Keyring | None = None,
        interval_s: float = INTERVAL_S,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._keyring = keyring
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._nodes: dict[str, _Followed] = {}  # by endpoint
        self._names: dict[str, _Followed] = {}  # the same nodes, by name
        self._none_gone_until = -math.inf  # before this time, no node can have been gone for GONE_S
        self._events: deque[RunEvent] = deque(maxlen=MAX_EVENTS)
        self._seen: dict[tuple[str, str, str, int], str] = {}  # the reporter of each event
        self._asked: dict[int, str] = {}  # the silent node of each request, by the request's number
        self._questions = 1
        self._through = ""
        self._has_ended = False
        self._turns = 0
        self._is_ready = False
        self._stop = threading.Event()
        for seed in seeds:
            self._follow(seed.name or seed.endpoint, seed.endpoint)
        self._thread = threading.Thread(target=self._run, name="dpwa-watch", daemon=True)
        self._thread.start()

    def view(self) -> RunView:
        """Return the data about the run at this moment."""
        with self._lock:
            now = self._clock.now()
            nodes = tuple(node.seen(now) for node in self._nodes.values())
            events = sorted(self._events, key=lambda event: event.time)
            return RunView(time.time(), self._through, nodes, tuple(events), self._has_ended)

    def wait_for_answers(self, timeout_s: float) -> RunView:
        """Wait until each node has answered or could not be reached. Return the view.

        Args:
            timeout_s: the maximum time to wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready, timeout_s)
        return self.view()

    def close(self) -> None:
        """Stop following. This is idempotent, and takes at most some seconds."""
        self._stop.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _is_settled(self) -> bool:
        """Return whether each node has sent all its records, or another node has reported on it."""
        if self._turns < 2 or not all(n.answer or n.problem for n in self._nodes.values()):
            return False
        silent = [n for n in self._nodes.values() if n.answer is None and n.name != n.endpoint]
        are_told = not self._through or (
            not self._asked and all(node.told_at > -math.inf for node in silent)
        )
        return are_told and not any(node.is_behind for node in self._nodes.values())

    # The methods below run on the thread of the watch.

    def _run(self) -> None:
        with SYSTEM.zmq_context() as zmq_context:
            zmq_context.max_sockets = 4 * MAX_NODES
            try:
                while not self._stop.wait(self._pause_s()):
                    self._turn(zmq_context)
            finally:
                for node in self._nodes.values():
                    if node.link is not None:
                        node.link.close()

    def _pause_s(self) -> float:
        return TURN_S if self._is_ready or self._turns > FIRST_TURNS else FIRST_TURN_S

    def _turn(self, zmq_context: Context) -> None:
        with self._changed:
            for node in list(self._nodes.values()):
                if self._nodes.get(node.endpoint) is not node:
                    continue  # it was removed, because another entry is the same node
                self._connect(zmq_context, node)
                if node.link is not None:
                    self._look_at(node, node.link)
            self._choose_through()
            self._ask_of_silent()
            self._turns += 1
            self._is_ready = self._is_settled()
            self._changed.notify_all()

    def _connect(self, zmq_context: Context, node: _Followed) -> None:
        """Connect to a node if there is no connection yet, or if the connection is unusable."""
        now = self._clock.now()
        if node.link is not None and not node.link.is_useless:
            return
        if now - node.linked_at < RENEWAL_S:
            return
        node.linked_at, node.waits = now, False
        if node.link is not None:
            node.link.close()
            node.link = None
        name = "" if node.name == node.endpoint else node.name
        try:
            node.link = PeerLink(zmq_context, name, node.endpoint, self._keyring, keeps_unread=True)
        except zmq.ZMQError as error:
            node.problem = str(error.strerror)

    def _look_at(self, node: _Followed, link: PeerLink) -> None:
        now = self._clock.now()
        is_due = now - node.asked_at >= (self._interval_s if not node.waits else SILENT_S)
        is_asked = node.waits or (node.name == self._through and bool(self._asked))
        if link.state is LinkState.UP and not is_due and not is_asked:
            return  # a check costs as much as a request, so it waits for the next request
        link.update()
        if link.problem and link.state is not LinkState.UP:
            node.problem, node.waits = link.problem, False
        while (frames := link.receive()) is not None:
            try:
                self._take(node, frames)
            except ProtocolError as error:
                node.problem, node.waits = str(error), False
        if link.state is LinkState.UP and is_due:
            since, after = node.since, node.events_after
            node.asked_at = now
            node.waits = link.send_request(
                AskHistory(request=1, since=since, events_after=after, of="")
            )

    def _ask_of_silent(self) -> None:
        """Ask one answering node about each silent node, once per `TOLD_EVERY_S` seconds."""
        now, node = self._clock.now(), self._names.get(self._through)
        if node is None or node.link is None:
            return
        for other in self._nodes.values():
            name = other.name if other.name != other.endpoint else ""  # its name is unknown
            if name and other.silent_s(now) and now - other.told_at >= TOLD_EVERY_S:
                other.told_at = now
                if len(self._asked) >= MAX_ASKED:
                    self._asked.clear()
                self._questions += 1
                self._asked[self._questions] = name
                since = max(other.told.last + node.ahead_s, 0.0)
                number = self._questions
                node.link.send_request(
                    AskHistory(request=number, since=since, events_after=0, of=name)
                )

    def _take(self, node: _Followed, frames: list[Frame]) -> None:
        """Handle an answer, or a different message of a node.

        Raises:
            ProtocolError: the message is not a valid answer.
        """
        message, payload = decode(frames)
        if isinstance(message, GoAway):  # the node has too many clients, but will still answer
            return
        if not isinstance(message, HistoryMessage):
            raise ProtocolError("the node sends no history, perhaps because its dpwa is older")
        answer = read_answer(payload)
        if message.request == 1:
            self._take_own(node, answer)
            return
        other = self._names.get(self._asked.pop(message.request, ""))
        if other is not None:
            for row in answer.rows(OTHER_NAMES):
                other.told.add_sample(row[0] - node.ahead_s, row[1:])

    def _take_own(self, node: _Followed, answer: HistoryAnswer) -> None:
        now, rows, before = self._clock.now(), answer.rows(NAMES), node.answer
        namesake = self._names.get(answer.name)
        if namesake is not None and namesake is not node:
            self._require_same(namesake, answer)
            self._drop(namesake)
        is_new = before is None or (answer.started, answer.pid) != (before.started, before.pid)
        if is_new:
            ahead_s = answer.now - time.time()
            node.ahead_s = ahead_s if abs(ahead_s) > NO_SKEW_S else 0.0
        del self._names[node.name]
        node.name, node.answer = answer.name, answer
        self._names[node.name] = node
        node.answered_at = node.there_at = now
        node.problem, node.waits = "", False
        if is_new and before is not None:
            # The request was for records after the last record of the old process. Ask for all.
            node.since, node.events_after, node.asked_at = 0.0, 0, -math.inf
            self._note("restarted", answer.name, "a new process of this node answers")
            return
        for row in rows:
            node.history.add_sample(row[0] - node.ahead_s, row[1:])
        if len(rows):
            node.since = float(rows[-1, 0])
        node.is_behind = len(rows) > 0 and node.since < answer.last and answer.ended is None
        node.asked_at = -math.inf if node.is_behind else node.asked_at
        for event in answer.happened():
            if event.number <= node.events_after:  # a node that ends sends some events again
                continue
            node.events_after = max(node.events_after, event.number)
            self._happened(replace(event, time=event.time - node.ahead_s))
        self._hear_of_others(answer, now)

    def _hear_of_others(self, answer: HistoryAnswer, now: float) -> None:
        told = [(peer.name, peer.endpoint, not peer.is_gone) for peer in answer.peers]
        told += [
            (member.name, member.endpoint, member.status == "alive")
            for member in answer.members
            if member.status in ("alive", "suspect")
        ]
        for _, endpoint, is_there in told:  # all, before a new node may replace one of them
            if is_there and endpoint in self._nodes:
                self._nodes[endpoint].there_at = now
        for name, endpoint, is_there in told:
            self._follow(name, endpoint, is_there=is_there)

    def _require_same(self, namesake: _Followed, answer: HistoryAnswer) -> None:
        """Check that `answer` comes from the node `namesake`, not from another with its name.

        Raises:
            ProtocolError: these are two nodes, and the known node still answers.
        """
        told = namesake.answer
        if told is None or namesake.silent_s(self._clock.now()):
            return
        if (told.started, told.pid, told.host) != (answer.started, answer.pid, answer.host):
            other = f"the node at {namesake.endpoint}"
            raise ProtocolError(
                f"{other} also has the name {answer.name}, but names must be unique"
            )

    def _follow(self, name: str, endpoint: str, *, is_there: bool = True) -> None:
        """Follow a node from now on, unless it is already followed."""
        if endpoint in self._nodes or (split_tcp(endpoint) is None and ipc_path(endpoint) is None):
            return
        now, known = self._clock.now(), self._names.get(name)
        if known is None:
            if len(self._nodes) < MAX_NODES or (is_there and self._drop_longest_gone(now)):
                self._nodes[endpoint] = self._names[name] = _Followed(name, endpoint, now, now)
        elif known.silent_s(now) and now - known.moved_at >= MOVE_S:  # its address has changed
            self._drop(known)
            known.endpoint, known.linked_at, known.moved_at = endpoint, -math.inf, now
            self._nodes[endpoint] = self._names[name] = known

    def _drop_longest_gone(self, now: float) -> bool:
        """Stop following the node with the longest absence. Return `False` if no node is gone."""
        if now < self._none_gone_until:  # no node can be gone long enough yet
            return False
        longest = min(self._nodes.values(), key=lambda node: node.there_at)
        if now - longest.there_at < GONE_S:
            self._none_gone_until = longest.there_at + GONE_S
            return False
        self._drop(longest)
        return True

    def _drop(self, node: _Followed | None) -> None:
        """Stop following a node at its current address."""
        if node is not None:
            del self._nodes[node.endpoint], self._names[node.name]
            if node.link is not None:
                node.link.close()
                node.link = None

    def _choose_through(self) -> None:
        """Choose the node that reports on other nodes. If it is silent, choose another node."""
        now = self._clock.now()
        answering = [n.name for n in self._nodes.values() if n.answer and not n.silent_s(now)]
        if self._through in answering:
            return
        self._asked.clear()
        before, self._through = self._through, answering[0] if answering else ""
        if self._through:
            self._has_ended = False
        if not before:
            return
        last = self._names.get(before)
        end = last.answer.end if last is not None and last.answer is not None else ""
        if self._through:
            text = f"{self._through} reports on the others now"
        else:
            self._has_ended = bool(end)
            text = "the run has ended" if end else "no other node answers"
        self._note(end or "silent", before, text)

    def _happened(self, event: RunEvent) -> None:
        """Keep an event, unless another node has just reported the same event."""
        kind, about = event.kind, event.about
        by = event.node if kind == "refused" else ""  # refusals by two nodes are two events
        moment = round(event.time / SAME_EVENT_S)
        near = moment - 1, moment, moment + 1
        reporters = (self._seen.get((kind, about, by, at), event.node) for at in near)
        if any(reporter != event.node for reporter in reporters):
            return
        keep_event(self._events, event)
        self._seen[kind, about, by, moment] = event.node
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]

    def _note(self, kind: str, about: str, text: str) -> None:
        self._events.append(RunEvent(time.time(), "", kind, about, text))
