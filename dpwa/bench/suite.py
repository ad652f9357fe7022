"""What can be measured: measures, the figures of each, and the ratios that are of interest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpwa.errors import UserError
from dpwa.types import JsonObject


@dataclass(frozen=True)
class LinkSettings:
    """Settings of the nodes that take part in a measure; each link has ports of its own.

    Attributes:
        transport: `tcp` or `shm`.
        codec: of what is streamed.
        guard: `finite` or `off`.
        fetch_probability: 0 where only publishing is measured.
        slots: snapshots kept at once.
    """

    transport: str
    codec: str = "none"
    guard: str = "finite"
    fetch_probability: float = 1.0
    slots: int = 3

    def settings(self) -> JsonObject:
        """Return the settings of a configuration that make this link."""
        return {
            "transport": self.transport,
            "codec": self.codec,
            "guard": self.guard,
            "fetch_probability": self.fetch_probability,
            "slots": self.slots,
        }


@dataclass(frozen=True)
class Ratio:
    """A quotient of two sums of figures."""

    above: tuple[str, ...]
    below: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its key in the result, such as `shm_round / (copy + lerp)`."""
        return f"{_sum(self.above)} / {_sum(self.below)}"


def _sum(figures: tuple[str, ...]) -> str:
    return figures[0] if len(figures) == 1 else f"({' + '.join(figures)})"


@dataclass(frozen=True)
class Suite:
    """What a benchmark can measure.

    Attributes:
        measures: of each measure its figures, and what each of them is.
        ratios: those that are of interest.
        ports: names of the links, and of whatever else listens.
    """

    measures: Mapping[str, Mapping[str, str]]
    ratios: tuple[Ratio, ...]
    ports: tuple[str, ...]

    @property
    def titles(self) -> dict[str, str]:
        """What each figure is."""
        return {name: title for of_one in self.measures.values() for name, title in of_one.items()}

    def check(self, wanted: Sequence[str]) -> None:
        """Require that all measures wanted are known.

        Raises:
            UserError: one is not, or none is wanted.
        """
        unknown = [name for name in wanted if name not in self.measures]
        if unknown or not wanted:
            known = ", ".join(self.measures)
            raise UserError(f"expected measures of {known} (got {', '.join(unknown) or 'none'})")
