"""Push-sum: gossip averaging to the exact mean on any strongly connected directed graph.

Every node has parameters x and a weight w, which is 1 at the start. A giving node halves its weight
and sends the other half together with its parameters. A receiving node takes the weighted mean:

    w_s -> w_s / 2,    u = w_s / 2
    x_r -> (w_r x_r + u x_s) / (w_r + u),    w_r -> w_r + u

So the sums of w and of w x never change, if shares in flight are included. Every x tends to the
mean of all x at the start, even if some nodes have more receivers than others.  Sources: D. Kempe,
A. Dobra and J. Gehrke, Gossip-Based Computation of Aggregate Information (2003), whose sums are
s = w x; in this form, M. Blot et al., Gossip Training for Deep Learning (2016), GoSGD.

**Exact.** A weight is a whole number of units, and the weight 1 has `UNIT` units. Halves and sums
of floats would lose bits, and lost weight stays lost. A half is rounded down, and the rest is kept.

**By delta.** While a share was in flight, the receiving node has trained. So the merge is

    x += u / (w_r + u) * (x_s - published)

This is the formula above plus all steps since `published`, which is the snapshot that belongs to
`w_r`. If more than one share is merged before the next snapshot, `published` moves as well.

**A share that returns** was sent with an older x. If the model has merged meanwhile, adding the
share makes the sum of w exact at once. The sum of w x is exact only if x moves back, too, as if the
share came from another node: x += `returned(transaction)` * (the share's snapshot - published).

>>> giver, taker = Mass(), Mass()
>>> giver.published()
>>> units = giver.split_half(b"pair-one")
>>> taker.factor(units)
0.3333333333333333
>>> taker.received(units)
>>> giver.delivered(b"pair-one")
>>> giver.weight, taker.weight
(0.5, 1.5)
"""

from __future__ import annotations

from dataclasses import dataclass

UNIT = 2**40


@dataclass(frozen=True)
class _Share:
    units: int
    merges: int


class Mass:
    """One node's push-sum weight, and the sent shares that receivers have not confirmed.

    It is not thread-safe. `published`, `factor`, `received` and `returned` are for the thread that
    merges. Other threads may call `split_half` and `delivered` at any time between them, under the
    same lock.
    """

    def __init__(self) -> None:
        self.held = UNIT
        self._shares: dict[bytes, _Share] = {}
        self._merges = 0
        self._is_giving = False

    @property
    def in_flight(self) -> int:
        """Number of weight units that this node has sent in unfinished transactions."""
        return sum(share.units for share in self._shares.values())

    @property
    def weight(self) -> float:
        """The weight w of this node, which is 1 at the start."""
        return self.held / UNIT

    def published(self) -> None:
        """Record a publication: the held weight units now belong to the newest snapshot."""
        self._is_giving = True

    def split_half(self, transaction: bytes) -> int | None:
        """Split off half of the weight, to send with the newest snapshot. Return the half in units.

        The half is rounded down. If a transaction asks again before it is over, it gets the same
        share. Returns `None` if less than 2 units are held, or if the model has merged since that
        snapshot, because the units and the snapshot then do not belong together.
        """
        if transaction in self._shares:
            return self._shares[transaction].units
        if not self._is_giving or self.held < 2:
            return None
        units = self.held // 2
        self.held -= units
        self._shares[transaction] = _Share(units, self._merges)
        return units

    def delivered(self, transaction: bytes) -> None:
        """Record that the receiver has merged the share of this transaction."""
        self._shares.pop(transaction, None)

    def returned(self, transaction: bytes) -> float:
        """Take back a share that the receiver did not merge. Return the factor by which to move x.

        The move is toward the snapshot that was sent with the share. The factor is the share
        divided by all held units. It is 0.0 if the model has not merged since, or without a share.
        """
        share = self._shares.get(transaction)
        if share is None:
            return 0.0
        self.held += share.units  # no call between this and the next line, so no interrupt either
        del self._shares[transaction]
        if share.merges == self._merges:
            return 0.0
        self._begin_merge()
        return share.units / self.held

    def factor(self, units: int) -> float:
        """Return the factor for merging a share, units / (held + units). From then on, no units are
        given until the next snapshot.
        """
        self._begin_merge()
        return units / (self.held + units)

    def received(self, units: int) -> None:
        self._begin_merge()
        self.held += units

    def _begin_merge(self) -> None:
        self._is_giving = False
        self._merges += 1
