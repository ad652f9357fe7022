"""Decisions that peers have to be told, until they note them or are given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpwa.message_codes import get_log

log = get_log("dpwa.transactions")

RESEND_S = 0.25


class Deliveries:
    """When the decisions of a node are sent again, and how many came to nothing.

    Args:
        name: of this node.
        what: is at stake, in words.
        given_up_after_s: for how long a decision is sent again.
    """

    def __init__(self, name: str, what: str, given_up_after_s: float) -> None:
        self._name = name
        self._what = what
        self._given_up_after_s = given_up_after_s
        self._sent_at: dict[bytes, float] = {}
        self._lost = 0

    def due(
        self, undelivered: Sequence[tuple[bytes, str, bool]], now: float
    ) -> list[tuple[bytes, str, bool]]:
        """Return which of the decisions to send now, or again; they count as sent."""
        still = {transaction for transaction, _, _ in undelivered}
        self._sent_at = {each: at for each, at in self._sent_at.items() if each in still}
        due = [d for d in undelivered if now - self._sent_at.get(d[0], -RESEND_S) >= RESEND_S]
        self._sent_at.update((transaction, now) for transaction, _, _ in due)
        return due

    def warn_of_losses(self, counts: Mapping[str, int]) -> None:
        """Warn of transactions of which the peer never said how they ended, if there are more.

        Args:
            counts: of `policy.transactions`.
        """
        lost = counts["unresolved"] + counts["given_up"]
        if lost > self._lost:
            self._lost = lost
            log.warning(
                "%s: %d of %d transactions ended without an answer for %g s: "
                "%s may be counted twice or lost; is the network cut?",
                self._name,
                lost,
                lost + counts["committed"],
                self._given_up_after_s,
                self._what,
            )
