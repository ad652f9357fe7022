"""SharedSampler, with which one of several nodes sees each item in an epoch, and shard."""

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
    """Return the connection itself, also of an adapter."""
    return connection if isinstance(connection, DpwaConnection) else connection.connection


class SharedSampler(Sampler[int], Closeable):
    """Hands out the indices of a data set in ranges, each to one node. Nodes may come and go.

        sampler = SharedSampler(len(dataset), gossip)
        loader = DataLoader(dataset, batch_size=64, sampler=sampler)
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for inputs, targets in sampler.batches(loader):
                ...                                    # train on them

    A range is acknowledged when all of its items were trained on, which `batches` assumes when the
    next batch is requested. Other ranges of a node that is gone are handed out again, so some of
    their items may be seen twice, but each is acknowledged once. An epoch is over when all ranges
    are acknowledged, or when a node has begun a later one. docs/sampler.md has the guarantees.

    Args:
        dataset_size: number of items.
        connection: of this node. It must be open as long as the sampler is used.
        range_size: items that a node takes at once.
        shuffle: whether each epoch has an order of its own.
        seed: of the orders, 0 to 2^32 - 1.
        lease_s: time after which a range that a living node has not acknowledged is handed out
            again to a node that has nothing else to do.
        replicas: copies of each lease on other nodes, at most 16, and at most one on each node.
        tables: of this node, if it has some already, such as those of a second sampler. All nodes
            make their tables and samplers in the same order.

    Attributes:
        tables: that it uses.

    Raises:
        UserError: a number is impossible, or the node has tables already, which were not given.
        MismatchError: a node has a different kind of sampler.
        TableTimeoutError: the other nodes of the list have not arrived in time.
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
        self._ended: int | None = None  # the epoch that `batches` has come to the end of
        self._reserved: int | None = None  # a range that the next pass begins with
        self._outstanding = Outstanding()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0, on all nodes, before its first batch.

        Ranges of a different epoch that this node holds are given up.

        Raises:
            UserError: the epoch is invalid.
        """
        _require("epoch", epoch, 0)
        self._give_back()
        self._epoch = epoch
        self._table.begin_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        """Yield indices as long as a range is available at present. `batches` waits for more.

        Ranges that were handed out before and not acknowledged are given back.
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
        """Yield the batches of an epoch, and acknowledge each when the next one is requested.

        At the end it waits until the other nodes have acknowledged theirs, and takes the ranges of
        nodes that are gone. If the loop is left early, unused ranges are given back.

        Args:
            loader: with this sampler as its `sampler`. Its workers may fetch batches ahead.

        Raises:
            UserError: the loader has a different sampler, drops its last batch or returns batches
                out of order, or the epoch has ended here. Then call `set_epoch`.
            TableTimeoutError: the other nodes could not be reached in time.
        """
        size = self._batch_size(loader)
        if self._ended == self._epoch:
            raise UserError(
                f"epoch {self._epoch} has ended here. Call set_epoch before the next batches"
                " [DPWA-E191]"
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
        """Report that the next items were trained on, in the order in which they were handed out.

        This is for your own loops. `batches` does it.

        Args:
            items: their number, such as the size of a batch.

        Raises:
            UserError: fewer items were handed out.
        """
        _require("items", items, 0, self._outstanding.items)
        for number in self._outstanding.consume(items):
            self._table.acknowledge(number)

    def is_over(self) -> bool:
        """Check whether the epoch is over, in your own loop.

        Earlier acknowledgements of this node are in all copies then.
        """
        return self._table.is_over()

    @property
    def acknowledged(self) -> int:
        """Number of items that this node has acknowledged, in all epochs, as far as it knows."""
        return self._table.acknowledged

    @property
    def refused(self) -> int:
        """Number of ranges that this node has acknowledged after a different one had got them."""
        return self._table.refused

    def state_dict(self) -> dict[str, Any]:
        """Return the state to continue this epoch: the ranges that all nodes have done.

        Returns:
            Plain values, for `torch.save` or JSON.
        """
        self._table.read_rows()
        done = self._table.leases.done.nonzero()[0].tolist()
        return {**asdict(self._ranges), "epoch": self._epoch, "done": done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, before the first index is requested.

        If all nodes were restarted, each loads its own state, and ranges that are done in any of
        these states are not handed out again. It waits until the other nodes have reached this
        call, at most `collective_timeout_s`, and not at all if one of them has taken a range
        already.

        Raises:
            UserError: the state is of a different data set, or of different ranges of it, or
                damaged.
        """
        for name, expected in asdict(self._ranges).items():
            if state.get(name) != expected:
                raise UserError(
                    f"the state of a sampler has {name} {state.get(name)!r}; "
                    f"expected {expected!r} [DPWA-E192]"
                )
        done = state.get("done")
        if not isinstance(done, list) or not set(done) <= set(range(self._ranges.count)):
            raise UserError(
                f"the state of a sampler: expected `done` to list ranges from 0 to "
                f"{self._ranges.count - 1}, each once [DPWA-E192]"
            )
        self.set_epoch(state.get("epoch"))  # type: ignore[arg-type]
        self._table.remember(set(done))

    def close(self) -> None:
        """Give back this node's ranges, and leave the tables. Other samplers cannot use them."""
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
                "batches: expected a DataLoader made with sampler= this sampler [DPWA-E190]"
            )
        if loader.drop_last or not getattr(loader, "in_order", True):
            raise UserError(
                "batches: expected a DataLoader with drop_last=False and in_order=True, "
                "so that it returns all batches in order [DPWA-E190]"
            )
        return loader.batch_size or 1


def _require(what: str, given: object, least: int, most: int | None = None) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise UserError(
            f"{what}: expected a whole number from {least} on (got {given!r}) [DPWA-E178]"
        )
    if most is not None and given > most:
        raise UserError(f"{what}: expected at most {most} (got {given}) [DPWA-E178]")


def shard(
    dataset: Dataset[Item],
    connection: DpwaConnection | DpwaPyTorchAdapter,
    *,
    shuffle: bool = True,
    seed: int = 0,
) -> Subset[Item]:
    """Return this node's part of a data set, which no other node of the list has.

    The node at place r of N in the configuration has items r, r + N, r + 2 N, ... of one order that
    all nodes compute alike. All parts have the same length. Up to N - 1 items at the end of the
    order are in none. The fate of nodes changes nothing, so the part of a dead node is not seen any
    more. (Use `SharedSampler` to avoid this.)

    Args:
        dataset: with a length, and items by number.
        connection: of this node.
        shuffle: whether the order is shuffled. If not, it is that of the data set.
        seed: of the order, 0 to 2^32 - 1, and the same on all nodes.

    Raises:
        UserError: there is no list of nodes, or fewer items than nodes.
    """
    node = bare(connection).node
    config, names = node.config, [each.name for each in node.config.nodes]
    sized: Any = dataset
    if config.is_open:
        raise UserError(
            "shard: expected a configuration with a list of `nodes`: with `join` the number of "
            "parts is unknown. SharedSampler needs no list [DPWA-E193]"
        )
    if len(sized) < len(names):
        raise UserError(
            f"shard: {len(sized)} items cannot be cut into {len(names)} parts [DPWA-E194]"
        )
    order = shuffled(len(sized), seed, 0, shuffle=shuffle)
    length = len(sized) // len(names)
    return Subset(dataset, order[names.index(node.name) :: len(names)][:length].tolist())
