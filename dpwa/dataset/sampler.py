"""SharedSampler gives each item of an epoch to one of the nodes. shard gives nodes fixed parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from dpwa.connection import DpwaConnection
from dpwa.dataset.range_table import MAX_SEED, DatasetRanges, RangeTable, shuffled
from dpwa.errors import ClosedError, UserError
from dpwa.lifecycle import Closeable
from dpwa.policy.range_leases import Outstanding
from dpwa.tables.node_tables import Tables

if TYPE_CHECKING:
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter

Batch = TypeVar("Batch")
Item = TypeVar("Item")


def bare(connection: DpwaConnection | DpwaPyTorchAdapter) -> DpwaConnection:
    """Return the argument itself if it is a connection, or the connection of an adapter."""
    return connection if isinstance(connection, DpwaConnection) else connection.connection


class SharedSampler(Sampler[int], Closeable):
    """Divides the items of each epoch among the nodes. Nodes may join and leave.

        sampler = SharedSampler(len(dataset), gossip)
        loader = DataLoader(dataset, batch_size=64, sampler=sampler)
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for inputs, targets in sampler.batches(loader):
                ...                                    # train on them

    Each node gets ranges of indices. A node acknowledges a range when it has trained on all items
    of the range. `batches` counts a batch as trained on when you request the next batch. If a node
    dies, other nodes get the ranges that it did not acknowledge. So nodes may train on an item
    twice, but each range is acknowledged once. An epoch is over when all ranges are acknowledged,
    or when a node has begun a later epoch. docs/sampler.md has the guarantees.

    Args:
        dataset_size: the number of items.
        connection: the connection of this node. It must stay open while the sampler is used.
        range_size: the number of items that a node gets at once.
        shuffle: whether each epoch has a different order.
        seed: the seed of the orders, 0 to 2^32 - 1.
        lease_s: seconds until a range that a living node has not acknowledged is handed out again,
            to a node for which no other range is left.
        replicas: the number of copies of each lease on other nodes, at most 16. A node has at most
            one copy.
        tables: the tables of this node if it has some already, such as `tables` of another sampler.
            All nodes must create their tables and samplers in the same order.

    Attributes:
        tables: the tables that the sampler uses.

    Raises:
        UserError: a number is invalid, or the node has tables that were not given.
        MismatchError: the sampler of another node has different arguments.
        TableTimeoutError: the other nodes of the list have not created their samplers in time.
    """

    def __init__(
        self,
        dataset_size: int,
        connection: DpwaConnection | DpwaPyTorchAdapter,
        *,
        range_size: int = 256,
        shuffle: bool = True,
        seed: int = 0,
        lease_s: float = 600.0,
        replicas: int = 16,
        tables: Tables | None = None,
    ) -> None:
        _require("dataset_size", dataset_size, 1)
        _require("range_size", range_size, 1)
        _require("seed", seed, 0, MAX_SEED)
        ranges = DatasetRanges(dataset_size, range_size, bool(shuffle), seed)
        self.tables = Tables(bare(connection)) if tables is None else tables
        try:
            self._table = RangeTable(self.tables, ranges, replicas=replicas, lease_s=lease_s)
        except BaseException:
            if tables is None:
                self.tables.close()
            raise
        self._ranges = ranges
        self._epoch = 0
        self._ended: int | None = None  # the last epoch that `batches` has completed
        self._reserved: int | None = None  # the first range of the next call of `__iter__`
        self._outstanding = Outstanding()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. Call `set_epoch` on all nodes, before the epoch's first batch.

        This node releases the ranges of other epochs that it holds.

        Args:
            epoch: the number of the epoch, from 0.

        Raises:
            UserError: the epoch is invalid.
        """
        _require("epoch", epoch, 0)
        self._give_back()
        self._epoch = epoch
        self._table.begin_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        """Yield item indices until no free range is left. `batches` also waits for more ranges.

        Before, this node releases the ranges that it got earlier and has not acknowledged.
        """
        reserved, self._reserved = self._reserved, None
        self._give_back()
        ranges, epoch = self._ranges, self._epoch
        order = shuffled(ranges.dataset_size, ranges.seed, epoch, shuffle=ranges.shuffle)
        number = self._table.take_range() if reserved is None else reserved
        while number is not None:
            self._outstanding.add_range(number, ranges.length(number))
            yield from ranges.cut(order, number).tolist()
            number = self._table.take_range()

    def batches(self, loader: DataLoader[Batch]) -> Iterator[Batch]:
        """Yield this node's batches of the epoch. Each request acknowledges the previous batch.

        When no range is free, wait until the other nodes have acknowledged their ranges, and get
        the ranges of nodes that die. If you leave the loop early, this node releases its ranges.

        Args:
            loader: a loader with this sampler as its `sampler`. Its workers may prefetch batches.

        Raises:
            UserError: the loader has a different sampler, drops its last batch or returns batches
                out of order. Or this node has ended the epoch, and you must call `set_epoch`.
            TableTimeoutError: the other nodes did not answer in time.
        """
        size = self._batch_size(loader)
        if self._ended == self._epoch:
            raise UserError(
                f"epoch {self._epoch} has ended on this node. Call set_epoch before you request "
                "more batches [DPWA-E191]"
            )
        try:
            while (number := self._table.wait_for_range()) is not None:
                self._reserved = number
                for batch in loader:
                    yield batch
                    self.acknowledge(min(size, self._outstanding.items))
            self._ended = self._epoch
        finally:
            with suppress(ClosedError):
                self._give_back()

    def acknowledge(self, items: int) -> None:
        """Report that this node has trained on the next `items` indices of the sampler.

        Call `acknowledge` in a loop of your own. `batches` calls it for you.

        Args:
            items: the number of items, such as the size of a batch.

        Raises:
            UserError: the sampler has handed out fewer items.
        """
        _require("items", items, 0, self._outstanding.items)
        for number in self._outstanding.consume(items):
            self._table.acknowledge(number)

    def is_over(self) -> bool:
        """Return whether the epoch is over. Call this in a loop of your own.

        When this method returns, all copies have the earlier acknowledgements of this node.
        """
        return self._table.is_over()

    @property
    def acknowledged(self) -> int:
        """The number of items that this node has acknowledged, in all epochs."""
        return self._table.acknowledged

    @property
    def refused(self) -> int:
        """The number of ranges that this node acknowledged after another node had claimed them."""
        return self._table.refused

    def state_dict(self) -> dict[str, Any]:
        """Return the acknowledged ranges of the epoch, to continue the epoch after a restart.

        Returns:
            A dict of plain values with the ranges and the arguments, for `torch.save` or JSON.
        """
        self._table.read_rows()
        done = self._table.leases.done.nonzero()[0].tolist()
        return {**asdict(self._ranges), "epoch": self._epoch, "done": done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the epoch that `state_dict` saved. Call this method before you request an index.

        If all nodes were restarted, each node loads its own state. Ranges that are done in any of
        these states are not handed out again. This method waits at most `collective_timeout_s`
        until the other nodes have called it, or returns at once if a node has already got a range.

        Raises:
            UserError: the state is invalid, or belongs to a different data set or different ranges.
        """
        for name, expected in asdict(self._ranges).items():
            if state.get(name) != expected:
                raise UserError(
                    f"the state of a sampler was saved with {name}={state.get(name)!r}, "
                    f"but this sampler has {name}={expected!r} [DPWA-E192]"
                )
        done = state.get("done")
        if not isinstance(done, list) or not set(done) <= set(range(self._ranges.count)):
            raise UserError(
                f"the state of a sampler must have a list `done` of range numbers from 0 to "
                f"{self._ranges.count - 1} [DPWA-E192]"
            )
        self.set_epoch(state.get("epoch"))  # type: ignore[arg-type]
        self._table.remember(set(done))

    def close(self) -> None:
        """Release this node's ranges, and close the tables, also for samplers that share them."""
        with suppress(ClosedError):
            self._give_back()
        self.tables.close()

    def _give_back(self) -> None:
        numbers = self._outstanding.clear()
        if self._reserved is not None:
            numbers.append(self._reserved)
            self._reserved = None
        self._table.release(numbers)

    def _batch_size(self, loader: DataLoader[Any]) -> int:
        if getattr(loader, "sampler", None) is not self:
            raise UserError(
                "`batches` needs a DataLoader whose `sampler` argument is this SharedSampler "
                "[DPWA-E190]"
            )
        if loader.drop_last or not getattr(loader, "in_order", True):
            raise UserError(
                "`batches` needs a DataLoader with drop_last=False and in_order=True, "
                "so that the loader returns all batches in order [DPWA-E190]"
            )
        return loader.batch_size or 1


def _require(what: str, given: object, least: int, most: int | None = None) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise UserError(
            f"{what}: expected a whole number of at least {least} (got {given!r}) [DPWA-E178]"
        )
    if most is not None and given > most:
        raise UserError(f"{what}: expected a number of at most {most} (got {given}) [DPWA-E178]")


def shard(
    dataset: Dataset[Item],
    connection: DpwaConnection | DpwaPyTorchAdapter,
    *,
    shuffle: bool = True,
    seed: int = 0,
) -> Subset[Item]:
    """Return this node's part of a data set. The parts of different nodes do not overlap.

    All nodes compute the same order of the items. The node at place r of N in the configuration
    has the items at r, r + N, r + 2 N, ... in this order. All parts have the same length, so the
    last items of the order, at most N - 1, are in no part. If a node dies, no other node trains on
    its part. (To avoid this, use `SharedSampler`.)

    Args:
        dataset: a data set that has a length and returns an item for an index.
        connection: the connection of this node.
        shuffle: whether the order is shuffled. If not, it is the order of the data set.
        seed: the seed of the order, 0 to 2^32 - 1. It must be the same on all nodes.

    Raises:
        UserError: the configuration has no list of nodes, or there are fewer items than nodes.
    """
    node = bare(connection).node
    config, names = node.config, [each.name for each in node.config.nodes]
    sized: Any = dataset
    if config.is_open:
        raise UserError(
            "`shard` needs a configuration with a list of `nodes`, because with `join` the number "
            "of nodes is unknown. SharedSampler needs no list [DPWA-E193]"
        )
    if len(sized) < len(names):
        raise UserError(
            f"`shard` cannot divide {len(sized)} items among {len(names)} nodes, because each node "
            "needs an item [DPWA-E194]"
        )
    order = shuffled(len(sized), seed, 0, shuffle=shuffle)
    length = len(sized) // len(names)
    return Subset(dataset, order[names.index(node.name) :: len(names)][:length].tolist())
