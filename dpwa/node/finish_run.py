"""FinishRun: averages the parameters of nodes that take no more steps, in one `finish` call."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from dpwa.algorithms import algorithm
from dpwa.node.context import NodeContext
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.finish import Averaged, Endings
from dpwa.policy.finishing import (
    MAX_PEERS_READ,
    SILENT_AFTER_S,
    Agreement,
    Ending,
    FinishReport,
    digest_of,
)
from dpwa.policy.health import IN_WORDS, Health
from dpwa.transport.link import LinkState
from dpwa.wire.messages import AskStatus

log = logging.getLogger("dpwa.finish")

FIRST_LOOK_S = 1.0  # time for connections that are being made
TOLD_EVERY_S = 0.25  # between two messages with this node's ending
TOLD_PER_PEER_S = 0.01  # with many peers, messages are sent less often
PAUSE_S = 0.02
IDLE_PAUSE_S = 0.1  # when there is nothing to do except to wait
HEARD_BY_ALL_S = 0.25  # until all nodes know that a peer has taken its last step
PATIENCE_S = 1.0  # wait for peers that should be in the same round, and are not
MAX_PEERS_COMPARED = 128  # with more peers, the rest of the state is not compared
ANSWER_S = 1.0  # maximum wait for the peers' digests of the rest of their state
MAX_FAILURES = 3  # in a row, before the averaging continues without the peer
SAID_AFTER_S = 10.0  # until the first message that names the awaited peers
SAID_EVERY_S = 60.0  # between later messages


class FinishRun:
    """One call of `finish`: waits for peers that train, and averages parameters in rounds."""

    def __init__(
        self, context: NodeContext, tx: TxThread, endings: Endings, averaged: Averaged
    ) -> None:
        self._name = context.name
        self._peer_table = context.peer_table
        self._clock = context.runtime
        self._tx = tx
        self._endings = endings
        self._averaged = averaged
        self._rng = context.rng("finish")
        # With averaged gradients, a node with fewer steps only has an older state of the training.
        self._only_furthest = algorithm(context.config.algorithm).averages_gradients
        self.awaited: Sequence[str] = ()  # peers that still train, or may still train
        self._began = self._told_at = context.runtime.now()
        self._says_at = self._began + SAID_AFTER_S
        self._end = math.inf
        self._agreement = Agreement()
        self._among: set[str] = set()  # peers of the agreement
        self._known: set[str] = set()  # peers that were present last
        self._grew_at = -math.inf  # time when a peer joined them
        self._seen: dict[str, None] = {}  # all peers so far, in order
        self._read: set[str] = set()  # the peers whose parameters were averaged
        self._present_at = -math.inf  # time when a peer was present last
        self._announced = {0}  # digests of the nodes of each round in which this node was
        self._failures: Counter[str] = Counter()
        self._distances: list[float] = []
        self._rounds = 0
        self._last_round = 0  # number of the last round in which a peer was read
        self._published: bytes | None = None  # digest of the parameters, until they change
        self._is_apart = False  # whether this node gave up the last round, as peers were in another
        self._apart_since: float | None = None  # time since when peers are in a different round

    def run_rounds(self, seconds: float, timeout_s: float) -> FinishReport:
        """Average parameters with the peers until all parameters agree, or until the time limit."""
        met_at, waits_until = None, self._began + timeout_s
        self._tx.connect(needs_all=True)
        self._peer_table.reconsider(*self._peer_table.names)
        own = self._endings.own
        self._endings.own = replace(own, among=0, has_read=0, agrees=False, is_over=False)
        while True:
            began = self._clock.now()
            self._seen.update(dict.fromkeys(self._peer_table.names))
            awaited = self.awaited = self._awaited() if began < waits_until else []
            if awaited:
                self._say_whom(awaited, waits_until - began)
            elif met_at is None:
                met_at = began
            self._end = (waits_until if met_at is None else met_at) + seconds
            present = self._present()
            self._average(present)
            if self._averaged.go_on(bool(awaited)):
                self._changed()
            agree = not self._may_reconnect(present) and self._all_agree(present)
            now = self._clock.now()
            if (agree and not awaited) or now >= self._end:
                break
            if self._is_apart or self._has_grown(now):
                self._rest(PAUSE_S)  # it is too early to follow a peer into its round
            else:
                self._pause(IDLE_PAUSE_S if agree else max(PAUSE_S, now - began))
        self._publish()  # a peer that comes later can read the last parameters of this node
        own = self._endings.own
        self._endings.own = replace(own, values=self._published or own.values)
        return self._report(met_at)

    def announce_ending(self) -> None:
        self._told_at = self._clock.now()
        message = self._endings.message()
        for peer in self._peer_table.names:
            self._tx.send_message(peer, message, connects=False)

    # Which peers are present

    def _lives(self, peer: str) -> bool:
        heard = self._endings.ending_of(peer)
        return (
            heard is not None
            and not heard.is_silent(self._clock.now())
            and not self._peer_table.has_left(peer)
            and self._tx.reaches(peer)
        )

    def _is_expected(self, peer: str) -> bool:
        """Return whether a peer may be running, although it sent no message during this call."""
        heard, state = self._endings.ending_of(peer), self._tx.state_of(peer)
        if self._peer_table.has_left(peer):
            return False
        if self._peer_table.may_still_start(peer):  # its message may precede this node's connection
            return True
        if heard is not None and heard.at >= self._began:
            return False
        elapsed_s = self._clock.now() - self._began
        longest_s = {LinkState.UP: SILENT_AFTER_S, LinkState.DOWN: 0.0}
        return elapsed_s < longest_s.get(state, FIRST_LOOK_S)

    def _awaited(self) -> list[str]:
        """Return the peers that train or may train, without dead and idle peers."""
        mergeable, now = self._peer_table.mergeable, self._clock.now()
        awaited = []
        for peer in self._peer_table.names:
            heard = self._endings.ending_of(peer)
            trains = (
                heard is not None
                and self._lives(peer)
                and not heard.ending.is_finishing
                and not heard.is_idle(now)
            )
            if peer in mergeable and (trains or self._is_expected(peer)):
                awaited.append(peer)
        return awaited

    def _present(self) -> list[str]:
        mergeable = self._peer_table.mergeable
        return [
            peer
            for peer in self._peer_table.names
            if peer in mergeable
            and self._failures[peer] < MAX_FAILURES
            and self._lives(peer)
            and self._ending_of(peer).is_finishing
        ]

    def _may_reconnect(self, present: Sequence[str]) -> bool:
        """Return whether all peers were lost just now, for example by a pause of this process."""
        now = self._clock.now()
        if present:
            self._present_at = now
        is_early = now - self._present_at < FIRST_LOOK_S
        lost = (p for p in self._read if not self._peer_table.has_left(p))
        return is_early and not present and any(not self._ending_of(p).is_over for p in lost)

    def _ending_of(self, peer: str) -> Ending:
        heard = self._endings.ending_of(peer)
        return Ending() if heard is None else heard.ending

    def _all_agree(self, present: Sequence[str]) -> bool:
        """Return whether this node and all present peers have found that the parameters agree."""
        if not present:
            return True
        endings = [self._ending_of(peer) for peer in present]
        own_agrees = self._agreement.is_reached and self._among == set(present)
        return own_agrees and all(ending.agrees or ending.is_over for ending in endings)

    # Averaging

    def _average(self, present: Sequence[str]) -> None:
        """Publish a snapshot, and merge the present peers' snapshots of the same round."""
        self._publish()
        if self._published is None:
            return  # readers hold all slots
        own = self._endings.own
        if self._all_agree(present):
            self._is_apart, self._apart_since = False, None
        elif not self._is_growing(present):
            self._take_round(own, present)
        if self._endings.own.round_number == 0:
            self._announce(1, 0)

    def _publish(self) -> None:
        if self._published is None:
            self._published = self._averaged.publish_model()

    def _take_round(self, own: Ending, present: Sequence[str]) -> None:
        """Read the snapshots of all peers, if they are in the same round."""
        number, among = self._next_number(own, present), digest_of([self._name, *present])
        self._announce(number, among)
        least = self._least_updates(present)
        drawn = self._rng.sample(list(present), len(present))
        drawn.sort(key=lambda peer: self._ending_of(peer).updates < least)
        peers = drawn[:MAX_PEERS_READ]
        self._is_apart = not self._meet(peers, number, among)
        if self._is_apart:
            return
        began = self._clock.now()
        measured = self._read_all(peers, least)
        reading_s = self._clock.now() - began
        self._judge(present, measured)
        self._endings.own = replace(
            self._endings.own, has_read=number, agrees=self._agreement.is_reached
        )
        self.announce_ending()
        # The published snapshot stays as it is until all peers have read it.
        self._wait(
            present,
            lambda ending: ending.has_read >= number or ending.round_number > number,
            max(PATIENCE_S, reading_s),
        )

    def _least_updates(self, present: Sequence[str]) -> int:
        """Return the number of updates below which a node's parameters are left out of the mean."""
        endings = [self._endings.own, *map(self._ending_of, present)]
        return max(ending.updates for ending in endings) if self._only_furthest else 0

    def _is_growing(self, present: Sequence[str]) -> bool:
        """Return whether a peer joined the averaging too recently to be known to all peers."""
        if not set(present) <= self._known:
            self._grew_at = self._clock.now()
        self._known = set(present)
        return self._has_grown(self._clock.now())

    def _has_grown(self, now: float) -> bool:
        return now - self._grew_at < HEARD_BY_ALL_S

    def _next_number(self, own: Ending, present: Sequence[str]) -> int:
        """Return the number of this node's next round, at least the current round of the peers.

        A node must not begin with a round that the other nodes have already ended without it.
        """
        endings = [self._ending_of(peer) for peer in present]
        is_first = own.has_read == 0
        begun = [e.round_number + (is_first and e.has_read >= e.round_number) for e in endings]
        return max(own.round_number + 1, *begun)

    def _announce(self, number: int, among: int) -> None:
        values = self._published or b""
        self._announced.add(among)
        own = replace(self._endings.own, round_number=number, among=among, values=values)
        self._endings.own = own
        self.announce_ending()

    def _meet(self, peers: Sequence[str], number: int, among: int) -> bool:
        """Wait until all `peers` agree on round `number` and its nodes. Return whether to read.

        If all nodes of a round read each other, and no other node, their mean stays the same. So a
        node stays in its announced round until it is certain that a peer will not enter that round.
        """

        def is_there(ending: Ending) -> bool:
            if among == 0:
                return ending.round_number >= number
            return ending.round_number == number and ending.among == among

        def elsewhere() -> list[str]:
            """Return the peers that will not enter this round any more."""
            endings = ((peer, self._ending_of(peer)) for peer in peers if among != 0)
            return [
                peer
                for peer, ending in endings
                if ending.round_number >= number and not (is_there(ending) or ending.is_over)
            ]

        self._wait(peers, is_there, PATIENCE_S, lambda: any(map(self._lives, elsewhere())))
        now, apart = self._clock.now(), [peer for peer in elsewhere() if self._lives(peer)]
        if not apart:
            if all(is_there(self._ending_of(peer)) for peer in peers):
                self._apart_since = None
            return True
        if any(self._ending_of(peer).among != among for peer in apart):
            self._grew_at = now  # one node knows of more nodes, and the other will know them soon
        if self._apart_since is None:
            self._apart_since = now
        return now - self._apart_since >= PATIENCE_S

    def _read_all(self, peers: Sequence[str], least: int) -> list[float]:
        distances: list[float] = []
        counted = int(self._endings.own.updates >= least)
        are_equal = all(self._ending_of(peer).values == self._published for peer in peers)
        for peer in peers:
            if self._clock.now() >= self._end or not self._lives(peer):
                continue
            counts = self._ending_of(peer).updates >= least
            if are_equal:
                distance: float | None = 0.0 * self._averaged.length()  # NaN if the length is NaN
            else:
                distance = self._averaged.merge_peer(peer, counts / (counted + 1))
                self._published = None
            if distance is None:
                self._failures[peer] += 1
                continue
            self._failures[peer] = 0
            counted += counts
            if peer not in self._read and self._compares:
                self._endings.rests.pop(peer, None)
                self._tx.send_message(peer, AskStatus(request=0), connects=False)
            self._read.add(peer)
            distances.append(distance)
            self._tell_if_due()
        return distances

    def _changed(self) -> None:
        self._published = None
        self._agreement = Agreement()
        self._endings.own = replace(self._endings.own, agrees=False)

    def _judge(self, present: Sequence[str], distances: Sequence[float]) -> None:
        if self._among != set(present):
            self._among, self._agreement = set(present), Agreement()
        if distances:
            self._rounds, self._last_round = self._rounds + 1, self._endings.own.round_number
            self._distances.append(math.sqrt(sum(d * d for d in distances) / len(distances)))
            self._agreement = self._agreement.measured(distances, self._averaged.length())

    # Waiting

    def _wait(
        self,
        peers: Sequence[str],
        is_so: Callable[[Ending], bool],
        patience_s: float,
        is_vain: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until `is_so` is true for all living, unfinished peers, or `is_vain` is true."""

        def lag() -> list[str]:
            endings = ((peer, self._ending_of(peer)) for peer in peers)
            return [peer for peer, ending in endings if not (ending.is_over or is_so(ending))]

        end = min(self._end, self._clock.now() + patience_s)
        while True:
            said = self._endings.said_by(peers)
            left_s = end - self._clock.now()
            if left_s <= 0.0 or is_vain() or not any(map(self._lives, lag())):
                return
            self._endings.wait_for_more(peers, said, min(left_s, TOLD_EVERY_S / 2))
            self._tell_if_due()

    def _pause(self, pause_s: float) -> None:
        """Pause until the time is over, or until a peer begins a later round."""
        number = self._endings.own.round_number

        def is_called() -> bool:
            return any(self._ending_of(p).round_number > number for p in self._known)

        end = self._clock.now() + pause_s
        while not is_called() and (left_s := end - self._clock.now()) > 0.0:
            self._tell_if_due()
            self._endings.wait_for(is_called, min(left_s, TOLD_EVERY_S / 2))
        self._tell_if_due()

    def _rest(self, pause_s: float) -> None:
        self._endings.wait_for(lambda: False, pause_s)
        self._tell_if_due()

    def _tell_if_due(self) -> None:
        every_s = max(TOLD_EVERY_S, TOLD_PER_PEER_S * len(self._peer_table.names))
        if self._clock.now() - self._told_at >= every_s:
            self.announce_ending()

    def _say_whom(self, awaited: Sequence[str], left_s: float) -> None:
        if self._clock.now() >= self._says_at:
            self._says_at = self._clock.now() + SAID_EVERY_S
            who = ", ".join(awaited)
            log.warning(
                "%s: finish waits for %s, at most %.0f s more [DPWA-W028]", self._name, who, left_s
            )

    # The report

    def _report(self, met_at: float | None) -> FinishReport:
        now = self._clock.now()
        met = now if met_at is None else met_at
        took_part = tuple(peer for peer in self._seen if self._has_ended_alike(peer))
        missed = {peer: self._why(peer) for peer in self._seen if peer not in took_part}
        differing = self._differing(took_part)
        return FinishReport(
            took_part=took_part,
            missed=missed,
            rounds=self._rounds,
            distance_before=self._distances[0] if self._distances else None,
            distance_after=self._distances[-1] if self._distances else None,
            waited_s=met - self._began,
            averaged_s=now - met,
            differing=differing,
            is_apart=self._agreement.is_apart,
        )

    @property
    def _compares(self) -> bool:
        """Whether to ask peers for digests of their unaveraged state. False with too many peers."""
        return bool(self._averaged.rest) and len(self._seen) <= MAX_PEERS_COMPARED

    def _has_ended_alike(self, peer: str) -> bool:
        """Tell whether a peer ended with this node's parameters, as far as this node knows."""
        ending = self._ending_of(peer)
        if peer not in self._read or (self._agreement.is_reached and peer in self._among):
            return peer in self._read
        if ending.is_over:
            return ending.among in self._announced
        return ending.agrees or (self._lives(peer) and ending.has_read >= self._last_round)

    def _differing(self, asked: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return the names of unaveraged tensors that differ from this node's, by peer."""
        if not self._compares:
            return {}
        told = self._endings.rests

        def is_told() -> bool:
            return all(peer in told or not self._lives(peer) for peer in asked)

        self._endings.wait_for(is_told, ANSWER_S)
        found = {peer: self._endings.differing(peer) for peer in asked}
        return {peer: names for peer, names in found.items() if names}

    def _why(self, peer: str) -> str:
        heard, now = self._endings.ending_of(peer), self._clock.now()
        words = self._peer_table.in_words(peer)
        if self._peer_table.is_left_alone(peer):
            return words if words == IN_WORDS[Health.OTHER_SETTINGS] else "is in quarantine"
        if heard is not None and heard.ending.is_over and peer in self._read:
            return "has finished without this node"
        if heard is not None and self._lives(peer):
            if not heard.ending.is_finishing:
                if heard.is_idle(now):
                    return f"has not trained for {now - heard.progressed_at:.0f} s"
                return f"still trains, at update {heard.ending.updates}"
            if words not in ("is alive", "is unknown"):
                return words
            is_given_up = self._failures[peer] >= MAX_FAILURES
            return "could not be read" if is_given_up else "there was no time left for it"
        if heard is not None and not self._peer_table.has_left(peer):
            return "does not answer" if self._tx.reaches(peer) else "was lost"
        if words in ("is alive", "is unknown") and self._is_expected(peer):
            return "there was no time left for it"
        if words == "is unknown":
            return "was lost" if self._peer_table.was_heard(peer) else "nothing was heard from it"
        # This node heard from the peer before, but the peer does not answer now.
        return "does not answer" if words == "is alive" else words
