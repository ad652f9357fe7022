"""FetchTargets: whom an algorithm asks, and for what."""

from __future__ import annotations

from collections.abc import Collection

from dpwa.algorithms import Algorithm, Ask, Terms
from dpwa.data.layout import Layout
from dpwa.errors import UserError
from dpwa.node.arrival import FetchTerms
from dpwa.node.assembly import neighbours_of
from dpwa.node.context import NodeContext
from dpwa.node.fetching.fetch_request import FetchTarget
from dpwa.wire.shards import WHOLE, shard_of


class FetchTargets:
    """Turns what an algorithm asks for into what is to be fetched; on the training thread.

    Args:
        context: of the node.
        algorithm: that asks.
    """

    def __init__(self, context: NodeContext, algorithm: type[Algorithm]) -> None:
        self._config = context.config
        self._peer_table = context.peer_table
        self._pool = context.pool
        self._algorithm = algorithm
        self._neighbours = neighbours_of(context.config, context.name)
        self._turn = 0  # which shard of the parameters is next
        default = "merge" if algorithm.repeats else "skip"
        self._repeats = (context.config.repeat or default) == "merge"

    def check(self, ask: object) -> None:
        """Refuse what an algorithm of the user's own cannot mean.

        Raises:
            UserError: it is no `Ask`, or is for a node that is not in view.
        """
        who = f"algorithm {self._config.algorithm!r}: asks"
        peers = self._peer_table.names
        if not isinstance(ask, Ask):
            raise UserError(f"{who} returned {ask!r}; expected an Ask, or None")
        # Where peers come and go, one may have gone since the algorithm looked.
        is_lost = ask.peer is not None and ask.peer not in peers
        if is_lost and not self._config.is_open:
            known = ", ".join(peers) or "none"
            raise UserError(f"{who} returned {ask!r}; expected one of the peers in view: {known}")
        if ask.terms is not self._algorithm.terms:
            terms = self._algorithm.terms
            raise UserError(f"{who} returned {ask!r}; expected the terms of the class, {terms}")

    def among(self, updates: int) -> Collection[str] | None:
        """Return the neighbours in an update; `None` when all peers are."""
        return self._neighbours.among(self._peer_table.names, updates - 1)

    def of(
        self,
        ask: Ask,
        layout: Layout,
        terms: FetchTerms,
        *,
        published: int | None,
        updates: int,
        clock: float,
        is_first: bool,
        takes_all: bool,
        without: str = "",
    ) -> FetchTarget:
        """Return what to fetch.

        Args:
            ask: of the algorithm.
            layout: what the snapshot must be like.
            terms: of the fetch.
            published: the version that this node has published in this round, if it has.
            updates: of this node so far.
            clock: that the peer must not be far behind; 0 for any.
            is_first: whether it is the first fetch of this update: more mixing is wanted of others,
                and those who are there may have published nothing since.
            takes_all: whether to fetch all of the parameters, whatever the terms.
            without: whom not to ask, as another one is to bear it out; whoever else is in view
                will do.
        """
        is_whole = takes_all or ask.terms is not Terms.PULL or self._algorithm.keeps
        skips = is_first and ask.terms is Terms.PULL and not self._repeats
        is_tagged = ask.peer is None and self._neighbours.are_tagged and not without
        among = None if ask.peer else self.among(updates)
        if without:
            among = [name for name in self._peer_table.names if name != without]
        version = self._pool.version if published is None else published
        self._turn += 1
        return FetchTarget(
            layout=layout,
            shard=WHOLE if is_whole else shard_of(layout, terms.fraction, self._turn - 1),
            is_finite=terms.is_finite,
            terms=ask.terms,
            only=ask.peer,
            among=among,
            version=version if is_tagged else 0,
            own_version=self._pool.version,  # that is complete
            keeps=self._algorithm.keeps,
            clock=clock,
            merged=self._peer_table.merged if skips else None,
        )
