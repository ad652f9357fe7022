"""List the compared variants of the algorithms. Two of the variants do not use gossip."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches

from dpwa.types import JsonObject

ALONE, SYNCHRONOUS = "alone", "synchronous"
PERIOD = 10  # local steps between outer steps, because runs are short


@dataclass(frozen=True, eq=False)  # hashable, by identity
class Variant:
    """A compared configuration, or a way to train without gossip.

    Attributes:
        name: name on the command line.
        label: name in tables and pictures.
        settings: the configuration without `nodes`, or empty without gossip.
        groups: number of groups of nodes.
    """

    name: str
    label: str
    settings: JsonObject = field(default_factory=dict)
    groups: int = 1

    @property
    def words(self) -> tuple[str, ...]:
        """The names that select the variant: its own name and the name of its algorithm."""
        if not self.gossips:
            return (self.name,)
        return str(self.settings.get("algorithm", "gossip")), self.name

    @property
    def gossips(self) -> bool:
        """Whether the nodes of this variant are processes that exchange parameters."""
        return bool(self.settings)


VARIANTS = (
    Variant(ALONE, "alone"),
    Variant(SYNCHRONOUS, "synchronous averaging"),
    Variant("delta", "gossip, merge: delta", {"merge": "delta"}),
    Variant("interpolate", "gossip, merge: interpolate", {"merge": "interpolate"}),
    Variant(
        "quarter",
        "gossip, merge: delta, f = .25",
        {"merge": "delta", "constant": {"value": 0.25}},
    ),
    Variant(
        "leader", "gossip, merge: delta, leader", {"merge": "delta", "interpolation": "leader"}
    ),
    Variant("lsgd", "lsgd", {"algorithm": "lsgd"}, groups=2),
    Variant("symmetric", "symmetric", {"algorithm": "symmetric"}),
    Variant("push_sum", "push_sum", {"algorithm": "push_sum"}),
    Variant("noloco", "noloco", {"algorithm": "noloco", "noloco": {"period": PERIOD}}),
    Variant("elastic", "elastic", {"algorithm": "elastic", "elastic": {"period": PERIOD}}),
    Variant("local", "local", {"algorithm": "local", "local": {"period": PERIOD}}),
    Variant(
        "diloco",
        "local, lr .7, momentum .9",
        {"algorithm": "local", "local": {"period": PERIOD, "lr": 0.7, "momentum": 0.9}},
    ),
)


def variants_named(names: str) -> tuple[Variant, ...]:
    """Return the variants of a comma-separated list, in the order of `VARIANTS`.

    The name of an algorithm selects all variants of the algorithm.

    Raises:
        ValueError: a name is unknown, or the list is empty.
    """
    wanted = {name.strip() for name in names.split(",")}
    known = dict.fromkeys([word for variant in VARIANTS for word in variant.words])
    for name in wanted.difference(known):
        near = get_close_matches(name, known, n=1)
        hint = f". Did you mean {near[0]}?" if near else ""
        raise ValueError(f"expected some of {','.join(known)} (got {name!r}){hint}")
    return tuple(variant for variant in VARIANTS if wanted.intersection(variant.words))
