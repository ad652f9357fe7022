"""Push-sum: averages that are exact on any strongly connected directed graph.

Every node has parameters x and a weight w, 1 at the start. A giving node halves its weight and
sends the other half together with its parameters. A receiving node takes the weighted mean:

    w_s -> w_s / 2,    u = w_s / 2
    x_r -> (w_r x_r + u x_s) / (w_r + u),    w_r -> w_r + u

So the sums of w and of w x never change, including shares on their way, and every x tends to the
mean of all x at the start, even if some nodes are heard by more nodes than others.  Sources: D.
Kempe, A. Dobra and J. Gehrke, Gossip-Based Computation of Aggregate Information (2003), whose sums
are s = w x; in this form, M. Blot et al., Gossip Training for Deep Learning (2016), GoSGD.

**Exact.** A weight is a whole number of units, `UNIT` for the weight 1, because halves and sums of
floats would lose bits, and lost weight stays lost. A half is rounded down, and the rest is kept.

**By delta.** While a share was on its way, the receiving node has trained. So the merge is

    x += u / (w_r + u) * (x_s - published)

which is the formula above plus the steps since `published`, kept whole. `published` is the snapshot
that went with `w_r`. If more than one share is merged before the next snapshot, it moves along.

**A share that comes back** had left with an older x. If the model was merged into meanwhile, the
sum of w is exact at once, but that of w x only if x goes back too, as if the share had come from
elsewhere: x += `returned(transaction)` * (the snapshot it had left with - published).

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
    """The weight of one node, and its unconfirmed shares.

    Not thread-safe. `published`, `factor`, `received` and `returned` are for the thread that
    merges. Others may call `split_half` and `delivered` at any time between them, under the same
    lock.
    """

    def __init__(self) -> None:
        self.held = UNIT
        self._shares: dict[bytes, _Share] = {}
        self._merges = 0
        self._is_giving = False

    @property
    def in_flight(self) -> int:
        """Units that were given under transactions that are not over."""
        return sum(share.units for share in self._shares.values())

    @property
    def weight(self) -> float:
        """The weight w that this node holds, 1 at the start."""
        return self.held / UNIT

    def published(self) -> None:
        """Note that the newest snapshot is the model, so that the held mass goes with it."""
        self._is_giving = True

    def split_half(self, transaction: bytes) -> int | None:
        """Give half of the held units, rounded down, to go with the newest snapshot. Return them.

        A transaction that asks again gets the same share again, until it is over. `None` if less
        than 2 units are held, or the model was merged into since that snapshot, so that the two do
        not belong together.
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
        """Note that the share was merged where it went to."""
        self._shares.pop(transaction, None)

    def returned(self, transaction: bytes) -> float:
        """Add a share that was not merged to the held units. Return the factor to move x with.

        The move is toward the snapshot with which the share had left, by its part of the held
        units. It is 0.0 if the model was not merged into since, or there was no such share.
        """
        share = self._shares.get(transaction)
        if share is None:
            return 0.0
        self.held += share.units  # one step with the next for an interrupt: nothing is called
        del self._shares[transaction]
        if share.merges == self._merges:
            return 0.0
        self._begin_merge()
        return share.units / self.held

    def factor(self, units: int) -> float:
        """Return units / (held + units) to merge a share. No units are given until the next
        snapshot.
        """
        self._begin_merge()
        return units / (self.held + units)

    def received(self, units: int) -> None:
        self._begin_merge()
        self.held += units

    def _begin_merge(self) -> None:
        self._is_giving = False
        self._merges += 1
