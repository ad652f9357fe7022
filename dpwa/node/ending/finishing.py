"""Finish: a node ends its training together with its peers; see `dpwa.policy.finishing`."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

from dpwa.errors import UserError
from dpwa.lifecycle import tell_launcher
from dpwa.message_codes import get_log
from dpwa.node.context import NodeContext
from dpwa.node.ending.endings import Endings
from dpwa.node.ending.finish_run import Averaged, FinishRun
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.gossip_rounds import GossipRounds
from dpwa.policy.finishing import FinishReport
from dpwa.types import JsonObject

log = get_log("dpwa.finish")

SECONDS = 30.0  # the default bound of the averaging
LEAST_WAIT_S = 60.0  # for slower nodes, if no other bound is given


class Finish:
    """Ends the training of a node together with its peers, as often as it is called.

    Args:
        context: of the node.
        rounds: its gossip.
        tx: the thread that asks peers.

    Attributes:
        endings: how the node and its peers end.
    """

    def __init__(self, context: NodeContext, rounds: GossipRounds, tx: TxThread) -> None:
        view = rounds.view
        self._context = context
        self._rounds = rounds
        self._tx = tx
        self._run: FinishRun | None = None  # that is under way
        self._problem = ""  # of the last one
        self.endings = Endings(
            context.name,
            context.peer_table,
            lambda: view.updates,
            lambda: context.pool.version,
            context.runtime,
        )

    def run(
        self,
        averaged: Averaged,
        seconds: float,
        timeout_s: float | None,
        loss: float | None = None,
    ) -> FinishReport:
        """Wait for those who still train, average with all, and leave when nobody needs this node.

        Args:
            averaged: the parameters.
            seconds: longest time to average.
            timeout_s: longest time to wait for peers that still train; `None`: as long as this node
                has trained, and at least `LEAST_WAIT_S`.
            loss: of this node at the end, if it was measured.

        Raises:
            ClosedError: the node was closed.
            UserError: `seconds` or `timeout_s` is no number of at least 0.
        """
        _check_bound("seconds", seconds)
        if timeout_s is not None:
            _check_bound("timeout_s", timeout_s)
        else:
            timeout_s = max(LEAST_WAIT_S, self._trained_s())
        self._rounds.end_training(loss)
        self.endings.rest = averaged.rest
        run = self._run = FinishRun(self._context, self._tx, self.endings, averaged)
        try:
            report = run.run(seconds, timeout_s)
        finally:
            self._run = None
            self.endings.own = replace(self.endings.own, agrees=True, is_over=True)
        run.tell()
        report = replace(report, diverged=self._diverged(report))
        self._problem = report.problem
        tell_launcher(report.problem)
        level = logging.WARNING if report.differing else logging.INFO
        level = logging.ERROR if report.problem else level
        log.log(level, "%s: %s", self._context.name, report)
        return report

    def report(self) -> JsonObject:
        """Describe in plain data how this node ends; nothing while it trains."""
        own, run = self.endings.own, self._run
        if not own.is_finishing:
            return {}
        return {
            "is_over": own.is_over,
            "problem": self._problem,
            "waits_for": [] if run is None else list(run.awaited),
            "rest": dict(self.endings.rest),
        }

    def _diverged(self, report: FinishReport) -> str:
        """Say what is not finite at the end; only distances tell of what nobody checks."""
        after = report.distance_after
        is_finite = after is None or math.isfinite(after)
        return self._rounds.divergence() or ("" if is_finite else "its parameters are not finite")

    def _trained_s(self) -> float:
        began = self._rounds.began_at
        return 0.0 if began is None else self._context.clock.now() - began


def _check_bound(name: str, given: Any) -> None:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not given >= 0.0:
        raise UserError(f"finish: {name} is {given!r}; expected a number of seconds, at least 0")
