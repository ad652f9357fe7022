"""Looking up where a host name is, which may take long, beside everything else."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dpwa.config.endpoints import Seed
from dpwa.errors import AddressError
from dpwa.membership.context import LookUp
from dpwa.membership.errands import Errands


@dataclass(frozen=True)
class Located:
    """Where a host name was found to be.

    Attributes:
        seed: an address to ask at.
        found: its addresses, or why there are none.
        known: addresses where there is no need to.
    """

    seed: Seed
    found: tuple[str, ...] | str
    known: Collection[str]


def start_look_up(
    look_up: LookUp,
    errands: Errands,
    seed: Seed,
    known: Collection[str],
    located: Callable[[Located], None],
) -> None:
    """Look up the addresses of a place, unless that is under way.

    Args:
        look_up: finds them; may take long.
        errands: what else may.
        seed: the place.
        known: addresses where there is no need to ask.
        located: is told, on another thread.
    """

    def errand() -> None:
        try:
            found: tuple[str, ...] | str = look_up(seed.endpoint)
        except AddressError as error:
            found = error.text
        located(Located(seed, found, known))

    errands.start(seed.endpoint, errand)
