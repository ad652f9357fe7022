"""A data set cut into parts, one for each node of the list, once and for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import Dataset, Subset

from dpwa.dataset.ranges import shuffled
from dpwa.dataset.sampler import bare
from dpwa.errors import UserError

if TYPE_CHECKING:
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.connection import DpwaConnection

Item = TypeVar("Item")


def shard(
    dataset: Dataset[Item],
    connection: DpwaConnection | DpwaPyTorchAdapter,
    *,
    shuffle: bool = True,
    seed: int = 0,
) -> Subset[Item]:
    """Return this node's part of a data set, which no other node of the list has.

    The node at place r of N in the configuration has items r, r + N, r + 2 N, ... of one order that
    all nodes compute alike. All parts have the same length; up to N - 1 items at the end of the
    order are in none. What happens to the nodes changes nothing: the part of one that dies is not
    seen any more (`SharedSampler` is for that).

    Args:
        dataset: with a length, and items by number.
        connection: of this node.
        shuffle: whether the order is a shuffled one; else that of the data set.
        seed: of the order, 0 to 2^32 - 1; the same on all nodes.

    Raises:
        UserError: there is no list of nodes, or fewer items than nodes.
    """
    node = bare(connection).node
    config, names = node.config, [each.name for each in node.config.nodes]
    sized: Any = dataset
    if config.is_open:
        raise UserError(
            "shard: expected a configuration with a list of `nodes`: with `join` nobody knows how "
            "many parts there are; SharedSampler needs no list [DPWA-E193]"
        )
    if len(sized) < len(names):
        raise UserError(
            f"shard: {len(sized)} items cannot be cut into {len(names)} parts [DPWA-E194]"
        )
    order = shuffled(len(sized), seed, 0, shuffle=shuffle)
    length = len(sized) // len(names)
    return Subset(dataset, order[names.index(node.name) :: len(names)][:length].tolist())
