"""Watch follows all nodes of a run from outside, through any living node.

It asks each node for its records since the last answer. Nodes report others, so one living node is
enough to find all. A different node reports about a node that does not answer.
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
SILENT_S = 2.5  # without an answer
TOLD_EVERY_S = 5.0  # of a node that does not answer
MOVE_S = 5.0  # from one address of a node that does not answer to the next
MAX_NODES = 512
MAX_EVENTS = 2000
MAX_SEEN = 20_000  # events that were taken in, so that each is shown once
MAX_ASKED = 1_000  # questions about others that are not answered yet
TURN_S = 0.1  # links are looked at so often; to poll hundreds of sockets would cost more
FIRST_TURN_S = 0.02  # likewise, until all have answered
FIRST_TURNS = 250  # that are so quick, at most
STOP_TIMEOUT_S = 3.0
SAME_EVENT_S = 5.0  # within which several nodes tell of the same
NO_SKEW_S = 1.0  # of two clocks that are taken for equal


@dataclass
class _Followed:
    """The knowledge of one node, used under the lock."""

    name: str
    endpoint: str
    began: float
    there_at: float  # when it has answered, or somebody has told that it is there
    moved_at: float = -math.inf  # to this address from another one
    history: SampleHistory = field(default_factory=lambda: SampleHistory(len(NAMES)))
    told: SampleHistory = field(default_factory=lambda: SampleHistory(len(OTHER_NAMES), OTHER_NODE))
    answer: HistoryAnswer | None = None
    answered_at: float | None = None
    problem: str = ""
    link: PeerLink | None = None
    linked_at: float = -math.inf
    asked_at: float = -math.inf
    waits: bool = False  # for an answer
    since: float = 0.0
    events_after: int = 0
    is_behind: bool = False  # there are more samples than it could tell at once
    told_at: float = -math.inf
    ahead_s: float = 0.0  # by which its wall clock is ahead of this machine's

    def silent_s(self, now: float) -> float:
        """Return for how long it has not answered, or 0 while it answers."""
        seconds = now - (self.began if self.answered_at is None else self.answered_at)
        is_out_of_reach = self.answered_at is None and bool(self.problem)
        has_ended = self.answer is not None and self.answer.ended is not None
        return seconds if seconds > SILENT_S or is_out_of_reach or has_ended else 0.0

    def seen(self, now: float) -> Followed:
        """Return the current knowledge of the node."""
        silent_s = self.silent_s(now)
        told = self.problem, self.history, self.told
        return Followed(self.name, self.endpoint, self.answer, silent_s, *told)


class Watch(Closeable):
    """Follows the nodes of a run on a separate thread, until closed.

    Args:
        seeds: nodes to begin with, of which one living node is enough.
        keyring: the keys with which to ask. `None` if nodes have none.
        interval_s: seconds from one question to a node to the next.
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
        self._names: dict[str, _Followed] = {}  # the same ones, by name
        self._none_gone_until = -math.inf  # when the one that was there longest ago is gone
        self._events: deque[RunEvent] = deque(maxlen=MAX_EVENTS)
        self._seen: dict[tuple[str, str, str, int], str] = {}  # events, when, and who told
        self._asked: dict[int, str] = {}  # of whom, by the number of the question
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
        """Return the current knowledge of the run."""
        with self._lock:
            now = self._clock.now()
            nodes = tuple(node.seen(now) for node in self._nodes.values())
            events = sorted(self._events, key=lambda event: event.time)
            return RunView(time.time(), self._through, nodes, tuple(events), self._has_ended)

    def wait_for_answers(self, timeout_s: float) -> RunView:
        """Wait until all nodes have answered, or could not be reached. Return the view.

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
        """Whether all nodes have sent all their records, or others have reported about them."""
        if self._turns < 2 or not all(n.answer or n.problem for n in self._nodes.values()):
            return False
        silent = [n for n in self._nodes.values() if n.answer is None and n.name != n.endpoint]
        are_told = not self._through or (
            not self._asked and all(node.told_at > -math.inf for node in silent)
        )
        return are_told and not any(node.is_behind for node in self._nodes.values())

    # On the thread of the watch

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
                    continue  # another one is it, as it turned out
                self._connect(zmq_context, node)
                if node.link is not None:
                    self._look_at(node, node.link)
            self._choose_through()
            self._ask_of_silent()
            self._turns += 1
            self._is_ready = self._is_settled()
            self._changed.notify_all()

    def _connect(self, zmq_context: Context, node: _Followed) -> None:
        """Make a link to a node that has none, or whose link is useless."""
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
            return  # to look costs as much as to ask, and is done with the next question
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
        """Ask the reporting node about those that do not answer, each from time to time."""
        now, node = self._clock.now(), self._names.get(self._through)
        if node is None or node.link is None:
            return
        for other in self._nodes.values():
            name = other.name if other.name != other.endpoint else ""  # nobody has told it yet
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
            ProtocolError: no node should send this.
        """
        message, payload = decode(frames)
        if isinstance(message, GoAway):  # it has many clients, and answers all the same
            return
        if not isinstance(message, HistoryMessage):
            raise ProtocolError("it does not send its history; its dpwa may be older")
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
            # It was asked for what came after the last of another process: ask for all, at once.
            node.since, node.events_after, node.asked_at = 0.0, 0, -math.inf
            self._note("restarted", answer.name, "another process of this node answers")
            return
        for row in rows:
            node.history.add_sample(row[0] - node.ahead_s, row[1:])
        if len(rows):
            node.since = float(rows[-1, 0])
        node.is_behind = len(rows) > 0 and node.since < answer.last and answer.ended is None
        node.asked_at = -math.inf if node.is_behind else node.asked_at
        for event in answer.happened():
            if event.number <= node.events_after:  # a node that ends tells some of them again
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
        for _, endpoint, is_there in told:  # all of them, before one makes room for another
            if is_there and endpoint in self._nodes:
                self._nodes[endpoint].there_at = now
        for name, endpoint, is_there in told:
            self._follow(name, endpoint, is_there=is_there)

    def _require_same(self, namesake: _Followed, answer: HistoryAnswer) -> None:
        """Tell two nodes of one name from one node at two addresses.

        Raises:
            ProtocolError: they are two, and the other one answers.
        """
        told = namesake.answer
        if told is None or namesake.silent_s(self._clock.now()):
            return
        if (told.started, told.pid, told.host) != (answer.started, answer.pid, answer.host):
            other = f"the node at {namesake.endpoint}"
            raise ProtocolError(f"this process answers as {answer.name}, and so does {other}")

    def _follow(self, name: str, endpoint: str, *, is_there: bool = True) -> None:
        """Follow a node from now on, unless that is so already."""
        if endpoint in self._nodes or (split_tcp(endpoint) is None and ipc_path(endpoint) is None):
            return
        now, known = self._clock.now(), self._names.get(name)
        if known is None:
            if len(self._nodes) < MAX_NODES or (is_there and self._drop_longest_gone(now)):
                self._nodes[endpoint] = self._names[name] = _Followed(name, endpoint, now, now)
        elif known.silent_s(now) and now - known.moved_at >= MOVE_S:  # it is back, elsewhere
            self._drop(known)
            known.endpoint, known.linked_at, known.moved_at = endpoint, -math.inf, now
            self._nodes[endpoint] = self._names[name] = known

    def _drop_longest_gone(self, now: float) -> bool:
        """Stop following the node that is gone longest. Return whether there is one."""
        if now < self._none_gone_until:  # asked for each node that there is no room for
            return False
        longest = min(self._nodes.values(), key=lambda node: node.there_at)
        if now - longest.there_at < GONE_S:
            self._none_gone_until = longest.there_at + GONE_S
            return False
        self._drop(longest)
        return True

    def _drop(self, node: _Followed | None) -> None:
        """Follow a node no more at the address that it has."""
        if node is not None:
            del self._nodes[node.endpoint], self._names[node.name]
            if node.link is not None:
                node.link.close()
                node.link = None

    def _choose_through(self) -> None:
        """Choose one node to report about others, and a different one as soon as it is silent."""
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
            text = f"reading through {self._through} now"
        else:
            self._has_ended = bool(end)
            text = "the run has ended" if end else "nor does any other node answer"
        self._note(end or "silent", before, text)

    def _happened(self, event: RunEvent) -> None:
        """Keep an event, unless a different node has just reported the same one."""
        kind, about = event.kind, event.about
        by = event.node if kind == "refused" else ""  # who refuses is told, each
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
