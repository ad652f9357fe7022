"""Finish: a node ends its training together with its peers. See `dpwa.policy.finishing`.

Nodes send each other their `Ending` (`FinishService`, `FinishListener`). `finish_run.py` does the
work of one call of `finish`. The first call loads that module.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dpwa.errors import UserError
from dpwa.lifecycle import tell_launcher
from dpwa.node.context import NodeContext
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.gossip_rounds import GossipRounds
from dpwa.node.report import EndingReport
from dpwa.node.serving.service import Listener, Reply, Service
from dpwa.policy.finishing import (
    Ending,
    FinishReport,
    Heard,
)
from dpwa.policy.health import IN_WORDS, Health
from dpwa.transport.link import LinkState
from dpwa.types import Frame
from dpwa.wire.messages import Finishing, Status, printable, unpack

if TYPE_CHECKING:
    from dpwa.node.finish_run import FinishRun

log = logging.getLogger("dpwa.finish")

MAX_ROUNDS = 2**31  # no node gets so far, and a peer that claims more must not move this node there


class Endings:
    """The newest `Ending` messages of this node and its peers. Any thread may call any method.

    A peer may forge a message in the name of a different peer. Such a message can only change when
    this node ends, its partner in a round, whether the peer's snapshot is merged again, and, if
    gradients are averaged, which nodes count at the end.
    """

    def __init__(
        self,
        context: NodeContext,
        updates: Callable[[], int],  # returns the number of this node's training steps
    ) -> None:
        self._name, self._peer_table = context.name, context.peer_table
        self._pool, self._clock = context.pool, context.runtime
        self._updates = updates
        self._changed = context.runtime.condition()
        self._own = Ending()
        self._heard: dict[str, Heard] = {}
        # digests of the state that is not averaged, by name; empty: there is none, or unknown
        self.rest: Mapping[str, str] = {}
        # the same digests of the peers that this node asked, by peer
        self.rests: dict[str, Mapping[str, str]] = {}

    @property
    def own(self) -> Ending:
        """This node's `Ending` message. After another step, the node counts as training again."""
        own, updates = self._own, self._updates()
        return own if own.updates == updates else Ending(updates)

    @own.setter
    def own(self, ending: Ending) -> None:
        self._own = replace(ending, updates=self._updates())

    def message(self, request: int = 0) -> Finishing:
        version = self._pool.version  # read first, before a later step can publish
        return Finishing(request=request, name=self._name, version=version, **vars(self.own))

    def receive_ending(self, peer: str, message: Finishing) -> None:
        if not self._peer_table.knows(peer) or message.round_number > MAX_ROUNDS:
            return
        said = message.model_dump(exclude={"type", "request", "name", "version"})
        with self._changed:
            before = self._heard.get(peer)
            heard = Heard.after(before, Ending(**said), self._clock.now())
            self._heard[peer] = heard
            if heard.ending.is_finishing:
                self._peer_table.merged.ends(peer, message.version)
                if before is None or not before.ending.is_finishing:
                    self._peer_table.reconsider(peer)  # its model may have changed
            else:
                self._peer_table.merged.trains(peer)
            self._changed.notify_all()

    def hear_rest(self, peer: str, report: object) -> None:
        match report:
            case {"ending": {"rest": dict(rest)}}:
                told = {str(name): str(digest) for name, digest in rest.items()}
                with self._changed:
                    self.rests[peer] = told
                    self._changed.notify_all()

    def differing(self, peer: str) -> tuple[str, ...]:
        """Return the names of digests that differ between a peer and this node."""
        own, theirs = self.rest, self.rests.get(peer)
        if not theirs:
            return ()
        names = sorted({*own, *theirs})
        return tuple(printable(name) for name in names if own.get(name) != theirs.get(name))

    def ending_of(self, peer: str) -> Heard | None:
        return self._heard.get(peer)

    def others_have_ended(self) -> bool:
        """Return whether all peers have taken their last step. Without peers, return False."""
        said = self.said_by(self._peer_table.names)
        return bool(said) and all(heard and heard.ending.is_finishing for heard in said)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition on the peers' endings holds, and return whether it does."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def said_by(self, peers: Sequence[str]) -> list[Heard | None]:
        return [self._heard.get(peer) for peer in peers]

    def wait_for_more(
        self, peers: Sequence[str], said: list[Heard | None], timeout_s: float
    ) -> None:
        """Wait until one of these peers sends a newer `Ending` message than in `said`."""
        self.wait_for(lambda: self.said_by(peers) != said, timeout_s)


class FinishService(Service):
    """Answers the `Finishing` messages of peers, which contain their `Ending`."""

    handles = (Finishing,)

    def __init__(self, endings: Endings) -> None:
        self._endings = endings

    def handle(self, sender: bytes, message: Finishing, reply: Reply) -> None:  # noqa: ARG002
        """Record a peer's `Ending`, and answer with the `Ending` of this node."""
        self._endings.receive_ending(message.name, message)
        reply(self._endings.message(message.request))


class FinishListener(Listener):
    """Receives the peers' answers, and tells peers that connect later that this node has ended."""

    handles = (Finishing, Status)

    def __init__(self, endings: Endings, tell: Callable[[str, Finishing], None]) -> None:
        self._endings = endings
        self._tell = tell

    def link_changed(self, peer: str, state: LinkState) -> None:
        """On each new connection, tell the peer if this node has taken its last training step."""
        if state is LinkState.UP and self._endings.own.is_finishing:
            self._tell(peer, self._endings.message())

    def receive(self, peer: str, message: Finishing | Status, payload: Frame) -> None:
        if isinstance(message, Status):
            self._endings.hear_rest(peer, unpack(payload))
        else:
            self._endings.receive_ending(peer, message)


@dataclass(frozen=True)
class Averaged:
    """The callbacks with which `finish` averages parameters, and digests of unaveraged state."""

    publish_model: Callable[
        [], bytes | None
    ]  # returns a digest of the values; `None`: no slot is free now
    # merges a peer's parameters with a weight; returns their distance before; `None`: none came
    merge_peer: Callable[[str, float], float | None]
    # other work of the training thread; its argument says whether other nodes still train; returns
    # whether it has changed the parameters
    go_on: Callable[[bool], bool]
    length: Callable[[], float]  # returns the Euclidean length of the parameters
    # digests of the rest of the training state, by name
    rest: Mapping[str, str] = field(default_factory=dict)


SECONDS = 30.0  # the default time limit of the averaging
MIN_WAIT_S = 60.0  # minimum wait for slower nodes, if the caller gives no limit


class Finish:
    """Ends the training of a node together with its peers. It may be called several times."""

    def __init__(self, context: NodeContext, rounds: GossipRounds, tx: TxThread) -> None:
        view = rounds.view
        self._context = context
        self._rounds = rounds
        self._tx = tx
        self._run: FinishRun | None = None  # the call in progress
        self._last: FinishReport | None = None  # if all peers took part, and without a problem
        self._problem = ""  # of the last call, or the reason why the node leaves
        self._has_left = False
        self.endings = Endings(context, lambda: view.updates)

    def run_finish(
        self,
        averaged: Averaged,
        seconds: float,  # maximum time of the averaging
        # maximum wait for peers that still train; `None`: as long as this node has trained, and at
        # least `MIN_WAIT_S`
        timeout_s: float | None,
        loss: float | None = None,
    ) -> FinishReport:
        """Wait for peers that still train, and average all nodes' parameters until the nodes agree.

        Raises `ClosedError` if the node was closed, and `UserError` if a time is not a number of at
        least 0.
        """
        _check_bound("seconds", seconds)
        if timeout_s is not None:
            _check_bound("timeout_s", timeout_s)
        else:
            timeout_s = max(MIN_WAIT_S, self._trained_s())
        self._rounds.end_training(loss)
        self.endings.rest = averaged.rest
        last = self._last
        if last is not None and self._is_as_it_ended(averaged):
            return last
        from dpwa.node.finish_run import FinishRun

        run = self._run = FinishRun(self._context, self._tx, self.endings, averaged)
        try:
            report = run.run_rounds(seconds, timeout_s)
        finally:
            self._run = None
            self.endings.own = replace(self.endings.own, agrees=True, is_over=True)
        run.announce_ending()
        report = replace(report, diverged=self._diverged(report))
        self._problem = report.problem
        self._last = None if report.problem or report.missed else report
        # Peers that have left have failed, but the node that stays behind has not.
        have_left = all(why.startswith(IN_WORDS[Health.LEFT]) for why in report.missed.values())
        is_left_alone = have_left and not report.took_part
        tell_launcher(report.diverged if is_left_alone else report.problem)
        level = logging.WARNING if report.differing else logging.INFO
        level = logging.ERROR if report.problem else level
        code = "" if level == logging.INFO else " [DPWA-W051]"
        log.log(level, "%s: %s%s", self._context.name, report, code)
        return report

    def _is_as_it_ended(self, averaged: Averaged) -> bool:
        """Return whether all nodes have ended and this node is unchanged since the last call."""
        own = self.endings.own
        return (
            own.is_over
            and self.endings.others_have_ended()
            and averaged.publish_model() == own.values
        )

    def follow(self, report: FinishReport) -> None:
        """Record the result of `finish` on another rank of this node's model."""
        self._problem, own = report.problem, self.endings.own
        self.endings.own = replace(own, round_number=1, agrees=True, is_over=True)

    def report(self) -> EndingReport | None:
        """Describe the ending of this node, or return `None` while it trains."""
        own, run = self.endings.own, self._run
        if not (own.is_finishing or self._has_left):
            return None
        waits_for = () if run is None else tuple(run.awaited)
        return EndingReport(own.is_over, self._problem, waits_for, dict(self.endings.rest))

    def note_end(self, error: str) -> str:
        """Note that the node ends with this error. Return the reason, or "" if it has finished."""
        if self.endings.own.is_over:
            return ""
        if not self._has_left:
            self._has_left = True
            why = "without finish" * self._rounds.is_to_finish
            self._problem = f"broken off by {error}" if error else why
        updates = self._rounds.view.updates
        return self._problem + f" at update {updates}" * bool(self._problem and updates)

    def _diverged(self, report: FinishReport) -> str:
        """Describe the values that are not finite at the end. If dpwa does not check the values,
        only the distances show this.
        """
        after = report.distance_after
        is_finite = after is None or math.isfinite(after)
        return self._rounds.divergence() or ("" if is_finite else "its parameters are not finite")

    def _trained_s(self) -> float:
        began = self._rounds.began_at
        return 0.0 if began is None else self._context.runtime.now() - began


def _check_bound(name: str, given: Any) -> None:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not given >= 0.0:
        raise UserError(
            f"finish: {name} must be a number of seconds, at least 0 (got {given!r}) [DPWA-E143]"
        )
